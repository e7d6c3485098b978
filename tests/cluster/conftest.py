"""Fixtures of the tests on a Ray cluster; without Ray they are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tiny
from benchmarks.serve.raylets import QUIET, Raylets
from serving import SUPPORT


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Allow Ray its warnings: what it deprecates of itself is not ours."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a tokenizer and a chat template."""
    folder = tmp_path_factory.mktemp("words")
    return tiny.make(folder, "llama", tokenizer=True, max_position_embeddings=1024)


@pytest.fixture(scope="module")
def raylets() -> Iterator[Raylets]:
    """A cluster of a head and two nodes; what dies is added again by who killed it."""
    pytest.importorskip("ray", reason="needs Ray: EXTRAS=test,check,ray make test")
    import ray

    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUIET.items():
            patch.setenv(name, value)
        patch.setenv("PYTHONPATH", str(SUPPORT))
        patch.delenv("RAY_ADDRESS", raising=False)
        made = Raylets(2)
        try:
            yield made
        finally:
            ray.shutdown()
            made.shutdown()
