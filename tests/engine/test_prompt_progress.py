"""How far a prompt is: told to whom asks, shown by bars; work.py, job.py, progress.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
from test_service import Receiver

from fake_engine import FakeRunner, fake_llm
from suffice import SamplingParams
from suffice.engine.llm import LLM
from suffice.engine.service import Delta, Engine, Work

SHORT = SamplingParams(max_tokens=3, seed=3, ignore_eos=True)
PROMPT = (3, 4) * 20


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeRunner, "tile_rows", 8)


def deltas_of(
    *works: Work, clock: Callable[[], float] | None = None, llm: LLM | None = None
) -> list[list[Delta]]:
    """Return what requests get, one after the other, from an engine with a tile in each step."""
    ticks = clock or itertools.count().__next__
    engine = Engine(llm or fake_llm(), step_ms=0, clock=ticks)
    found: list[list[Delta]] = []
    try:
        for work in works:
            receiver = Receiver()
            engine.submit(work, receiver)
            receiver.wait()
            found.append(receiver.deltas)
    finally:
        engine.close()
    return found


def told(deltas: Sequence[Delta]) -> list[tuple[int, int, int]]:
    """Return what deltas say of the prompt: nothing else, and before all else."""
    found = [delta.progress for delta in deltas if delta.progress is not None]
    assert [delta.progress for delta in deltas[: len(found)]] == found
    assert all(delta.is_progress for delta in deltas[: len(found)])
    assert all(0 <= each.seconds <= then.seconds for each, then in itertools.pairwise(found))
    return [(each.done, each.total, each.cached) for each in found]


def test_each_part_of_a_prompt_is_told_to_who_asks() -> None:
    (asked, again, other) = deltas_of(
        Work("a", PROMPT, SHORT, progress=True),
        Work("b", PROMPT, SHORT, progress=True, reuse=False),
        Work("c", PROMPT, SHORT, reuse=False),
    )
    assert told(asked) == told(again) == [(each, 40, 0) for each in (8, 16, 24, 32, 40)]
    assert told(other) == []
    plain = [(delta.text, delta.tokens) for delta in other]
    assert [(delta.text, delta.tokens) for delta in asked if delta.tokens] == plain


def test_between_two_deltas_is_some_time_but_the_end_is_always_told() -> None:
    (asked,) = deltas_of(Work("a", PROMPT, SHORT, progress=True), clock=lambda: 5.0)
    assert told(asked) == [(8, 40, 0), (40, 40, 0)]


def test_cached_tokens_are_done() -> None:
    long = (3, 4) * 29  # shorter beginnings than 64 tokens are not kept by default
    llm = fake_llm()
    llm.loop.retained.least = 16
    (_, found) = deltas_of(Work("a", PROMPT, SHORT), Work("a", long, SHORT, progress=True), llm=llm)
    assert told(found) == [(48, 58, 40), (56, 58, 40), (58, 58, 40)]


@pytest.mark.parametrize("known", [((), ()), ((5,), (6, 7))])
def test_who_has_tokens_is_told_no_more(known: tuple[tuple[int, ...], ...]) -> None:
    params = SamplingParams(n=2, max_tokens=4, seed=3, ignore_eos=True)
    (found,) = deltas_of(Work("a", PROMPT, params, known=known, progress=True))
    assert bool(told(found)) == (not any(known))


def test_a_prompt_without_an_answer_is_told_of_to_its_end() -> None:
    params = SamplingParams(max_tokens=0, prompt_logprobs=1)
    (found,) = deltas_of(Work("a", PROMPT, params, progress=True))
    assert told(found)[-1] == (40, 40, 0)
    (last,) = [delta for delta in found if not delta.is_progress]
    assert last.finish_reason == "length" and last.prompt_logprobs is not None


def test_a_request_that_ends_in_its_prompt_tells_of_no_end() -> None:
    engine = Engine(fake_llm(), step_ms=0, clock=itertools.count().__next__)
    found: list[Delta] = []

    def cancel(delta: Delta) -> None:
        found.append(delta)
        engine.cancel("a")

    engine.submit(Work("a", PROMPT, SHORT, progress=True), cancel)
    engine.drain()
    engine.close()
    assert told(found) == [(8, 40, 0)] and found[-1].finish_reason == "abort"


def test_what_a_stream_says_of_its_prompt() -> None:
    outputs = [output for _, output in fake_llm().stream(list(PROMPT), SHORT)]
    assert [each.num_prompt_tokens_done for each in outputs] == [8, 16, 24, 32, 40, 40, 40]


def test_generate_counts_the_tokens_of_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[int, int, int]] = []

    class Bar:
        disable = False

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None: ...

        def add_task(self, *_: object, **fields: int) -> None:
            assert (fields["total"], fields["all"]) == (2, 52)

        def update(self, _: object, completed: int, tokens: int, prompts: int) -> None:
            shown.append((completed, prompts, tokens))

    monkeypatch.setattr("suffice.progress.progress_bar", lambda *_, **__: Bar())
    fake_llm().generate([list(PROMPT), [3] * 12], SHORT)
    assert [prompts for _, prompts, _ in shown] == sorted(prompts for _, prompts, _ in shown)
    assert shown[0] == (0, 8, 0) and shown[-1] == (2, 52, 6)
    assert max(then[1] - each[1] for each, then in itertools.pairwise(shown)) <= 8
