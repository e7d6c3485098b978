"""Tests of costs.py: what an answer says of its cost. Others are in test_request_attention.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from suffice.engine.work import Final
from suffice.serve.interfaces.costs import costs


def said(*moved: int) -> dict[str, Any]:
    """What an answer says of choices; `moved` are the bytes that the states of each one moved."""
    finals = [Final(3, 0, 2, state_bytes_moved=each) for each in moved]
    tickets = [SimpleNamespace(final=each, generated=2, deaths=0) for each in finals]
    job: Any = SimpleNamespace(tickets=tickets)
    return dict(costs(job)["suffice"])


def test_the_bytes_of_states_are_those_of_all_choices() -> None:
    assert said(80, 40)["state_bytes_moved"] == 120


def test_a_model_without_states_says_nothing_of_them() -> None:
    assert "state_bytes_moved" not in said(0)
