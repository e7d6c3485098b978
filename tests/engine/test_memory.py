"""A request that fits alone ends with the text that it has alone, in however little memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_engine import FakeRunner, fake_llm, runner_of
from suffice import LLM, SamplingParams
from suffice.engine.admission import MAX_OVERTAKES
from suffice.engine.request import Request
from suffice.errors import OutOfMemory


def params(number: int, tokens: int, n: int = 1) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, seed=number, ignore_eos=True, n=n)


@pytest.fixture(scope="module", autouse=True)
def near_marks() -> Iterator[None]:
    """A prompt's state is kept near its end though these are short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("suffice.engine.request._TURN", 2)
        patch.setattr("suffice.engine.request._UNIT", 2)
        yield


def engine(memory: int, prefix: int | None = 0, most: int = 4, *, stateful: bool = False) -> LLM:
    llm = fake_llm(memory=memory, max_num_seqs=most, stateful=stateful)
    llm.loop.retained.limit, llm.loop.retained.least = prefix, 2
    return llm


def finish(llm: LLM, made: list[Request], apart: list[int]) -> None:
    for request, steps in zip(made, apart, strict=True):
        llm.loop.add(request)
        for _ in range(steps):
            llm.loop.step()
    for _ in range(5000):
        if all(request.finished for request in made):
            break
        llm.loop.step()
    assert all(request.finished for request in made), "somebody starves"


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(2, 4), min_size=1, max_size=9),  # prompt
            st.integers(1, 9),  # tokens
            st.integers(1, 2),  # samples
            st.integers(0, 2),  # priority
            st.integers(0, 3),  # steps until the next comes
        ),
        min_size=1,
        max_size=7,
    ),
    st.sampled_from([0, None]),
    st.integers(0, 12),
    st.booleans(),
)
def test_nothing_that_fits_alone_is_lost(
    asked: list[Any], prefix: int | None, extra: int, stateful: bool
) -> None:
    need = max(n * (len(prompt) + tokens + 2) for prompt, tokens, n, _, _ in asked)
    llm = engine(need + extra, prefix, stateful=stateful)
    made = [
        llm.maker.make(prompt, params(at, tokens, n), priority=priority, reuse=True)
        for at, (prompt, tokens, n, priority, _) in enumerate(asked)
    ]
    finish(llm, made, [steps for *_, steps in asked])
    one = fake_llm()
    for at, (request, (prompt, tokens, n, _, _)) in enumerate(zip(made, asked, strict=True)):
        assert request.error is None
        (alone,) = one.generate([prompt], params(at, tokens, n))
        assert request.output().outputs == alone.outputs
    runner = runner_of(llm)
    llm.loop.retained.clear()
    assert (runner.memory, runner.open_sequences) == (need + extra, [])


def test_the_newest_gives_way_and_goes_on_after_the_others() -> None:
    llm = engine(16)
    made = [llm.maker.make([3, 4], params(at, 9)) for at in range(2)]
    finish(llm, made, [0, 0])
    assert [request.preemptions > 0 for request in made] == [False, True]
    assert llm.loop.stats().preemptions == made[1].preemptions


def test_a_step_maps_little_memory_and_the_shortest_prompts_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("suffice.engine.loop.POPULATED_BYTES", 8)
    llm = engine(10**6)
    llm.loop.turns.step_seconds = 0.04  # as in a server; `LLM` alone maps what it needs at once
    runner = runner_of(llm)
    runner.maps_in_parts = True
    made = [llm.maker.make([size % 10 + 2] * size, params(size, 2)) for size in (20, 9, 4, 3)]
    for request in made:
        llm.loop.add(request)
    steps = []
    while not made[0].finished:
        before = len(runner.populated)
        llm.loop.step()
        steps.append(runner.populated[before:])
    assert steps[:5] == [[3, 4], [9], [9], [20], [20]]
    assert made[2].finished and runner.prefilled[0] == [6] * 4, "they run meanwhile"


def test_a_more_urgent_request_parks_another() -> None:
    llm = engine(13)
    calm = llm.maker.make([3, 4], params(0, 9), priority=1)
    urgent = llm.maker.make([5, 6, 7, 8, 9, 2], params(1, 3), priority=0)
    llm.loop.add(calm)
    for _ in range(6):
        llm.loop.step()
    llm.loop.add(urgent)
    llm.loop.step()
    assert [bool(each.samples[0].tokens) for each in (urgent, calm)] == [True, True]
    assert calm.preemptions == 1 and llm.loop.scheduler.running == [urgent]
    finish(llm, [], [])
    while not calm.finished:
        llm.loop.step()
    assert calm.samples[0].tokens == list(
        fake_llm().generate([[3, 4]], params(0, 9))[0].outputs[0].token_ids
    )


def test_an_urgent_request_takes_the_place_of_the_newest_of_the_lowest_priority() -> None:
    llm = engine(10**6, prefix=None, most=3)
    calm = [llm.maker.make([3, 4 + at], params(at, 12), priority=1 + at % 2) for at in range(3)]
    for request in calm:
        llm.loop.add(request)
    for _ in range(3):
        llm.loop.step()
    urgent = [llm.maker.make([5, 6], params(7, 4), priority=0)]
    urgent.append(llm.maker.make([6, 5], params(8, 4, n=2), priority=1))
    for request in urgent:
        llm.loop.add(request)
    llm.loop.step()
    assert llm.loop.scheduler.running == [calm[0], calm[2], urgent[0]], "it needs one place"
    assert [request.preemptions for request in calm] == [0, 1, 0]
    finish(llm, [], [])
    while not all(request.finished for request in [*calm, *urgent]):
        assert len(llm.loop.scheduler.samples()) <= 3
        llm.loop.step()
    for request in (*calm, *urgent):
        (alone,) = fake_llm().generate([request.tokens], request.params)
        assert request.output().outputs == alone.outputs
    assert calm[0].preemptions == 0, "nobody has a higher priority and no place"
    assert runner_of(llm).prefilled.count([3, 5]) == 1, "its cache was still there"


def test_nobody_is_parked_in_vain() -> None:
    """Four samples need all places, and one place has no lower priority."""
    llm = engine(10**6, most=4)
    held = [llm.maker.make([3, 4], params(at, 20), priority=at) for at in range(3)]
    wide = llm.maker.make([5, 6], params(9, 4, n=4), priority=0)
    for request in (*held, wide):
        llm.loop.add(request)
        llm.loop.step()
    assert llm.loop.scheduler.running == held
    assert llm.loop.stats().preemptions == 0


def test_urgent_requests_without_end_starve_nobody() -> None:
    llm = engine(10**6, prefix=None, most=1)
    calm = llm.maker.make([3, 4], params(0, 9), priority=5)
    llm.loop.add(calm)
    llm.loop.step()
    for at in range(60):
        llm.loop.add(llm.maker.make([5, 6], params(at, 2), priority=0))
        llm.loop.step()
        if calm.finished:
            break
        llm.loop.step()
    assert calm.finished and calm.preemptions == 1 and at >= 30


def test_a_parked_request_whose_cache_is_still_there_runs_nothing_again() -> None:
    llm = engine(100, prefix=None)
    request = llm.maker.make([3, 4, 5], params(0, 9))
    llm.loop.add(request)
    for _ in range(4):
        llm.loop.step()
    llm.loop.memory.park(request)
    finish(llm, [], [])
    while not request.finished:
        llm.loop.step()
    runner = runner_of(llm)
    assert (runner.prefilled, runner.replayed) == ([[3, 4, 5]], [])


def test_the_cache_of_a_parked_request_is_copied_and_not_taken() -> None:
    llm = engine(100, prefix=None)
    prompt = [3, 4, 5, 6]
    parked = llm.maker.make(prompt, params(0, 9), reuse=True)
    llm.loop.add(parked)
    for _ in range(2):
        llm.loop.step()
    llm.loop.memory.park(parked)
    urgent = llm.maker.make(prompt, params(1, 9), priority=-1, reuse=True)  # starts first
    finish(llm, [urgent], [0])
    assert urgent.cached == 3
    while not parked.finished:
        llm.loop.step()
    assert runner_of(llm).replayed == []


def test_without_its_cache_the_tokens_come_in_as_known_ones() -> None:
    llm = engine(100)
    request = llm.maker.make([3, 4, 5], params(0, 9))
    llm.loop.add(request)
    for _ in range(4):
        llm.loop.step()
    known = list(request.samples[0].tokens)
    llm.loop.memory.park(request)
    while not request.finished:
        llm.loop.step()
    runner = runner_of(llm)
    assert runner.prefilled == [[3, 4, 5]] * 2
    assert [token for part in runner.replayed for token in part] == known[:-1]
    assert request.samples[0].tokens[: len(known)] == known


@pytest.mark.parametrize("stateful", [False, True])
def test_clients_that_come_together_run_what_they_share_once(stateful: bool) -> None:
    llm = engine(10**6, prefix=None, most=8, stateful=stateful)
    shared = [3 + at % 5 for at in range(40)]
    made = [llm.maker.make([*shared, 2, 3 + at], params(at, 4), reuse=True) for at in range(6)]
    finish(llm, made, [0] * 6)
    ran = sum(map(len, runner_of(llm).prefilled))
    assert ran <= 42 + 5 * 3, "the shared part ran once"
    assert made[0].cached == 0
    assert all(request.cached >= 40 for request in made[1:])
    for at, request in enumerate(made):
        (alone,) = fake_llm().generate([request.tokens], params(at, 4))
        assert request.output().outputs == alone.outputs


def test_requests_that_reuse_nothing_leave_nothing() -> None:
    llm = engine(10**6, prefix=None)
    made = [llm.maker.make([3, 4, 5, 6], params(at, 4)) for at in range(2)]
    finish(llm, made, [9, 0])
    assert [request.cached for request in made] == [0, 0]
    assert len(llm.loop.retained) == 0 and runner_of(llm).open_sequences == []


def test_what_does_not_fit_alone_says_so() -> None:
    llm = engine(6)
    request = llm.maker.make([3, 4, 5, 6, 7, 8, 9], params(0, 4))
    finish(llm, [request], [0])
    assert (request.error, request.error_code) == ("request 0 needs 7 rows", "too_large")


def test_a_prefix_store_never_stands_in_the_way() -> None:
    llm = engine(20, prefix=None)
    for at in range(6):
        request = llm.maker.make([3 + at, 4, 5, 6], params(at, 9), reuse=True)
        finish(llm, [request], [0])
        assert request.error is None
    assert 0 < llm.loop.retained.bytes <= 20


def test_a_wrong_copy_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison bites: a copy with a token too few gives another text."""

    def careless(self: FakeRunner, sequence: Any, rows: int) -> None:
        sequence.cache.truncate(rows - 1)
        sequence.cache.tokens.append(9)

    monkeypatch.setattr(FakeRunner, "rewind", careless)
    with pytest.raises(AssertionError):
        test_clients_that_come_together_run_what_they_share_once(stateful=False)


def test_a_policy_that_finds_no_memory_waits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine, failures = FakeRunner.end, [True, True]

    def end(self: FakeRunner, sequence: Any) -> None:
        if len(sequence.cache.tokens) == 4 and failures:
            failures.pop()
            raise OutOfMemory("the policy needs more")
        genuine(self, sequence)

    monkeypatch.setattr(FakeRunner, "end", end)
    llm = engine(10**6)
    made = [llm.maker.make([3, 4, 5, 6][at:], params(at, 9)) for at in range(2)]
    finish(llm, made, [0, 0])
    assert made[0].error is None and made[0].preemptions == 2
    assert made[0].samples[0].tokens == list(
        fake_llm().generate([[3, 4, 5, 6]], params(0, 9))[0].outputs[0].token_ids
    )
    assert runner_of(llm).open_sequences == []


def with_priority(llm: Any, seed: int, priority: int, n: int = 1) -> Request:
    params = SamplingParams(n=n, seed=seed, max_tokens=9, ignore_eos=True)
    made: Request = llm.maker.make([3, seed], params, priority=priority)
    llm.loop.add(made)
    return made


def test_a_higher_priority_takes_the_place_of_the_newest_of_the_lowest() -> None:
    llm = fake_llm(max_num_seqs=2)
    low = [with_priority(llm, seed, 5) for seed in (1, 2)]
    for _ in range(3):
        llm.loop.step()
    equal, high = with_priority(llm, 3, 5), with_priority(llm, 4, 0)
    llm.loop.step()
    assert llm.loop.scheduler.running == [low[0], high]
    assert (low[1].preemptions, equal.begun) == (1, False)
    made = [*low, equal, high]
    while not llm.loop.scheduler.idle:
        llm.loop.step()
    alone = [fake_llm().generate([[3, seed]], each.params)[0] for seed, each in enumerate(made, 1)]
    assert [r.output().outputs for r in made] == [each.outputs for each in alone]
    assert sum(each.preemptions for each in made) == 1


def test_nobody_is_parked_for_a_request_that_would_not_start_even_so() -> None:
    llm = fake_llm(max_num_seqs=3)
    with_priority(llm, 1, 0)
    low = with_priority(llm, 2, 5)
    llm.loop.step()
    wide = with_priority(llm, 3, 1, n=3)
    llm.loop.step()
    assert (low.preemptions, wide.begun) == (0, False)


def test_who_was_overtaken_often_keeps_its_place() -> None:
    llm = fake_llm(max_num_seqs=1)
    low = with_priority(llm, 1, 5)
    llm.loop.step()
    low.overtaken = MAX_OVERTAKES
    high = with_priority(llm, 2, 0)
    llm.loop.step()
    assert (low.preemptions, high.begun) == (0, False)
