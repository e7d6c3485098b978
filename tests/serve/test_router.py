"""Which engine gets a request: router.py."""

from __future__ import annotations

from typing import Any

import pytest

from suffice.serve.processes import router
from suffice.serve.processes.router import BLOCK, SAMPLE_COST, Load, Rates, Router
from suffice.serve.processes.wire import Submit

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


def test_what_is_on_disk_anybody_can_read() -> None:
    """Who has it in memory comes first, then any, also when who ran it has died."""
    chooses = Router(2, on_disk=True)
    assert chooses.choose(work(LONG), [IDLE] * 2) == 0
    assert chooses.choose(work([*LONG, 1]), [IDLE] * 2) == 0, "in memory"
    busy = [Load(prompts=2 * BLOCK), IDLE]
    assert chooses.choose(work([*LONG, 2]), busy) == 1, "reading is faster than waiting"
    plain = Router(2)
    assert plain.choose(work(LONG), [IDLE] * 2) == 0
    assert plain.choose(work([*LONG, 2]), busy) == 0
    chooses.forget(0)
    chooses.forget(1)
    other = list(range(500, 500 + 4 * BLOCK))
    assert chooses.choose(work(LONG), [Load(prompts=20), IDLE]) == 1
    cost = 10 * BLOCK * router.READ_COST
    assert chooses._kept(0, list(router._blocks(work(LONG), LONG))) == 10 * BLOCK - cost
    assert chooses._kept(0, list(router._blocks(work(other), other))) == 0


def test_what_is_remembered_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "MOST_BLOCKS", 4)
    chooses = Router(2)
    chooses.choose(work(LONG[: 4 * BLOCK]), [IDLE] * 2)
    chooses.choose(work([9] * 4 * BLOCK), [IDLE, None])
    assert chooses.choose(work(LONG[: 4 * BLOCK]), [IDLE] * 2) == 1, "the oldest went"


FAST, SLOW = Rates(0.0005, 0.004, 0.0005), Rates(0.001, 0.008, 0.001)


def measured(count: int = 2, answer: int = 50, **more: Any) -> Router:
    """A router that knows how long answers are."""
    found = Router(count, **more)
    found.keep(0, work([1]), [1] * answer)
    return found


def test_a_faster_engine_gets_more() -> None:
    chooses = measured()
    assert chooses.choose(work([3]), [Load(rates=SLOW), Load(rates=FAST)]) == 1
    busy = Load(samples=4, rates=FAST)
    assert chooses.choose(work([3]), [Load(rates=SLOW), busy]) == 1, "4 + 5 * 0.5 < 8 + 1 ms"
    busy = Load(samples=12, rates=FAST)
    assert chooses.choose(work([3]), [Load(rates=SLOW), busy]) == 0, "4 + 13 * 0.5 > 8 + 1 ms"
    behind = Load(prompts=2000, rates=FAST)
    assert chooses.choose(work([3]), [Load(rates=SLOW), behind]) == 0, "1 s of prompts"


def test_prompts_wait_for_the_steps_of_those_who_decode() -> None:
    """Others take 20 of the 40 ms of a step, so a prompt takes twice its time."""
    half = Rates(0.001, 0.010, 0.001)
    chooses = measured(answer=1)
    busy = Load(samples=10, rates=half)
    one, other = Load(prompts=900, rates=half), busy
    assert chooses.choose(work([0] * 500), [one, other]) == 1, "1000 ms against 1400"
    assert chooses.choose(work([1] * 1000), [one, other]) == 0, "2000 ms against 1900"


def test_a_kept_beginning_is_worth_its_time() -> None:
    chooses = measured()
    chooses.choose(work(LONG), [Load(rates=FAST), None])
    kept = 10 * BLOCK * FAST.token
    few, many = (int(part * kept / FAST.token) for part in (0.8, 1.3))
    idle = Load(rates=FAST)
    assert chooses.choose(work(LONG), [Load(prompts=few, rates=FAST), idle]) == 0
    assert chooses.choose(work(LONG), [Load(prompts=many, rates=FAST), idle]) == 1


def test_without_a_place_a_request_waits_for_answers() -> None:
    chooses = measured(places=4)
    full = [Load(samples=8, rates=FAST), Load(prompts=300, samples=3, rates=FAST)]
    assert chooses.choose(work([3]), full) == 1, "150 ms of prompts, against an answer's time"


def test_times_that_are_alike_take_turns() -> None:
    chooses = measured()
    near = Rates(FAST.token * 1.01, FAST.step * 0.99, FAST.row)
    loads = [Load(rates=FAST), Load(rates=near)]
    assert [chooses.choose(work([at]), loads) for at in range(4)] == [0, 1, 0, 1]


def test_an_engine_that_is_new_counts_as_the_others() -> None:
    chooses = measured(3)
    loads = [Load(samples=9, rates=FAST), Load(), Load(samples=9, rates=SLOW)]
    assert chooses.choose(work([3]), loads) == 1
    assert chooses.choose(work([3]), [Load(rates=FAST), Load(samples=9), None]) == 0
