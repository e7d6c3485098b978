"""Fixtures of the server's tests."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tiny
from nursery import Nursery
from serving import ENGINE, SUPPORT, Served, served, served_models
from suffice.serve.http import front, models
from suffice.serve.processes import instances, life, pulse
from suffice.serve.settings import Settings


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a tokenizer and a chat template."""
    folder = tmp_path_factory.mktemp("words")
    return tiny.make(folder, "llama", tokenizer=True, max_position_embeddings=1024)


@pytest.fixture(scope="session")
def engine_path() -> Iterator[None]:
    """Let the engine's process find the scripted engine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(SUPPORT))
        yield


@pytest.fixture(scope="session", autouse=True)
def own_leases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the leases of tests, and of their processes, apart from those of other servers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUFFICE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def forked_engines(own_leases: None) -> Iterator[None]:
    """Fork engines from a process that has imported what they need, if it suits.

    Servers that tests start as processes start their engines themselves.
    """
    plainly, made = life.started, list[Nursery]()

    def started(link: int, memory: int | None) -> Any:
        if not made:
            made.append(Nursery())
        return (made[0].started if made[0].suits() else plainly)(link, memory)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(life, "started", started)
        yield
    for each in made:
        each.close()


@pytest.fixture(scope="session", autouse=True)
def short_turns() -> Iterator[None]:
    """Have servers look more often at what tests wait for: engines, and requests' time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pulse, "TURN_SECONDS", 0.05)
        patch.setattr(front, "SWEEP_SECONDS", 0.05)
        yield


@pytest.fixture(scope="module")
def server(words: Path, engine_path: None) -> Iterator[Served]:
    """A server that the tests of a file share."""
    with served(words) as found:
        yield found


@pytest.fixture
def serving(words: Path, engine_path: None) -> Callable[..., Any]:
    """Serve with other settings."""

    def make(**settings: Any) -> contextlib.AbstractContextManager[Served]:
        return served(words, **settings)

    return make


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """Collect warnings and errors that are logged, those of uvicorn included.

    pytest's own plugin attaches a handler to all loggers, three times for each of all tests.
    """
    found: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    loggers = [logging.getLogger(name) for name in (None, "uvicorn")]  # which does not propagate
    for logger in loggers:
        logger.addHandler(handler)
    yield found
    for logger in loggers:
        logger.removeHandler(handler)


@pytest.fixture
def several(
    words: Path, engine_path: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., contextlib.AbstractContextManager[Served]]:
    """Serve models of scripted engines that say their names; `own` are options by model."""
    monkeypatch.setattr(models, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(instances, "FIRST_PAUSE", 0.01)

    def make(
        *names: str, own: dict[str, dict[str, Any]] | None = None, **settings: Any
    ) -> contextlib.AbstractContextManager[Served]:
        given = [
            Settings(
                model=name,
                options={"model": str(words), "says": 60 * f"{name} ", **(own or {}).get(name, {})},
                engine=ENGINE,
                port=0,
                access_log=False,
                **settings,
            )
            for name in names
        ]
        return served_models(given)

    return make
