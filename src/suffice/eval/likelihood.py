"""Log likelihoods of continuations, given their contexts.

With c the tokens of a context and x those of a continuation,

    log likelihood      sum of ln p(x[i] | c, x[:i])
    greedy              whether every x[i] is the argmax

Mode `decode` runs the context as a prompt, once for consecutive continuations that share it. The
continuations go through decode steps, where techniques apply, several at a time. The last token of
the context is decoded too, so techniques also affect the first predicted token, often the only one.
Mode `prefill` runs context and continuation as one prompt, once for consecutive pairs that differ
only in their last token, as the answers yes and no.

Tokenization equals lm-evaluation-harness's, so that both score the same tokens.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

import numpy as np

from suffice.arrays import log_softmax
from suffice.engine.llm import LLM
from suffice.engine.protocol import Runner, Tokenizer
from suffice.errors import InputError, unknown
from suffice.eval.modes import MODES
from suffice.eval.perplexity import STEP_ROWS


@dataclass(frozen=True)
class Pair:
    """Tokens of a context and of its continuation.

    Raises:
        InputError: One of them is empty.
    """

    context: list[int]
    continuation: list[int]

    def __post_init__(self) -> None:
        if not self.context or not self.continuation:
            raise InputError(
                f"a context of {len(self.context)} tokens and a continuation of "
                f"{len(self.continuation)}: each needs at least 1"
            )

    @property
    def inputs(self) -> list[int]:
        """The tokens that are run: all but the last, which predicts nothing."""
        return self.context + self.continuation[:-1]


@dataclass(frozen=True)
class Likelihood:
    """Log likelihood of a continuation in nats, and whether greedy decoding generates it."""

    log: float
    greedy: bool


@dataclass(frozen=True)
class LikelihoodPlan:
    """How pairs are run: the mode, and how many are decoded together.

    Raises:
        InputError: The mode is unknown, or `together` is less than 1.
    """

    mode: str = "decode"
    together: int = 8

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise unknown("mode", self.mode, MODES)
        if self.together < 1:
            raise InputError(f"--batch-size={self.together}: must be at least 1 continuation")


def prefix_token(tokenizer: Tokenizer) -> int:
    """Return the token used as an empty context: the tokenizer's BOS, or else its EOS.

    Raises:
        InputError: The tokenizer has neither.
    """
    token = tokenizer.eos_id if tokenizer.bos_id is None else tokenizer.bos_id
    if token is None:
        raise InputError("an empty context: the tokenizer has no token to begin or end a text")
    return token


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the tokens of a text, with a BOS token unless the text already starts with one."""
    begin = tokenizer.special.get("bos_token")
    return tokenizer.encode(text, special=not (begin and text.startswith(begin)))


def encode_pair(tokenizer: Tokenizer, context: str, continuation: str) -> Pair:
    """Return the tokens of a context and of a continuation.

    Both are tokenized as one text and split after as many tokens as the context alone has. Spaces
    at the context's end belong to the continuation.

    Raises:
        InputError: One of them has no token.
    """
    if context:
        before = encode(tokenizer, context.rstrip())
        after = encode(tokenizer, context + continuation)[len(before) :]
    else:
        before = [prefix_token(tokenizer)]
        after = tokenizer.encode(continuation, special=False)
        after = after[1:] if after[:1] == before else after
    return Pair(before, after)


def context_length(llm: LLM) -> int:
    """Return the maximum number of tokens that a model can be run on in both modes."""
    assert llm.config.max_model_len is not None, "the config must be resolved"
    return llm.config.max_model_len


def fitted(pair: Pair, context: int) -> Pair:
    """Return a pair, its context truncated from the left to fit `context` tokens.

    The last token is not run and needs no room.

    Raises:
        InputError: The continuation alone is too long.
    """
    room = context + 1 - len(pair.continuation)
    if room < 1:
        raise InputError(
            f"a continuation of {len(pair.continuation)} tokens does not fit: the context holds "
            f"{context}"
        )
    return Pair(pair.context[-room:], pair.continuation)


def score(
    runner: Runner, pairs: Sequence[Pair], plan: LikelihoodPlan
) -> Generator[tuple[int, Likelihood], None, None]:
    """Yield the index of each pair and its likelihood, in the order in which they finish.

    A likelihood has the same bits whatever the other pairs are.

    Raises:
        OutOfMemory: There is no memory for the pairs that run together.
    """
    if plan.mode == "decode":
        return _decode(runner, pairs, plan.together)
    return _prefill(runner, pairs)


@dataclass(eq=False)
class _Run:
    """A running continuation and its likelihood so far."""

    index: int
    pair: Pair
    sequence: Any
    done: int = 0
    log: float = 0.0
    greedy: bool = True

    @property
    def finished(self) -> bool:
        return self.done == len(self.pair.continuation)

    @property
    def likelihood(self) -> tuple[int, Likelihood]:
        return self.index, Likelihood(self.log, self.greedy)

    def chain(self, limit: int) -> list[int]:
        """Return the next tokens to run, at most `limit`."""
        inputs = [self.pair.context[-1], *self.pair.continuation[:-1]]
        return inputs[self.done : self.done + limit]

    def count(self, logits: np.ndarray) -> None:
        """Add the logits [T, V] of the next T tokens."""
        for row in logits:  # one at a time, so that the order of summation is always the same
            target = self.pair.continuation[self.done]
            self.log += float(log_softmax(row)[target])
            self.greedy = self.greedy and int(row.argmax()) == target
            self.done += 1


def _decode(
    runner: Runner, pairs: Sequence[Pair], together: int
) -> Generator[tuple[int, Likelihood], None, None]:
    """Decode `together` continuations at a time; when one finishes, the next starts."""
    waiting = _started(runner, pairs)
    active: list[_Run] = []
    try:
        while True:
            active += islice(waiting, together - len(active))
            if not active:
                return
            _step(runner, active)
            finished = [run for run in active if run.finished]
            active = [run for run in active if not run.finished]
            for run in finished:
                runner.close(run.sequence)
            yield from (run.likelihood for run in finished)
    finally:
        waiting.close()
        for run in active:
            runner.close(run.sequence)


def _started(runner: Runner, pairs: Sequence[Pair]) -> Generator[_Run, None, None]:
    """Yield a run for each pair, with its context except the last token in the cache."""
    for context, members in groupby(enumerate(pairs), lambda member: member[1].context):
        group = list(members)
        rows = len(context) + max(len(pair.continuation) for _, pair in group) - 1
        start = runner.open("likelihood", rows)
        try:
            if context[:-1]:
                runner.prefill(start, context[:-1])
            for index, pair in group:
                yield _Run(index, pair, runner.fork(start))
        finally:
            runner.close(start)


def _step(runner: Runner, active: list[_Run]) -> None:
    """Run several tokens of each in one step, which is possible because all tokens are known."""
    chains = [run.chain(max(1, STEP_ROWS // len(active))) for run in active]
    for run, chain in zip(active, chains, strict=True):
        runner.reserve(run.sequence, len(chain))
    logits = runner.advance([run.sequence for run in active], chains)
    parts = np.split(logits, np.cumsum([len(chain) for chain in chains])[:-1])
    for run, rows in zip(active, parts, strict=True):
        run.count(rows)


def _prefill(
    runner: Runner, pairs: Sequence[Pair]
) -> Generator[tuple[int, Likelihood], None, None]:
    """Run each pair's inputs as a prompt, once for consecutive pairs that share them."""
    for inputs, members in groupby(enumerate(pairs), lambda member: member[1].inputs):
        sequence = runner.open("likelihood", len(inputs))
        runs = [_Run(index, pair, sequence) for index, pair in members]
        first = min(len(run.pair.context) for run in runs) - 1  # row that predicts something
        try:
            for logits in runner.prefill_all(sequence, inputs, first):
                for run in runs:
                    run.count(logits[max(0, len(run.pair.context) - 1 - first) :])
                first += len(logits)
        finally:
            runner.close(sequence)
        yield from (run.likelihood for run in runs)
