from __future__ import annotations

from pathlib import Path

import pytest

import heads
import tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("model"), "llama", tokenizer=True)


@pytest.fixture(scope="module")
def untrained(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head of the model with random weights."""
    return heads.make(tmp_path_factory.mktemp("untrained"), model)
