"""Drafts of heads in the engine: texts are those without them, however requests run.

Tests eagle3.py, dflash.py, heads.py, block_heads.py, by_head.py, markov.py and with_head.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adapters
import block_heads
import dspark_heads
import heads
import tiny
import trained_block_heads
from engines import last_outputs, run, sharing
from suffice import LLM, Config, SamplingParams
from suffice.engine.block_heads import BlockHead
from suffice.engine.request import Request
from suffice.engine.runner import Runner
from suffice.errors import InputError
from suffice.sampling import SamplingState, probabilities
from suffice.speculate import DraftingSample, Tree, Widths
from suffice.speculate.budget import Budget
from suffice.speculate.by_head import ByBlock, ByHead
from suffice.speculate.dflash import DFlash
from suffice.speculate.eagle3 import Eagle3
from trained_heads import trained

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=1)
DRAWN = SamplingParams(temperature=0.8, top_k=30, max_tokens=24, seed=5, ignore_eos=True)
PROMPTS = [[(7 * i + 13 * number) % 190 + 3 for i in range(60)] for number in range(4)]
MAKERS: dict[str, Any] = {"eagle3": heads, "dflash": block_heads, "dspark": dspark_heads}
load = sharing(threads=1, dtype="float32")


@pytest.fixture(scope="module", params=["eagle3", "dflash", "dspark"])
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def head(method: str, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head that knows the answers to the prompts, but for one that was held out."""
    folder = tmp_path_factory.mktemp("head")
    if method == "eagle3":
        return trained(load(model), PROMPTS, folder)
    kind = MAKERS[method]
    begun = drafting(model, kind.make(folder / "begun", model))
    return trained_block_heads.trained(begun, model, PROMPTS, folder / "head", kind)


@pytest.fixture(scope="module")
def untrained(method: str, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head of the model with random weights."""
    return MAKERS[method].make(tmp_path_factory.mktemp("untrained"), model)


def drafting(model: Path, head: Path, **options: Any) -> LLM:
    """Return an engine that drafts whether it pays or not, unless told otherwise."""
    own = {
        name: options.pop(name) for name in ("width", "kv_cache_dtype_of_head") if name in options
    }
    if "kv_cache_dtype_of_head" in own:
        own["kv_cache_dtype"] = own.pop("kv_cache_dtype_of_head")
    method = {
        "method": heads.method(head),
        "num_speculative_tokens": 4,
        "model": str(head),
        "adaptive": False,
    }
    method |= own
    return load(model, speculative_config=method | options.pop("speculation", {}), **options)


def runner_of(llm: LLM) -> Runner:
    assert isinstance(llm.runner, Runner)
    return llm.runner


def accepted(outputs: Sequence[Any]) -> int:
    return sum(each.speculation.num_accepted_tokens for each in outputs)


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("knows", [True, False])
def test_greedy_outputs_are_those_without_drafts(
    model: Path, head: Path, untrained: Path, knows: bool, width: int, size: int
) -> None:
    params = GREEDY if width == 1 else dataclasses.replace(GREEDY, logprobs=None)
    plain = load(model).generate(PROMPTS, params)
    llm = drafting(model, head if knows else untrained, width=width, max_num_seqs=size)
    found = llm.generate(PROMPTS, params)
    assert [each.outputs for each in found] == [each.outputs for each in plain]
    rate = accepted(found) / sum(each.speculation.steps for each in found)
    assert rate > 0.8 if knows else rate < 0.4
    assert runner_of(llm).arena.used == 0, "both gave their memory back"


@pytest.mark.parametrize(
    "options",
    [
        {"quantization": "int8", "kv_cache_dtype": "int8", "dtype": "auto"},
        {"growth": "bmc:rows=8"},
        {"threads": 2},
        {"prefill_chunk": 7},
        {"kv_cache_dtype_of_head": "int8"},
        {"speculation": {"quantization": "int8"}},
        {"policy": "streaming:sinks=4,rank_only=true"},
        {"attention": "certified:eps=0.1"},
    ],
    ids=str,
)
def test_ways_to_run_the_model(model: Path, head: Path, options: dict[str, Any]) -> None:
    same = {k: v for k, v in options.items() if k not in ("kv_cache_dtype_of_head", "speculation")}
    plain = load(model, **same).generate(PROMPTS, GREEDY)
    found = drafting(model, head, **options).generate(PROMPTS, GREEDY)
    assert [each.outputs for each in found] == [each.outputs for each in plain]
    assert accepted(found) > 5


@pytest.mark.parametrize(
    "variant", ["gemma3", "mistral", "qwen3-next", "lfm2", "olmoe", "deepseek-v3", "opt"]
)
def test_families(tmp_path: Path, method: str, variant: str) -> None:
    """Windows, states, experts, joint rows, learned positions: the head is the same."""
    folder = tiny.make(tmp_path / "model", variant, tokenizer=True)
    own = MAKERS[method].make(tmp_path / "head", folder)
    plain = load(folder).generate(PROMPTS, GREEDY)
    found = drafting(folder, own, max_num_seqs=2).generate(PROMPTS, GREEDY)
    assert [each.outputs for each in found] == [each.outputs for each in plain]
    assert all(each.speculation.num_draft_tokens for each in found)


@pytest.mark.parametrize("width", [1, 3])
def test_drawn_results_do_not_depend_on_the_batch(model: Path, head: Path, width: int) -> None:
    params = [dataclasses.replace(DRAWN, seed=seed) for seed in range(4)]
    alone = drafting(model, head, max_num_seqs=1, width=width).generate(PROMPTS, params)
    assert accepted(alone) > 0
    batch = drafting(model, head, max_num_seqs=4, width=width).generate(PROMPTS, params)
    assert [each.outputs for each in batch] == [each.outputs for each in alone]
    assert [each.speculation for each in batch] == [each.speculation for each in alone]


def test_requests_that_had_to_wait(model: Path, head: Path) -> None:
    """Their texts are run again, and the head follows again."""
    small: dict[str, Any] = {"growth": "bmc:rows=8"}
    params = dataclasses.replace(GREEDY, max_tokens=60)
    plain = load(model, **small).generate(PROMPTS, params)
    probe = runner_of(drafting(model, head, **small))
    sequence = probe.open("probe", 128)
    probe.prefill(sequence, [*PROMPTS[0], *PROMPTS[1]])
    limit = 2 * sequence.cache.bytes + sequence.cache.bytes // 4
    probe.close(sequence)
    tight = drafting(model, head, max_num_seqs=4, kv_cache_bytes=limit, **small)
    found = tight.generate(PROMPTS, params)
    assert tight.loop.stats().preemptions > 0
    assert [each.outputs for each in found] == [each.outputs for each in plain]
    assert accepted(found) > 20


def test_beginnings_from_other_caches(model: Path, head: Path) -> None:
    """The head's rows come along: texts and drafts are those of an engine that has seen nothing."""

    def answer(llm: LLM, prompt: list[int], **options: bool) -> Request:
        request = llm.maker.make(prompt, dataclasses.replace(DRAWN, temperature=1.0), **options)
        run(llm, [request])
        return request

    llm = drafting(model, head, growth="upfront")
    llm.loop.retained.limit, llm.loop.retained.least = None, 8
    first = answer(llm, PROMPTS[0], reuse=True)
    text = [*PROMPTS[0], *first.samples[0].tokens]
    later = [PROMPTS[0], [*PROMPTS[0][:40], 9, 8, 7], text, [*text[:70], 5], [*PROMPTS[0], 4]]
    for prompt in later:
        found = answer(llm, prompt, reuse=True)
        wanted = answer(drafting(model, head, growth="upfront"), prompt)
        assert found.cached > 30
        assert found.samples[0].tokens == wanted.samples[0].tokens
        assert found.samples[0].drafts == wanted.samples[0].drafts


def test_several_samples_of_a_prompt(model: Path, head: Path) -> None:
    llm = drafting(model, head)
    (found,) = llm.generate(PROMPTS[:1], dataclasses.replace(DRAWN, n=3))
    (alone,) = llm.generate(PROMPTS[:1], DRAWN)
    assert found.outputs[0] == alone.outputs[0]
    assert found.speculation.num_draft_tokens > 3 * 40, "each has the prompt's rows"


def test_a_session(model: Path, head: Path) -> None:
    """A turn goes on with the head's rows of those before it, also where a turn is taken back."""
    llm, plain = drafting(model, head), load(model)
    with llm.session() as session, plain.session() as other:
        prompt = PROMPTS[0][:20]
        for turn in range(4):
            one, two = last_outputs((session, other), prompt, GREEDY)
            assert one.outputs == two.outputs
            assert session.tokens == other.tokens
            assert one.speculation.num_draft_tokens > 40, "the head has all rows"
            prompt = [*session.tokens, 8] if turn % 2 else [*session.tokens[:-10], 7]
    assert runner_of(llm).arena.used == 0


def test_a_head_catches_up_after_a_pause(model: Path, head: Path) -> None:
    """Hidden states wait while nothing is drafted, but never many."""
    made: list[int] = []
    waiting: list[int] = []

    class Pausing(Budget):
        def shapes(self, samples: Sequence[DraftingSample], room: Sequence[int]) -> list[Widths]:
            waiting.append(samples[0].sequence.cache.waiting)
            made.append(0 if 2 <= len(made) < 50 else min(room[0], 3))
            return [(1,) * made[-1]]

    params = dataclasses.replace(GREEDY, max_tokens=66)
    prompt = PROMPTS[0][:55]
    plain = load(model).generate([prompt], params)
    llm = drafting(model, head)
    llm.loop.budget = Pausing(llm.config.speculative_config)
    (found,) = llm.generate([prompt], params)
    assert found.outputs == plain[0].outputs
    assert made[50:] and sum(made[50:]) > 5
    assert 30 < max(waiting[1:]) <= 64


def test_rows_beyond_the_limit_are_not_drafted(model: Path, head: Path) -> None:
    params = dataclasses.replace(GREEDY, max_tokens=60)
    plain = load(model, max_model_len=80).generate(PROMPTS[:1], params)
    (found,) = drafting(model, head, max_model_len=80).generate(PROMPTS[:1], params)
    assert found.outputs == plain[0].outputs
    assert len(found.outputs[0].token_ids) == 20


def test_budgets_stop_drafts_that_are_never_right(model: Path, untrained: Path) -> None:
    params = dataclasses.replace(GREEDY, max_tokens=60)
    always = drafting(model, untrained).generate(PROMPTS, params)
    llm = drafting(model, untrained, speculation={"adaptive": True})
    found = llm.generate(PROMPTS, params)
    assert [each.outputs for each in found] == [each.outputs for each in always]
    made, all_ = (sum(x.speculation.num_draft_tokens for x in each) for each in (found, always))
    assert made < all_ / 4


@pytest.mark.parametrize(
    "changes",
    [
        {"repetition_penalty": 1.4},
        {"presence_penalty": 1.0, "frequency_penalty": 0.5},
        {"allowed_token_ids": [9, 30, 31, 32, 200, 201]},
        {"bad_words": ["a"]},
        {"structured_outputs": {"regex": "[ab1-9]{40}"}},
        {"min_p": 0.1},
    ],
    ids=str,
)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_what_requests_ask_for(
    model: Path, head: Path, temperature: float, changes: dict[str, Any]
) -> None:
    params = dataclasses.replace(DRAWN, temperature=temperature, top_k=0, **changes)
    (found,) = drafting(model, head).generate(PROMPTS[:1], params)
    if temperature:
        (again,) = drafting(model, head, max_num_seqs=3).generate(PROMPTS[:1], params)
        assert again.outputs == found.outputs
        if allowed := changes.get("allowed_token_ids"):
            assert set(found.outputs[0].token_ids) <= set(allowed)
    else:
        (plain,) = load(model).generate(PROMPTS[:1], params)
        assert found.outputs == plain.outputs
    assert found.speculation.num_draft_tokens > 0


_STATISTIC = SamplingParams(temperature=1.0, top_k=5, max_tokens=4, ignore_eos=True)
_CRITICAL = 60  # of chi-squared with at most 25 degrees of freedom: once in 10 000 times


def statistic_of(llm: LLM, prompt: list[int], trials: int = 600) -> tuple[float, int]:
    """Return chi-squared of the second and third token, and the accepted drafts."""
    runner = runner_of(load(Path(llm.config.model)))
    counts: dict[tuple[int, ...], int] = {}
    made = 0
    params = [dataclasses.replace(_STATISTIC, seed=seed) for seed in range(trials)]
    for output in llm.generate([prompt] * trials, params):
        made += output.speculation.num_accepted_tokens
        pair = tuple(output.outputs[0].token_ids[1:3])
        counts[pair] = counts.get(pair, 0) + 1

    def after(*more: int) -> np.ndarray:
        sequence = runner.open("exact", 128)
        logits = runner.prefill(sequence, [*prompt, *more])
        runner.close(sequence)
        return probabilities(logits, SamplingState(_STATISTIC, 0))

    expected: dict[tuple[int, ...], float] = {}
    for one in np.flatnonzero(p := after()):
        for two in np.flatnonzero(q := after(one)):
            for three in np.flatnonzero(r := after(one, two)):
                key = int(two), int(three)
                expected[key] = expected.get(key, 0) + float(p[one] * q[two] * r[three]) * trials
    assert set(counts) <= set(expected)
    likely = {key: value for key, value in expected.items() if value > 15}
    rest = trials - sum(likely.values())
    other = trials - sum(counts.get(key, 0) for key in likely)
    terms = [(counts.get(key, 0) - value) ** 2 / value for key, value in likely.items()]
    return sum(terms) + (other - rest) ** 2 / max(rest, 15), made


@pytest.mark.parametrize("width", [1, 3])
def test_drawn_drafts_keep_the_distribution(model: Path, head: Path, width: int) -> None:
    statistic, made = statistic_of(drafting(model, head, width=width), PROMPTS[0])
    assert statistic < _CRITICAL and made > 100


def test_the_law_bites(
    model: Path, head: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts that are the most likely tokens, but count as drawn, change the distribution."""
    kind = ByHead if method == "eagle3" else ByBlock

    def propose(
        self: Any, samples: Sequence[DraftingSample], shapes: Sequence[Widths]
    ) -> list[Tree]:
        drawn = honest(self, samples, shapes)
        return [
            dataclasses.replace(
                tree,
                tokens=tuple(int(np.argmax(q)) for q in tree.draft_probs or () if q is not None),
            )
            for tree in drawn
        ]

    honest = kind.propose
    monkeypatch.setattr(kind, "propose", propose)
    assert statistic_of(drafting(model, head), PROMPTS[0], 1800)[0] > 2 * _CRITICAL


@pytest.mark.parametrize("method", ["dspark"], indirect=True)
def test_the_law_bites_where_drafts_follow_each_other(
    model: Path, head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts count as drawn from what their rows say, without what the token before adds."""

    def propose(
        self: Any, samples: Sequence[DraftingSample], shapes: Sequence[Widths]
    ) -> list[Tree]:
        drawn = honest(self, samples, shapes)
        with monkeypatch.context() as patch:
            patch.setattr(BlockHead, "after", lambda self, token, logits: (logits, None))
            rows = honest(self, samples, shapes)
        return [
            dataclasses.replace(tree, draft_probs=other.draft_probs)
            for tree, other in zip(drawn, rows, strict=True)
        ]

    honest = ByBlock.propose
    monkeypatch.setattr(ByBlock, "propose", propose)
    assert statistic_of(drafting(model, head), PROMPTS[0], 1800)[0] > 2 * _CRITICAL


def test_adapters(model: Path, head: Path, tmp_path: Path) -> None:
    """The head reads the hidden states that an adapter has changed; others' texts stay."""
    lora = adapters.write(tmp_path / "lora", model, adapters.TARGETS["llama"], rank=4, seed=1)
    names = [None, "lora", None, "lora"]
    options: dict[str, Any] = {"adapters": {"lora": str(lora)}}
    plain = load(model, **options).generate(PROMPTS, GREEDY, adapter=names)
    found = drafting(model, head, **options).generate(PROMPTS, GREEDY, adapter=names)
    assert [each.outputs for each in found] == [each.outputs for each in plain]
    assert all(each.speculation.num_draft_tokens > 10 for each in found)


def test_it_needs_a_head() -> None:
    with pytest.raises(InputError) as error:
        Config.create("model", speculative_config={"method": "eagle3"})
    assert str(error.value) == (
        "speculator 'eagle3': needs 'model': a folder or a hub id of a head that was trained for "
        "the model; `suffice train-drafter` trains one"
    )
    assert Eagle3("folder") == Eagle3(model="folder")
    with pytest.raises(InputError) as error:
        Config.create("model", speculative_config="dflash")
    assert str(error.value) == (
        "speculator 'dflash': needs 'model': a folder or a hub id of a head that was trained for "
        "the model"
    )
    assert DFlash("folder") == DFlash(model="folder")
