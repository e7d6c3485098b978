"""The laws of a step, on a real (tiny) model: a result does not depend, by a single bit, on how its
prompt was cut, on what else ran, on what it found in the prefix store, or on being parked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

import tiny
from suffice import LLM, SamplingParams
from suffice.attention.calibration import Calibration, LayerInputs
from suffice.attention.exaq import EXAQ
from suffice.cache.kv import KVCache
from suffice.decoder.shelf import Shelf
from suffice.engine.config import Config
from suffice.engine.load import load
from suffice.engine.request import Request
from suffice.engine.runner import Runner
from suffice.trace import Trace

LENGTHS = (131, 40, 97, 64)  # of prompts that begin alike
PARAMS = [
    SamplingParams(
        max_tokens=12, seed=seed, temperature=0.9 * (seed % 2), ignore_eos=True, logprobs=2
    )
    for seed in range(len(LENGTHS))
]
TECHNIQUES: dict[str, dict[str, Any]] = {
    "exact": {},
    "aet": {"attention": "aet:keys=0.7,values=0.1,globals=16"},
    "art": {"attention": "art:change=0.5,angle=0.5,patience=1,block=16,probe=16"},
    "certified": {"attention": "certified:eps=0.8"},
    "certified, unbounded": {"attention": "certified:eps=0.8,bounded=false"},
    "tiers": {"attention": "tiers:eps=0.5,skip=0.01"},
    "skip_softmax": {"attention": "skip_softmax:factor=40,block=16"},
    "quest": {"policy": "quest:budget=48,dense_layers=0"},
    "streaming": {"policy": "streaming:budget=40,sinks=4"},
    "snapkv": {"policy": "snapkv:ratio=0.4,window=8"},
    "h2o": {"policy": "h2o:ratio=0.4"},
    "pyramidkv": {"policy": "pyramidkv:ratio=0.4,window=8"},
    "snapkv, rank only": {"policy": "snapkv:rank_only=true", "attention": "aet:keys=0.7"},
    "h2o, rank only": {"policy": "h2o:rank_only=true", "attention": "aet:keys=0.7"},
    "coded": {"softmax": EXAQ(2)},
    "coded prompts": {"softmax": EXAQ(2, prefill=True)},
    "drafts": {"speculative_config": "ngram:adaptive=false"},
    "own drafts": {"speculative_config": "self:recent=32,adaptive=false"},
}


WINDOWED = ("exact", "aet", "certified", "tiers", "streaming", "h2o")  # also with sliding windows
SHARED = (  # with layers that read another's keys and values
    *("exact", "aet", "art", "certified", "streaming", "snapkv", "h2o", "h2o, rank only", "coded"),
    *("drafts", "quest"),
)
STORED_WITH = ("exact", "tiers")  # all types; other techniques meet them in turn
STORED_IN_TURN = ("aet", "certified", "h2o")
STORED = ("bfloat16", "int8", "kmeans4", "planes", "int8/kmeans4")
SETTINGS = [
    *((name, "llama", "float32") for name in TECHNIQUES),
    *((name, "gemma3", "float32") for name in WINDOWED),
    *((name, "llama", dtype) for name in STORED_WITH for dtype in STORED),
    *((name, "llama", dtype) for name, dtype in zip(cycle(STORED_IN_TURN), STORED, strict=False)),
    ("tiers", "gemma3", "planes"),
    *((name, "gemma4", "float32") for name in SHARED),
    *((name, variant, "int8") for name in ("exact", "h2o") for variant in ("gemma4", "gemma4-moe")),
    *((name, "gemma4-keys", "float32") for name in ("exact", "drafts", "snapkv", "coded")),
    ("exact", "qwen3.5", "kmeans4"),
    ("tiers", "qwen3.5", "planes"),
    *((name, variant, "float32") for variant in tiny.STATEFUL for name in ("exact", "drafts")),
    *((name, "qwen3.5", "float32") for name in ("certified", "streaming", "h2o", "coded")),
]
# What is drawn depends on how many drafts were sampled, hence on the memory that was spare.
GREEDY_ONLY = ("own drafts",)
each_setting = pytest.mark.parametrize(("name", "variant", "dtype"), SETTINGS)


def with_each(cases: list[Any]) -> list[tuple[Any, ...]]:
    """Each technique in float32 meets all cases; other types and windows meet them in turn."""
    others = [each for each in SETTINGS if each[1:] != ("llama", "float32")]
    return [
        *((name, "llama", "float32", case) for name in TECHNIQUES for case in cases),
        *((*each, cases[at % len(cases)]) for at, each in enumerate(others)),
    ]


Make = Callable[..., LLM]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Engines of a tiny model by a technique, a variant and a storage type."""
    folders: dict[str, Path] = {}
    shelf = Shelf()  # packs each model once

    def made(name: str, variant: str, dtype: str, **options: Any) -> LLM:
        if variant not in folders:
            own = {"sliding_window": 48} if variant.startswith("gemma") else {}
            folders[variant] = tiny.make(
                tmp_path_factory.mktemp(variant),
                variant,
                tokenizer=True,
                max_position_embeddings=512,
                **own,
            )
        chosen = {"growth": "step:rows=16", **TECHNIQUES[name], **options}
        softmax = chosen.pop("softmax", None)
        config, runner, tokenizer = load(
            Config.create(
                folders[variant], threads=1, dtype="float32", kv_cache_dtype=dtype, **chosen
            ),
            shelf,
        )
        if softmax is not None:
            config = dataclasses.replace(config, softmax=softmax, calibration=calibrated(runner))
            seen, runner = runner.seen, Runner(config, runner.decoder)
            runner.seen = seen
        return LLM.from_parts(config, runner, tokenizer)

    return made


def calibrated(runner: Runner) -> Calibration:
    model = runner.decoder.config
    layers = tuple(LayerInputs(1.0, -20.0) for _ in model.cached)
    return Calibration("none", "tiny", "", model.heads, layers, {}, {})


def prompts(llm: LLM) -> list[list[int]]:
    words = llm.tokenizer.encode("To be, or not to be, that is the question 0123456789. " * 9)
    return [[*words[: length - 3], 5, 7 + at, 9] for at, length in enumerate(LENGTHS)]


def requests(llm: LLM, *, reuse: bool = False) -> list[Request]:
    return [
        llm.maker.make(prompt, params, reuse=reuse)
        for prompt, params in zip(prompts(llm), PARAMS, strict=True)
    ]


def outputs(made: list[Request]) -> list[Any]:
    assert [request.error for request in made] == [None] * len(made)
    return [request.output().outputs for request in made]


def assert_same(name: str, found: list[Any], wanted: list[Any]) -> None:
    for at, (one, other) in enumerate(zip(found, wanted, strict=True)):
        if PARAMS[at].greedy or name not in GREEDY_ONLY:
            assert one == other


_alone: dict[Any, list[Any]] = {}


def alone(make: Make, name: str, variant: str, dtype: str) -> list[Any]:
    """What each request gives in an engine where nothing else runs or ran."""
    if (name, variant, dtype) not in _alone:
        llm, found = make(name, variant, dtype), []
        for request in requests(llm):
            run(llm, [request])
            found += outputs([request])
        _alone[name, variant, dtype] = found
    return _alone[name, variant, dtype]


def run(llm: LLM, made: list[Request], apart: int = 0, act: Callable[[int], None] = print) -> None:
    """Add requests `apart` steps after each other, and step until all have ended."""
    for number, request in enumerate(made):
        llm.loop.add(request)
        for _ in range(apart if number < len(made) - 1 else 0):
            llm.loop.step()
    steps = 0
    while not all(request.finished for request in made):
        llm.loop.step()
        steps += 1
        if act is not print:
            act(steps)
    llm.loop.retained.clear()
    assert llm.runner.memory_bytes[0] == 0, "all memory came back"


@pytest.mark.parametrize(("name", "variant", "dtype", "cut"), with_each([(30, 2), (7, 5)]))
def test_cuts_and_neighbours_do_not_show(
    make: Make, name: str, variant: str, dtype: str, cut: tuple[int, int]
) -> None:
    tile, apart = cut
    llm = make(name, variant, dtype, prefill_chunk=tile)
    made = requests(llm)
    run(llm, made, apart)
    assert_same(name, outputs(made), alone(make, name, variant, dtype))


@pytest.mark.parametrize(("name", "variant", "dtype", "kept"), with_each([None, 0]))
def test_being_parked_does_not_show(
    make: Make, name: str, variant: str, dtype: str, kept: int | None
) -> None:
    """With the caches still there (`kept` None), and without."""
    llm = make(name, variant, dtype)
    llm.loop.retained.limit = kept
    made = requests(llm)

    def park(step: int) -> None:
        running = llm.loop.scheduler.running
        if step % 2 == 0 and step < 40 and running:
            llm.loop.memory.park(running[step % len(running)])

    run(llm, made, 3, park)
    assert_same(name, outputs(made), alone(make, name, variant, dtype))
    assert sum(request.preemptions for request in made) > 3


@each_setting
def test_a_hit_gives_the_bits_of_a_cold_run(
    make: Make, name: str, variant: str, dtype: str
) -> None:
    """Each prompt comes twice, then goes on from its answer; others run or have ended."""
    llm = make(name, variant, dtype)
    llm.loop.retained.limit, llm.loop.retained.least = None, 16
    first, again = requests(llm, reuse=True), requests(llm, reuse=True)
    for number, request in enumerate(first):
        llm.loop.add(request)
        for _ in range(3 + 20 * (number == 1)):
            llm.loop.step()
    while not llm.loop.scheduler.idle:
        llm.loop.step()
    assert_same(name, outputs(first), alone(make, name, variant, dtype))
    longer = [
        llm.maker.make([*r.tokens, *r.samples[0].tokens, 3, 4], params, reuse=True)
        for r, params in zip(first, PARAMS, strict=True)
    ]
    run(llm, [*longer, *again])
    assert_same(name, outputs(again), alone(make, name, variant, dtype))
    shared = [request.cached for request in (*first, *longer, *again)]
    if llm.runner.shares_prompts:
        assert first[2].cached >= 30 and min(shared[4:]) >= 30
    else:
        assert not any(shared)
    cold = make(name, variant, dtype)
    fresh = [cold.maker.make(request.tokens, request.params) for request in longer]
    run(cold, fresh)
    assert_same(name, outputs(longer), outputs(fresh))


ASKED = ("exact", "aet", "certified", "art", "certified, unbounded")  # per request


def with_techniques(make: Make, own: str, **options: Any) -> tuple[LLM, list[Request]]:
    """An engine of one technique, and each request with each of `ASKED` in turn."""
    llm = make(own, "llama", "float32", **options)
    numbers = {own: 0}
    for name in ASKED:
        if name not in numbers:
            text = TECHNIQUES[name].get("attention", "exact")
            numbers[name] = llm.runner.allow(llm.config.with_attention(text))
    made = [
        llm.maker.make(prompt, params, reuse=True, technique=numbers[name])
        for prompt, params in zip(prompts(llm), PARAMS, strict=True)
        for name in ASKED
    ]
    return llm, made


def assert_each_as_alone(make: Make, made: list[Request]) -> None:
    found = outputs(made)
    for at, name in enumerate(ASKED):
        assert found[at :: len(ASKED)] == alone(make, name, "llama", "float32"), name


@pytest.mark.parametrize("own", ["exact", "aet", "certified"])
@pytest.mark.parametrize("kept", [None, 0])
def test_a_technique_of_a_request_gives_what_an_engine_of_it_gives(
    make: Make, own: str, kept: int | None
) -> None:
    """In mixed batches, parked now and then, with hits in the store and without."""
    llm, made = with_techniques(make, own)
    llm.loop.retained.limit, llm.loop.retained.least = kept, 16

    def park(step: int) -> None:
        running = llm.loop.scheduler.running
        if step % 4 == 2 and step < 60 and running:
            llm.loop.memory.park(running[step % len(running)])

    before = llm.runner.trace.copy()
    run(llm, made, 2, park)
    assert_each_as_alone(make, made)
    assert_reads_add_up(llm, made, before)
    assert any(request.cached for request in made) == (kept is None)


def test_a_technique_that_is_not_the_requests_would_show(make: Make) -> None:
    llm, made = with_techniques(make, "exact")
    for request in made:
        request.technique = 0
    run(llm, made, 2)
    with pytest.raises(AssertionError):
        assert_each_as_alone(make, made)


def test_answers_are_shared_only_if_they_are_what_a_prompt_gives(make: Make) -> None:
    shared = {name for name in TECHNIQUES if make(name, "llama", "float32").runner.shares_answers()}
    assert shared == {"exact", "drafts", "own drafts"}


def test_a_hit_on_other_rows_would_show(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The law bites: rows of answers under a lossy technique are not those of a prompt."""
    monkeypatch.setattr(Runner, "shares_answers", lambda self, technique=0: True)
    with pytest.raises(AssertionError):
        test_a_hit_gives_the_bits_of_a_cold_run(make, "aet", "llama", "float32")


def test_state_that_an_answer_left_would_show(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVCache, "forget_answers", lambda self: None)
    with pytest.raises(AssertionError):
        test_a_hit_gives_the_bits_of_a_cold_run(make, "aet", "llama", "float32")


def test_a_prompt_cut_where_a_sum_begins_would_show(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The law bites: a row that a part of a prompt loses."""
    genuine = Runner.begin

    def late(self: Runner, sequence: Any, rows: int) -> None:
        genuine(self, sequence, rows)
        if self.tile_rows == 7:
            sequence.cache.length += 1

    monkeypatch.setattr(Runner, "begin", late)
    with pytest.raises(AssertionError):
        test_cuts_and_neighbours_do_not_show(make, "exact", "llama", "float32", (7, 5))


def test_what_a_request_read_is_its_own(make: Make) -> None:
    """It adds up to the engine's counts, and is the same alone and among others."""
    for name in ("exact", "aet", "certified", "quest"):
        llm = make(name, "llama", "int8")
        lonely, together = requests(llm), requests(llm)
        for request in lonely:
            run(llm, [request])
        before = llm.runner.trace.copy()
        run(llm, together, 2)
        assert [each.reads for each in lonely] == [each.reads for each in together]
        totals = assert_reads_add_up(llm, together, before)
        assert (name == "exact") == (totals[0] == totals[2])


def assert_reads_add_up(llm: LLM, made: list[Request], before: Trace) -> list[int]:
    trace = llm.runner.trace.since(before)
    totals = [
        sum(getattr(request.reads, field) for request in made)
        for field in (
            *("key_rows", "value_rows", "rows_held"),
            *("bytes_read", "bytes_held", "state_bytes_moved"),
        )
    ]
    assert totals == [
        trace.key_rows_read,
        trace.value_rows_read,
        trace.rows_held,
        trace.kv_bytes_read,
        trace.kv_bytes_held,
        trace.state_bytes_moved,
    ]
    return totals


def test_reads_add_up_with_drafts_hits_and_parked_requests(make: Make) -> None:
    for name, variant in (("drafts", "llama"), ("own drafts", "llama"), ("drafts", "qwen3.5")):
        llm = make(name, variant, "float32")
        llm.loop.retained.limit, llm.loop.retained.least = None, 16
        made = [*requests(llm, reuse=True), *requests(llm, reuse=True)]

        def park(step: int, llm: LLM = llm) -> None:
            running = llm.loop.scheduler.running
            if step % 2 == 0 and step < 40 and running:
                llm.loop.retained.clear()
                llm.loop.memory.park(running[step % len(running)])

        before = llm.runner.trace.copy()
        run(llm, made, 2, park)
        totals = assert_reads_add_up(llm, made, before)
        assert (totals[-1] > 0) == (variant == "qwen3.5")
        assert sum(each.cached for each in made) and sum(each.preemptions for each in made)
        assert sum(sample.drafts.num_draft_tokens for each in made for sample in each.samples)
