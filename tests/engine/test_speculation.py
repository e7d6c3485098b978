"""Drafts change when tokens come, never which: on a model that is a function of the history."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from fake_engine import EOS, FakeRunner, V, fake_llm, mixed, runner_of, scripted
from suffice import LLM, SamplingParams, sampling
from suffice.sampling import SamplingState, draw, probabilities
from suffice.speculate import SPECULATORS, DraftingSample, Tree, Widths
from suffice.speculate.acceptance import draft_number

Guess = Callable[[list[int], int], Tree]


class Guesses:
    """Drafts by a function of the text and of how many may be drafted."""

    def __init__(self, guess: Guess) -> None:
        self.guess = guess
        self.forgotten = 0

    def propose(self, samples: Sequence[DraftingSample], shapes: Sequence[Widths]) -> list[Tree]:
        texts = [[*sample.state.prompt, *sample.state.output] for sample in samples]
        return [self.guess(text, sum(shape)) for text, shape in zip(texts, shapes, strict=True)]

    def forget(self, sample: DraftingSample) -> None:
        self.forgotten += 1


def right_until(places: int) -> Guess:
    """Draft what greedy decoding gives for some places, and then something else."""

    def guess(text: list[int], most: int) -> Tree:
        tokens: list[int] = []
        for place in range(most):
            best = int(mixed([*text, *tokens]).argmax())
            tokens.append(best if place < places else (best + 1) % V)
        return Tree.chain(tokens)

    return guess


def bushy(text: list[int], most: int) -> Tree:
    """Two tokens after each token, one of them often the right one."""
    rng = random.Random(len(text))
    tokens: list[int] = []
    parents: list[int] = []
    texts = {-1: text}
    for parent in range(-1, most):
        best = int(mixed(texts[parent]).argmax())
        for token in rng.sample([best, (best + 3) % V], 2):
            if len(tokens) < most:
                texts[len(tokens)] = [*texts[parent], token]
                tokens.append(token)
                parents.append(parent)
        if len(tokens) == most:
            break
    return Tree(tuple(tokens), tuple(parents))


GUESSES: dict[str, Guess] = {
    "nothing": lambda text, most: Tree(),
    "wrong": right_until(0),
    "two": right_until(2),
    "right": right_until(99),
    "bushy": bushy,
}


def speculating(guess: Guess, drafts: int = 5, rule: Any = mixed, **options: Any) -> LLM:
    llm = fake_llm(rule, **options)
    runner_of(llm).proposer = Guesses(guess)
    runner_of(llm).most_drafts = drafts
    return llm


GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logprobs=2)
PARAMS = [
    GREEDY,
    SamplingParams(seed=1, max_tokens=20, ignore_eos=True, logprobs=1),
    SamplingParams(seed=2, max_tokens=9, temperature=0.6, repetition_penalty=1.3),
    SamplingParams(seed=3, max_tokens=20, top_k=4, presence_penalty=1.0, stop=["ab", "dx"]),
    SamplingParams(temperature=0, max_tokens=20, min_tokens=6, stop_token_ids=[3, 5, 8]),
    SamplingParams(seed=4, n=3, max_tokens=12, bad_words=["abc"], logprobs=0),
]


@pytest.mark.parametrize("guess", GUESSES)
@pytest.mark.parametrize("size", [3, 8])
def test_outputs_are_those_without_drafts(guess: str, size: int) -> None:
    """Tokens, texts, stops and log probabilities; sampled ones too, for the same seed."""
    prompts = [[3], [4, 5], [6, 7, 8], [9], [3, 3], [5]]
    plain = fake_llm(max_num_seqs=size).generate(prompts, PARAMS)
    llm = speculating(GUESSES[guess], max_num_seqs=size)
    outputs = llm.generate(prompts, PARAMS)
    assert [each.outputs for each in outputs] == [each.outputs for each in plain]
    assert runner_of(llm).open_sequences == []
    proposer = runner_of(llm).proposer
    assert isinstance(proposer, Guesses) and proposer.forgotten == 8


def test_accepted_drafts_save_steps() -> None:
    llm = speculating(right_until(2))
    (output,) = llm.generate([[3]], GREEDY)
    counts = output.speculation
    assert len(runner_of(llm).batches) == 7 == counts.steps, "19 tokens after the first, 3 a step"
    assert counts.num_drafts == 6, "the last token needs none"
    assert counts.num_accepted_tokens == 12
    assert counts.num_accepted_tokens_per_pos == [6, 6, 0, 0, 0]
    assert counts.acceptance_rates_per_pos == [1, 1, 0, 0, 0]
    assert counts.mean_acceptance_length == 3
    assert counts.num_draft_tokens == 5 * 5 + 3
    assert counts.draft_acceptance_rate == 12 / 28


def test_without_drafts_nothing_is_counted() -> None:
    counts = fake_llm().generate([[3]], GREEDY)[0].speculation
    assert (counts.steps, counts.num_drafts, counts.num_accepted_tokens_per_pos) == (19, 0, [])
    assert counts.mean_acceptance_length == counts.tokens_per_step == 1.0
    assert counts.draft_acceptance_rate == 0.0


def test_a_step_chooses_for_all_requests_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    sample = sampling.sample

    def counted(logits: np.ndarray, states: Sequence[SamplingState], **known: Any) -> list[Any]:
        calls.append(len(states))
        return sample(logits, states, **known)

    monkeypatch.setattr(sampling, "sample", counted)
    fake_llm(scripted(*range(3, 9))).generate([[0], [1], [2]], GREEDY)
    prompts, steps = calls[:3], calls[3:]
    assert prompts == [1, 1, 1] and steps and set(steps) == {3}


def test_each_request_of_a_batch_accepts_its_own() -> None:
    llm = speculating(lambda text, most: right_until(text[0])(text, most), max_num_seqs=4)
    outputs = llm.generate([[0], [1], [2], [4]], GREEDY)
    assert [each.speculation.mean_acceptance_length for each in outputs] == [1, 2, 3, 19 / 4]
    plain = fake_llm().generate([[0], [1], [2], [4]], GREEDY)
    assert [each.outputs for each in outputs] == [each.outputs for each in plain]


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("stop", [{"stop": "END"}, {"stop_token_ids": [11]}, {"max_tokens": 3}])
def test_a_run_of_drafts_ends_where_the_text_does(include: bool, stop: dict[str, Any]) -> None:
    tokens = (8, 12, 11, 4, 6, 8)

    def knowing(text: list[int], most: int) -> Tree:
        return Tree.chain(tokens[len(text) - 1 :][:most])

    params = SamplingParams(
        **{"temperature": 0, "max_tokens": 9, "include_stop_str_in_output": include, **stop}
    )
    (plain,) = fake_llm(scripted(*tokens)).generate([2], params)
    llm = speculating(knowing, rule=scripted(*tokens))
    (output,) = llm.generate([2], params)
    assert output.outputs == plain.outputs
    assert len(output.outputs[0].token_ids) == 3
    assert len(runner_of(llm).batches) == 1


def test_drafts_stay_within_what_is_wanted_and_the_context() -> None:
    asked: list[int] = []

    def noting(text: list[int], most: int) -> Tree:
        asked.append(most)
        return right_until(1)(text, most)

    speculating(noting).generate([[3]], dataclasses.replace(GREEDY, max_tokens=6))
    assert asked == [4, 2, 0]
    asked.clear()
    llm = speculating(noting)
    (output,) = llm.generate([[3] * 59], SamplingParams(temperature=0, max_tokens=None))
    assert asked[0] == 3, "59 and a first token of 64"
    assert output.outputs[0].finish_reason in ("length", "stop")


def test_streamed_text_comes_step_by_step() -> None:
    plain = fake_llm().generate("ab", GREEDY)[0].outputs[0]
    pieces = list(speculating(right_until(2)).stream("ab", GREEDY))
    assert "".join(delta for delta, _ in pieces) == plain.text
    assert len(pieces) == 1 + 7


def test_a_session_keeps_what_was_accepted() -> None:
    llm, plain = speculating(bushy), fake_llm()
    session, other = llm.session(), plain.session()
    prompt = [3, 4]
    for _ in range(2):
        one = list(session.stream(prompt, GREEDY))[-1][1]
        two = list(other.stream(prompt, GREEDY))[-1][1]
        assert one.outputs == two.outputs
        assert one.num_cached_tokens == two.num_cached_tokens
        assert session.tokens == other.tokens
        prompt = [*session.tokens, 8]


def test_an_interrupted_step_leaves_a_usable_cache() -> None:
    llm = speculating(right_until(2))
    session = llm.session()
    runner_of(llm).interrupt_after = 2
    with pytest.raises(KeyboardInterrupt):
        list(session.stream([3, 4], GREEDY))
    sequence = runner_of(llm).open_sequences[0]
    assert sequence.cache.tokens == session.tokens and len(session.tokens) == 2 + 6


def test_a_request_without_memory_does_not_end_the_others() -> None:
    llm = speculating(right_until(9), memory=40, max_num_seqs=2)
    long, short = (dataclasses.replace(GREEDY, max_tokens=n) for n in (40, 4))
    outputs = llm.generate([[3], [4, 5]], [long, short])
    assert outputs[1].error is None
    assert outputs[1].outputs == fake_llm().generate([[4, 5]], short)[0].outputs


class Drawn(Guesses):
    """Draws drafts from a distribution that is not the model's."""

    def __init__(self) -> None:
        super().__init__(right_until(0))

    def propose(self, samples: Sequence[DraftingSample], shapes: Sequence[Widths]) -> list[Tree]:
        return [self._chain(s.state, sum(shape)) for s, shape in zip(samples, shapes, strict=True)]

    def _chain(self, state: SamplingState, count: int) -> Tree:
        tokens: list[int] = []
        probs: list[np.ndarray] = []
        for _ in range(count):
            text = [*state.prompt, *state.output, *tokens]
            logits = 0.7 * mixed(text) + 0.3 * mixed([*text, 1])
            probs.append(probabilities(logits, SamplingState(state.params, 0)))
            position = len(state.output) + len(tokens)
            tokens.append(draw(probs[-1], draft_number(state, position)))
        return Tree.chain(tokens, probs)


def test_drawn_drafts_keep_the_distribution() -> None:
    """Of the third token, whose first two may have been drafts, over many seeds."""
    trials, rounds = 800, np.zeros(V)
    llm = fake_llm(max_num_seqs=1)
    runner_of(llm).proposer, runner_of(llm).most_drafts = Drawn(), 3
    params = SamplingParams(max_tokens=3, ignore_eos=True, top_k=5)
    accepted = 0
    for seed in range(trials):
        (output,) = llm.generate([[3]], dataclasses.replace(params, seed=seed))
        rounds[output.outputs[0].token_ids[2]] += 1
        accepted += output.speculation.num_accepted_tokens
    expected = exact_third(params) * trials
    likely = expected > 5
    statistic = ((rounds - expected)[likely] ** 2 / expected[likely]).sum()
    assert accepted > trials / 2
    assert statistic < 45  # at most 13 degrees of freedom, once in 30 000 times
    assert rounds[expected == 0].sum() == 0


def exact_third(params: SamplingParams) -> np.ndarray:
    total = np.zeros(V)

    def after(*text: int) -> np.ndarray:
        return probabilities(mixed([*text]), SamplingState(params, 0))

    for first, p in enumerate(after(3).tolist()):
        for second, q in enumerate(after(3, first).tolist()):
            if p * q:
                total += p * q * after(3, first, second)
    return total


FROM_TEXT = ("ngram", "suffix")
NO_MODELS: Any = None  # they need none


def test_every_method_is_tested() -> None:
    # test_models_that_draft.py, test_drafts_of_heads.py (dflash, too) and test_mtp.py
    elsewhere = {"none", "draft_model", "self", "dflash", "eagle3", "mtp"}
    assert set(SPECULATORS.names()) == elsewhere | set(FROM_TEXT)


@pytest.mark.parametrize("method", FROM_TEXT)
def test_a_text_that_repeats_itself_comes_faster(method: str) -> None:
    loop = scripted(*([3, 4, 6, 8] * 8))
    technique = SPECULATORS.build(method)
    llm = fake_llm(loop)
    runner = runner_of(llm)
    runner.proposer, runner.most_drafts = (
        technique.proposer(NO_MODELS),
        technique.num_speculative_tokens,
    )
    (output,) = llm.generate([2], dataclasses.replace(GREEDY, max_tokens=33, ignore_eos=False))
    (plain,) = fake_llm(loop).generate(
        [2], dataclasses.replace(GREEDY, max_tokens=33, ignore_eos=False)
    )
    assert output.outputs == plain.outputs
    assert output.outputs[0].token_ids[-1] == EOS
    assert output.speculation.mean_acceptance_length > 2


def test_a_broken_commit_is_caught() -> None:
    """The law bites: a runner that keeps a refused draft gives other tokens."""

    class Careless(FakeRunner):
        def commit(self, sequence: Any, path: list[int]) -> None:
            super().commit(sequence, list(range(min(len(path) + 1, len(sequence.tentative)))))

    llm = speculating(right_until(1))
    careless = Careless(mixed)
    careless.proposer, careless.most_drafts = Guesses(right_until(1)), 5
    broken = LLM.from_parts(llm.config, careless, llm.tokenizer)
    assert (
        broken.generate([[3]], GREEDY)[0].outputs[0].token_ids
        != llm.generate([[3]], GREEDY)[0].outputs[0].token_ids
    )
