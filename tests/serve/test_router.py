"""Which engine gets a request: router.py."""

from __future__ import annotations

from typing import Any

import pytest

from suffice.serve import router
from suffice.serve.router import BLOCK, SAMPLE_COST, Load, Router
from suffice.serve.wire import Submit

IDLE = Load()
LONG = list(range(10 * BLOCK))


def work(prompt: list[int], **fields: Any) -> Submit:
    return Submit("x", prompt, {}, **fields)


def test_equals_take_turns() -> None:
    chooses = Router(3)
    found = [chooses.choose(work([at] * 9), [IDLE] * 3) for at in range(6)]
    assert found == [0, 1, 2, 0, 1, 2]


def test_the_beginning_draws_a_request_to_who_keeps_it() -> None:
    chooses = Router(2)
    assert chooses.choose(work(LONG), [IDLE] * 2) == 0
    assert [chooses.choose(work([*LONG, at]), [IDLE] * 2) for at in range(4)] == [0] * 4
    assert chooses.choose(work([7, *LONG]), [IDLE] * 2) == 1, "another text, by one token"


def test_an_answer_is_a_beginning_too() -> None:
    chooses = Router(2)
    first = chooses.choose(work(LONG[:BLOCK]), [Load(samples=9), IDLE])
    chooses.keep(first, work(LONG[:BLOCK]), LONG[BLOCK:])
    assert first == 1 and chooses.choose(work(LONG), [IDLE] * 2) == 1


def test_much_to_do_outweighs_a_beginning() -> None:
    chooses = Router(2)
    chooses.choose(work(LONG), [IDLE] * 2)
    held = 10 * BLOCK
    assert chooses.choose(work(LONG), [Load(prompts=held - 1), IDLE]) == 0
    assert chooses.choose(work(LONG), [Load(prompts=held + 1), IDLE]) == 1
    assert chooses.choose(work([3]), [Load(samples=2), Load(prompts=2 * SAMPLE_COST - 1)]) == 1


@pytest.mark.parametrize("fields", [{"group": "b"}, {"attention": "x"}, {"reuse": False}])
def test_beginnings_that_are_not_shared_draw_nobody(fields: dict[str, Any]) -> None:
    chooses = Router(2)
    assert chooses.choose(work(LONG), [IDLE] * 2) == 0
    assert chooses.choose(work(LONG, **fields), [IDLE] * 2) == 1


def test_who_takes_no_requests_gets_none() -> None:
    chooses = Router(2)
    chooses.choose(work(LONG), [IDLE] * 2)
    assert chooses.choose(work(LONG), [None, Load(10**9, 10**9)]) == 1


def test_what_an_engine_lost_is_forgotten() -> None:
    chooses = Router(2)
    chooses.choose(work(LONG), [IDLE] * 2)
    chooses.forget(0)
    assert chooses.choose(work(LONG), [IDLE] * 2) == 1


def test_what_is_remembered_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "MOST_BLOCKS", 4)
    chooses = Router(2)
    chooses.choose(work(LONG[: 4 * BLOCK]), [IDLE] * 2)
    chooses.choose(work([9] * 4 * BLOCK), [IDLE, None])
    assert chooses.choose(work(LONG[: 4 * BLOCK]), [IDLE] * 2) == 1, "the oldest went"
