"""Log probabilities of prompts: those of the model, once, and the same bits however it is run."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hf_reference
import tiny
from engines import run, sharing
from fake_engine import fake_llm, mixed, runner_of
from oracle import assert_matches
from suffice import LLM, SamplingParams, native
from suffice.engine.memory import Memory
from suffice.engine.protocol import Rows
from suffice.engine.request import Request
from suffice.engine.service import Engine
from suffice.engine.token_log import TokenLog
from suffice.engine.work import Delta, Work
from suffice.errors import InputError

WORDS = "To be, or not to be, that is the question 0123456789. "
SCORED = SamplingParams(max_tokens=4, seed=1, ignore_eos=True, logprobs=1, prompt_logprobs=2)
PLAIN = dataclasses.replace(SCORED, prompt_logprobs=None)
ALONE = SamplingParams(max_tokens=0, prompt_logprobs=0)
LENGTHS = (131, 40, 97, 2)  # of prompts that begin alike

load = sharing(threads=1, dtype="float32", kv_cache_dtype="float32")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def folder(variant: str) -> Path:
        if variant not in made:
            made[variant] = tiny.make(
                tmp_path_factory.mktemp(variant),
                variant,
                tokenizer=True,
                max_position_embeddings=512,
            )
        return made[variant]

    return folder


@pytest.mark.parametrize("variant", ["llama", "gemma2", "qwen3-moe", "gpt2"])
@pytest.mark.parametrize("chunk", [512, 9])
def test_they_are_those_of_pytorch(
    models: Callable[[str], Path], tmp_path: Path, variant: str, chunk: int
) -> None:
    """In a vocabulary of 200 tokens: each token, the three most likely ones, and the rank."""
    tokens = tuple(np.random.default_rng(5).integers(3, tiny.VOCABULARY, 70).tolist())
    folder = models(variant) if variant != "gpt2" else tiny.make(tmp_path, variant, tokenizer=True)
    exact, single = (
        each[:-1].log_softmax(-1) for each in hf_reference.exact_and_single(folder, tokens)
    )
    llm = load(folder, prefill_chunk=chunk)
    params = dataclasses.replace(SCORED, prompt_logprobs=3)
    (output,) = llm.generate([list(tokens)], params)
    assert output.prompt_logprobs is not None
    first, *found = output.prompt_logprobs
    assert first is None and len(found) == len(tokens) - 1
    own = torch.tensor(tokens[1:])[:, None]
    logs = [entry[t].logprob for entry, t in zip(found, tokens[1:], strict=True) if entry]
    assert_matches(np.array(logs), exact.gather(1, own)[:, 0], single.gather(1, own)[:, 0])
    ranked = [sorted((e or {}).values(), key=lambda each: each.rank)[:3] for e in found]
    assert all([each.rank for each in row] == [1, 2, 3] for row in ranked)
    tops = np.array([[each.logprob for each in row] for row in ranked])
    assert_matches(tops, exact.topk(3).values, single.topk(3).values)
    ranks = (exact > exact.gather(1, own)).sum(1) + 1
    assert [e[t].rank for e, t in zip(found, tokens[1:], strict=True) if e] == ranks.tolist()
    texts = [e[t].decoded_token for e, t in zip(found, tokens[1:], strict=True) if e]
    assert texts == [llm.tokenizer.decode([token]) for token in tokens[1:]]


def test_a_score_is_that_of_each_token(models: Callable[[str], Path]) -> None:
    llm = load(models("llama"))
    tokens = llm.tokenizer.encode(WORDS)
    (output,) = llm.generate([tokens], SCORED)
    found, short = llm.score([WORDS, tokens[:2]], use_tqdm=False)
    pairs = zip(tokens, output.prompt_logprobs or (), strict=True)
    assert found == [entry[token].logprob for token, entry in pairs if entry]
    assert short == found[:1] and llm.score([tokens[:1]], use_tqdm=False) == [[]]
    with pytest.raises(InputError, match="largest logit is inf"):
        fake_llm(lambda history: mixed(history) + np.inf).score([3, 4], use_tqdm=False)


def prompts(llm: LLM) -> list[list[int]]:
    words = llm.tokenizer.encode(WORDS * 9)
    return [[*words[: length - 1], 7 + at] for at, length in enumerate(LENGTHS)]


def given(request: Request) -> Any:
    output = request.output()
    assert output.error is None
    return output.prompt_logprobs, output.outputs


def alone(folder: Path, **options: Any) -> list[Any]:
    """What each prompt gives in an engine where nothing else runs or ran."""
    llm = load(folder, **options)
    found = [llm.generate([prompt], SCORED)[0] for prompt in prompts(llm)]
    assert all(len(each.prompt_logprobs or ()) == len(each.prompt_token_ids) for each in found)
    return [(each.prompt_logprobs, each.outputs) for each in found]


SETTINGS: list[dict[str, Any]] = [
    {},
    {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
    {"quantization": "int8:act_bits=8", "attention": "tiers:eps=0.5,skip=0.01"},
    {"policy": "snapkv:ratio=0.4,window=8"},
    {"policy": "h2o:ratio=0.4"},
    {"speculative_config": "ngram:adaptive=false"},
]


def check_cuts(folder: Path, chunk: int, threads: int, options: dict[str, Any]) -> None:
    llm = load(folder, prefill_chunk=chunk, threads=threads, **options)
    requests = [
        llm.maker.make(prompt, params) for prompt in prompts(llm) for params in (SCORED, PLAIN)
    ]
    run(llm, requests)
    assert [given(each) for each in requests[::2]] == alone(folder, **options)
    assert {given(each)[0] for each in requests[1::2]} == {None}


@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_cuts_neighbours_and_threads_change_no_bit(
    models: Callable[[str], Path], options: dict[str, Any]
) -> None:
    for chunk, threads in ((7, 1), (30, min(2, native.cores())), (128, 1)):
        check_cuts(models("llama"), chunk, threads, options)
    check_cuts(models("qwen3-moe"), 40, 1, {})


def test_rows_of_another_token_would_show(
    models: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The law bites: the rows of a part in another order."""
    genuine = TokenLog.add_prompt
    monkeypatch.setattr(
        TokenLog, "add_prompt", lambda self, request, rows: genuine(self, request, rows[::-1])
    )
    with pytest.raises(AssertionError):
        check_cuts(models("llama"), 7, 1, {})


def check_hits(folder: Path) -> list[Request]:
    """Requests that find their beginning in the store, are parked halfway, and leave it others."""
    llm = load(folder, prefill_chunk=16)
    llm.loop.retained.limit, llm.loop.retained.least = None, 16
    made = [
        llm.maker.make(prompt, params, reuse=True)
        for params in (PLAIN, SCORED, PLAIN)
        for prompt in prompts(llm)
    ]
    half = len(LENGTHS)

    def park(step: int) -> None:
        running = llm.loop.scheduler.running
        if step % 2 == 0 and step < 40 and running:
            llm.loop.memory.park(running[step % len(running)])

    for few in (made[:half], made[half : 2 * half], made[2 * half :]):
        run(llm, few, park)
    wanted = alone(folder)
    assert [given(each) for each in made[half : 2 * half]] == wanted
    for plain in (made[:half], made[2 * half :]):
        assert [given(each)[1] for each in plain] == [outputs for _, outputs in wanted]
    assert sum(each.preemptions for each in made[half : 2 * half]) > 2
    return made


def test_what_is_found_in_the_store_changes_no_bit(models: Callable[[str], Path]) -> None:
    made = check_hits(models("llama"))
    assert all(each.cached > 16 for each in made[-len(LENGTHS) : -1]), "they leave rows to others"


def test_rows_that_were_never_scored_would_show(
    models: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The law bites: a beginning from the store has no logits."""
    genuine = Memory._first

    def careless(self: Memory, request: Request) -> Any:
        scores, request.scores = request.scores, None
        found = genuine(self, request)
        request.scores = scores
        return found

    monkeypatch.setattr(Memory, "_first", careless)
    with pytest.raises(AssertionError):
        check_hits(models("llama"))


def test_a_session_scores_a_prompt_that_it_holds(models: Callable[[str], Path]) -> None:
    llm = load(models("llama"))
    prompt = prompts(llm)[1]
    with llm.session() as session:
        (*_, (_, first)) = session.stream(prompt, PLAIN)
        (*_, (_, again)) = session.stream(prompt, SCORED)
        (*_, (_, last)) = session.stream(prompt, PLAIN)
    assert (first.num_cached_tokens, again.num_cached_tokens) == (0, 0)
    assert last.num_cached_tokens == len(prompt) - 1
    assert (again.prompt_logprobs, again.outputs) == alone(models("llama"))[1]


def test_a_step_has_no_more_logits_than_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = fake_llm()
    genuine, counts = llm.runner.run, list[tuple[int, int]]()

    def noted(batch: list[Rows]) -> Any:
        counts.append((sum(len(rows.tokens) for rows in batch), sum(rows.count for rows in batch)))
        return genuine(batch)

    monkeypatch.setattr(llm.runner, "run", noted)
    (scored, plain) = llm.generate([[3, 4] * 25, [4, 3] * 25], [ALONE, PLAIN], use_tqdm=False)
    assert len(scored.prompt_logprobs or ()) == 50 and plain.prompt_logprobs is None
    assert max(rows for rows, _ in counts) <= runner_of(llm).tile_rows + 1
    assert sum(count for _, count in counts) == 50 + 1 + PLAIN.max_tokens - 1


def test_no_token_at_all() -> None:
    (output,) = fake_llm().generate([[3, 4, 5]], ALONE)
    (sample,) = output.outputs
    assert (sample.token_ids, sample.text, sample.finish_reason) == ((), "", "length")
    assert output.finished and output.error is None and len(output.prompt_logprobs or ()) == 3
    with pytest.raises(InputError, match="max_tokens=0: must be a whole number of at least 1"):
        SamplingParams(max_tokens=0)


def test_samples_share_the_scores_of_their_prompt() -> None:
    llm, params = fake_llm(), dataclasses.replace(SCORED, n=3)
    (output,) = llm.generate([[3, 4, 5]], params)
    assert output.prompt_logprobs == llm.generate([[3, 4, 5]], SCORED)[0].prompt_logprobs
    assert len({sample.token_ids for sample in output.outputs}) > 1
    (none,) = llm.generate([[3, 4, 5]], dataclasses.replace(ALONE, n=3))
    assert [sample.finish_reason for sample in none.outputs] == ["length"] * 3
    assert runner_of(llm).open_sequences == []


def test_a_prompt_without_log_probabilities_ends_alone() -> None:
    def damaged(history: list[int]) -> Any:
        return mixed(history) + (np.inf if history[:2] == [3, 3] else 0)

    broken, whole = fake_llm(damaged).generate([[3, 3, 4, 5], [4, 4, 4]], SCORED)
    assert broken.error == "the model's largest logit is inf: its weights may be damaged"
    assert broken.prompt_logprobs is None
    assert whole.error is None and len(whole.prompt_logprobs or ()) == 3


def test_too_many_are_refused() -> None:
    with pytest.raises(InputError, match="prompt_logprobs=15: must not be more than 14, the size"):
        fake_llm().generate([[3]], dataclasses.replace(SCORED, prompt_logprobs=15))


def deltas(engine: Engine, work: Work) -> list[Delta]:
    found, done = list[Delta](), threading.Event()

    def take(delta: Delta) -> None:
        found.append(delta)
        if delta.final is not None:
            done.set()

    engine.submit(work, take)
    assert done.wait(20)
    return found


def test_an_engine_tells_them_once_with_the_first_delta() -> None:
    prompt, params = tuple([3, 4] * 20), dataclasses.replace(SCORED, n=2)
    (wanted,) = fake_llm().generate([list(prompt)], params)
    engine = Engine(fake_llm())
    try:
        first, *others = deltas(engine, Work("a", prompt, params))
        entries = [{e.token: e.logprob for e in each} for each in first.prompt_logprobs or ()]
        plain = [{t: e.logprob for t, e in (each or {}).items()} for each in wanted.prompt_logprobs]
        assert entries == plain[1:] and [next(iter(each)) for each in entries] == list(prompt[1:])
        assert all(each.prompt_logprobs is None for each in others)
        tokens = [wanted.outputs[at].token_ids[:2] for at in range(2)]
        rest = deltas(engine, Work("b", prompt, params, known=tuple(tokens)))
        assert all(each.prompt_logprobs is None for each in rest), "the first tokens came with them"
        nothing = deltas(engine, Work("c", prompt, params, known=((), ())))
        assert nothing[0].prompt_logprobs == first.prompt_logprobs
        (only,) = deltas(engine, Work("d", prompt, ALONE))
        assert len(only.prompt_logprobs or ()) == len(prompt) - 1 and only.finish_reason == "length"
    finally:
        engine.close()
