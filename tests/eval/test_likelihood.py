"""Log likelihoods equal transformers', whatever else is run with them; whole_prompts.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hf_reference
from suffice import LLM, SamplingParams
from suffice.errors import InputError, OutOfMemory
from suffice.eval.likelihood import (
    Likelihood,
    LikelihoodPlan,
    Pair,
    encode,
    encode_pair,
    fitted,
    prefix_token,
    score,
)

CONTEXT = "The quick brown fox jumps over the lazy dog; 0123456789 owls look on."
DECODE = [LikelihoodPlan("decode", together) for together in (1, 3, 30)]
PLANS = [*DECODE, LikelihoodPlan("prefill")]


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> LLM:
    return LLM(checkpoint, dtype="float32", kv_cache_dtype="float32", max_model_len=512)


@pytest.fixture(scope="module")
def pairs(llm: LLM) -> list[Pair]:
    """Continuations of unequal lengths, several to a context, some of one token."""
    long, other = llm.tokenizer.encode(CONTEXT), llm.tokenizer.encode("To be, or not")
    ends = [long[3:4], other, long, long[5:12], other[:2], long[7:9]]
    contexts = [long, long, long, other, long[:1], other]
    found = [Pair(context, end) for context, end in zip(contexts, ends, strict=True)]
    return found + [Pair(long * 2, each) for each in ends[:3]]


def scores(llm: LLM, pairs: list[Pair], plan: LikelihoodPlan) -> list[Likelihood]:
    found = dict(score(llm.runner, pairs, plan))
    assert len(found) == len(pairs)
    return [found[index] for index in range(len(pairs))]


def test_it_is_transformers(llm: LLM, checkpoint: Path, pairs: list[Pair]) -> None:
    model = hf_reference.load(checkpoint, torch.float32)
    expected = []
    for pair in pairs:
        tokens = torch.tensor(pair.context + pair.continuation)
        logits = hf_reference.logits(model, tokens)[len(pair.context) - 1 : -1].double()
        targets = torch.tensor(pair.continuation)[:, None]
        expected.append(float(logits.log_softmax(-1).gather(1, targets).sum()))
    for plan in PLANS:
        found = [each.log for each in scores(llm, pairs, plan)]
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-4), plan


def test_a_likelihood_does_not_depend_on_the_others(llm: LLM, pairs: list[Pair]) -> None:
    alone = [scores(llm, [pair], LikelihoodPlan())[0] for pair in pairs]
    for plan in DECODE:
        assert scores(llm, pairs, plan) == alone, plan
    assert scores(llm, pairs[::-1], LikelihoodPlan()) == alone[::-1]


@pytest.mark.parametrize("plan", PLANS)
def test_greedy(llm: LLM, plan: LikelihoodPlan) -> None:
    context = llm.tokenizer.encode(CONTEXT)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    tokens = llm.generate({"prompt_token_ids": context}, params)[0].outputs[0].token_ids
    greedy = list(tokens)
    others = [[*greedy[:at], greedy[at] ^ 1, *greedy[at + 1 :]] for at in (0, 3, 5)]
    found = scores(llm, [Pair(context, end) for end in (greedy, *others)], plan)
    assert [each.greedy for each in found] == [True, False, False, False]


def counted(llm: LLM, monkeypatch: pytest.MonkeyPatch, name: str) -> list[Any]:
    """Return what a method of the runner is going to be called with."""
    calls: list[Any] = []
    method = getattr(llm.runner, name)

    def count(*arguments: Any) -> Any:
        calls.append(arguments)
        return method(*arguments)

    monkeypatch.setattr(llm.runner, name, count)
    return calls


def test_what_is_run(llm: LLM, pairs: list[Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = counted(llm, monkeypatch, "prefill")
    steps = counted(llm, monkeypatch, "advance")
    before = llm.runner.trace.steps
    scores(llm, pairs, LikelihoodPlan("decode", 3))
    # Contexts that follow each other are run once, all but their last token; one has no more.
    long, other = pairs[0].context, pairs[3].context
    assert [tokens for _, tokens in prompts] == [
        each[:-1] for each in (long, other, other, long * 2)
    ]
    rows = sum(len(chain) for _, chains in steps for chain in chains)
    assert rows == sum(len(pair.continuation) for pair in pairs)
    assert all(len(sequences) <= 3 for sequences, _ in steps)
    assert llm.runner.trace.steps - before == len(steps)


def test_answers_of_one_token_share_a_prompt(
    llm: LLM, pairs: list[Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    context, plan = pairs[0].context, LikelihoodPlan("prefill")
    asked = [Pair(context, [5]), Pair(context, [9]), Pair(context[:-1], [context[-1], 7]), pairs[3]]
    alone = [scores(llm, [pair], plan)[0] for pair in asked]
    prompts = counted(llm, monkeypatch, "prefill_all")
    assert scores(llm, asked, plan) == alone, "bit for bit"
    assert [tokens for _, tokens, _ in prompts] == [context, asked[3].inputs]
    # Logits from the first row that predicts something: the third pair's.
    assert [skipped for *_, skipped in prompts] == [len(context) - 2, len(pairs[3].context) - 1]


@pytest.mark.parametrize("skipped", [0, 1, 4, 5, 9, 12, 13])
def test_logits_of_the_last_rows_are_those_of_all(checkpoint: Path, skipped: int) -> None:
    runner = LLM(checkpoint, dtype="float32", prefill_chunk=5).runner
    tokens = list(range(5, 18))
    chunks = [
        list(runner.prefill_all(runner.open("logits", 13), tokens, first)) for first in (0, skipped)
    ]
    assert len(chunks[0]) == len(chunks[1]) > 1
    every, last = map(np.concatenate, chunks)
    assert len(last) == 13 - skipped and np.array_equal(every[skipped:], last)


def test_the_first_token_is_a_decode_step_s(llm: LLM, pairs: list[Pair]) -> None:
    before = llm.runner.trace.copy()
    scores(llm, pairs[:1], LikelihoodPlan())
    after = llm.runner.trace.since(before)
    assert len(pairs[0].continuation) == after.steps == 1 and after.kv_bytes_read > 0


@pytest.mark.parametrize("plan", [LikelihoodPlan("decode", 2), LikelihoodPlan("prefill")])
def test_memory_comes_back(
    llm: LLM, pairs: list[Pair], plan: LikelihoodPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = counted(llm, monkeypatch, "open"), counted(llm, monkeypatch, "fork")
    closed = counted(llm, monkeypatch, "close")
    scores(llm, pairs, plan)
    assert len(closed) == sum(map(len, opened)) > 0
    running = score(llm.runner, pairs, plan)
    next(running)
    running.close()
    assert len(closed) == sum(map(len, opened))

    def fail(*_: Any) -> Any:
        raise OutOfMemory("no")

    for method in ("reserve", "prefill_all"):
        monkeypatch.setattr(llm.runner, method, fail)
    with pytest.raises(OutOfMemory):
        scores(llm, pairs, plan)
    assert len(closed) == sum(map(len, opened))


def test_a_context_is_cut_from_the_left() -> None:
    pair = Pair([1, 2, 3, 4], [5, 6])
    for room, context in ((9, [1, 2, 3, 4]), (5, [1, 2, 3, 4]), (4, [2, 3, 4]), (2, [4])):
        assert fitted(pair, room) == Pair(context, [5, 6])
    with pytest.raises(InputError, match=r"of 2 tokens does not fit: the context holds 1"):
        fitted(pair, 1)


def test_all_of_the_context_can_be_used(llm: LLM) -> None:
    tokens = llm.tokenizer.encode(CONTEXT)
    pair = fitted(Pair(tokens * 40, tokens), 512)
    assert len(pair.context) + len(pair.continuation) == 513
    decoded, prompted = (
        scores(llm, [pair], plan)[0].log for plan in (LikelihoodPlan(), LikelihoodPlan("prefill"))
    )
    assert decoded == pytest.approx(prompted, rel=1e-5)


def test_texts(llm: LLM) -> None:
    tokenizer = llm.tokenizer
    fox, jumps = tokenizer.encode("the fox"), tokenizer.encode(" jumps")
    assert encode_pair(tokenizer, "the fox", " jumps") == Pair(fox, jumps)
    assert encode_pair(tokenizer, "the fox  ", "jumps") == Pair(
        fox, tokenizer.encode("the fox  jumps")[len(fox) :]
    )
    begin = prefix_token(tokenizer)
    assert encode_pair(tokenizer, "", " jumps") == Pair([begin], jumps)
    assert encode_pair(tokenizer, "", "<bos> jumps") == Pair([begin], jumps)
    with pytest.raises(InputError, match=r"^a context of \d tokens and a continuation of 0: each"):
        encode_pair(tokenizer, "the fox", "")


class Letters:
    """A tokenizer of letters that begins every text with token 7."""

    def __init__(self, begin: str | None, end: int | None = None) -> None:
        self.special = {} if begin is None else {"bos_token": begin}
        self.bos_id, self.eos_id = None if begin is None else 7, end

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return [7] * special + [ord(letter) for letter in text]


def test_a_text_begins_once() -> None:
    tokenizer: Any = Letters("^")
    assert encode(tokenizer, "a") == [7, 97] and encode(tokenizer, "^a") == [94, 97]
    assert encode_pair(tokenizer, "a ", "b") == Pair([7, 97], [32, 98])
    assert encode_pair(tokenizer, "", "b") == Pair([7], [98])
    ends: Any = Letters(None, 3)
    assert encode_pair(ends, "", "b") == Pair([3], [98])
    neither: Any = Letters(None)
    with pytest.raises(InputError, match=r"^an empty context: the tokenizer has no token to"):
        encode_pair(neither, "", "b")
