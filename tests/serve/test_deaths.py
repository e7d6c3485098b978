"""Engines that die at once: how many are too many. Tests deaths.py."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from serving import until
from suffice.serve.processes import deaths, instances


def test_engines_that_others_kill_are_started_again(
    serving: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than may fail by themselves, before they are ready."""
    monkeypatch.setattr(instances, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(instances, "LONGEST_PAUSE", 0.01)
    late, told = tmp_path / "late", list[str]()
    with serving(options={"late": str(late)}) as server, ThreadPoolExecutor() as pool:
        (instance,) = server.front.instance.members
        server.models.lost = told.append
        late.touch()
        ask = pool.submit(server.chat)
        for count in range(deaths.MOST_FAILED + 2):
            until(lambda: instance._current is not None)
            os.kill(instance._current.process.pid, signal.SIGKILL)
            until(lambda count=count: instance.restarts > count)  # type: ignore[misc]
        reason = server.client.get("/health").json()["reason"]
        assert reason.endswith("in a row were killed by SIGKILL, by a hand or for want of memory")
        late.unlink()
        assert ask.result().status_code == 200 and not told


def test_which_deaths_are_too_many() -> None:
    row = deaths.Deaths()
    for _ in range(deaths.MOST_KILLED - 1):
        row.note(-signal.SIGKILL, at_once=True)
    for _ in range(deaths.MOST_FAILED - 1):
        row.note(-signal.SIGSEGV, at_once=True)
    assert row.gone() is None and row.ailment() == "23 engines died without a request"
    row.note(-signal.SIGSEGV, at_once=True)
    assert row.gone() == "5 engines in a row died at once (exit code -11): see the lines above"
    row.note(1, at_once=False)
    assert row.gone() is None and row.ailment() is None and not row.any
    for _ in range(deaths.MOST_KILLED):
        assert row.gone() is None
        row.note(-signal.SIGKILL, at_once=True)
    killed = "20 engines in a row were killed by SIGKILL, by a hand or for want of memory"
    assert row.ailment() == killed and row.gone() == f"{killed}, before they were of use"
