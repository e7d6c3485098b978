"""Lines of long work: how much is done, and how long the rest takes at that speed."""

from __future__ import annotations

import pytest

from suffice import progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that a test sets."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_time_left_is_by_what_this_run_did(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in progress.counted("steps", 8, range(4, 8), before=4):
        clock[0] += 6
    lines = ["steps: 6 of 8, about 12 s left", "steps: 8 of 8, about 0 s left"]
    assert capsys.readouterr().err.splitlines() == lines


def test_time_left_where_a_step_does_several_at_once(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    batches = iter([256, 512, 600])
    for _ in progress.counted("answers", 600, batches, 0, lambda answered: answered):
        clock[0] += 128
    lines = [
        "answers: 256 of 600, about 172 s left",
        "answers: 512 of 600, about 44 s left",
        "answers: 600 of 600, about 0 s left",
    ]
    assert capsys.readouterr().err.splitlines() == lines
