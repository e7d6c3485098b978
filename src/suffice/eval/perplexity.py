"""Perplexity of a text, and the difference that a lossy setting makes.

The text is cut into disjoint windows of equal length. Every token of a window except the first is
predicted from the tokens before it in the window. With x the predicted tokens,

    perplexity      exp(mean nll),  nll = -ln p(x)

A lossy setting Q is compared with a reference P token by token on the same windows, with the
measures of llama.cpp's `llama-perplexity --kl-divergence`:

    ratio           perplexity of Q over that of P: exp(mean (nll_Q - nll_P))
    divergence      KL(P || Q) over the vocabulary: mean, median, 99th and 99.9th percentile
    agreement       fraction of predictions with the same argmax
    change of p     root of the mean square of p_Q(x) - p_P(x)

Mode `decode` runs several windows together through decode steps, where techniques apply. Mode
`prefill` runs each window as a prompt. All tokens of a window are known, so a decode step takes a
few of them at once, like drafts that are all accepted. The bits are those of single steps.

The standard error of a perplexity is that of a mean over tokens. Tokens of a window are not
independent, so the standard error of the ratio is that of a mean over paired windows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from suffice.arrays import log_softmax
from suffice.engine.protocol import Runner, Tokenizer
from suffice.errors import InputError, unknown
from suffice.eval.modes import MODES
from suffice.policy import Policy

PERCENTILES = (50, 99, 99.9)
STEP_ROWS = 24  # tokens of a decode step; more would share each weight but gain little


@dataclass(frozen=True)
class Scores:
    """Logits of some predictions: float32 [R, V], row r predicts a token of `windows[r]`."""

    windows: list[int]
    targets: list[int]
    logits: np.ndarray

    def cut(self, rows: int) -> tuple[Scores, Scores]:
        """Return the first `rows` predictions and the others."""
        return (
            Scores(self.windows[:rows], self.targets[:rows], self.logits[:rows]),
            Scores(self.windows[rows:], self.targets[rows:], self.logits[rows:]),
        )


@dataclass(frozen=True)
class Differences:
    """How R predictions differ from a reference's: its nll, KL divergence, the same argmax [R]."""

    nll: np.ndarray
    divergence: np.ndarray
    same: np.ndarray


@dataclass
class PerplexityTally:
    """Figures so far; `nll` and `reference_nll` have one list of predictions per window."""

    windows: int
    nll: list[list[float]] = field(init=False)
    reference_nll: list[list[float]] = field(init=False)
    divergence: list[float] = field(default_factory=list)
    change: list[float] = field(default_factory=list)  # of p
    same: int = 0  # predictions with the argmax of the reference
    total: float = 0.0  # of nll
    predictions: int = 0  # tokens that were predicted

    def __post_init__(self) -> None:
        self.nll = [[] for _ in range(self.windows)]
        self.reference_nll = [[] for _ in range(self.windows)]

    @property
    def perplexity(self) -> float:
        """Perplexity so far."""
        return math.exp(self.total / self.predictions)

    def add(self, scores: Scores, reference: Scores | None = None) -> None:
        """Add some predictions, with those of the reference for the same tokens if given."""
        logs = log_softmax(scores.logits)
        nll = _nll(logs, scores.targets)
        if reference is None:
            self.take(scores.windows, nll)
            return
        expected = log_softmax(reference.logits)
        differences = Differences(
            _nll(expected, reference.targets),
            (np.exp(expected) * (expected - logs)).sum(-1),
            logs.argmax(-1) == expected.argmax(-1),
        )
        self.take(scores.windows, nll, differences)

    def take(
        self, windows: Sequence[int], nll: np.ndarray, differences: Differences | None = None
    ) -> None:
        """Add what `add` computes of predictions: their nll [R], and those from the reference."""
        for window, loss in zip(windows, nll.tolist(), strict=True):
            self.nll[window].append(loss)
        self.total += float(nll.sum(dtype=np.float64))
        self.predictions += len(nll)
        if differences is None:
            return
        for window, loss in zip(windows, differences.nll.tolist(), strict=True):
            self.reference_nll[window].append(loss)
        # a divergence may be negative by rounding
        self.divergence += differences.divergence.clip(min=0).tolist()
        self.change += (np.exp(-nll) - np.exp(-differences.nll)).tolist()
        self.same += int(differences.same.sum())

    def ratio(self) -> tuple[float, float | None]:
        """Return the ratio of perplexity to the reference's, with its standard error."""
        return _ratio(self.nll, self.reference_nll)

    def result(self) -> PerplexityResult:
        """Return the figures over all predictions.

        Raises:
            InputError: There are no predictions.
        """
        if not self.predictions:
            raise InputError("no token was predicted: there is no perplexity")
        perplexity, error = _perplexity(self.nll)
        against = self._against() if self.divergence else None
        return PerplexityResult(
            sum(map(bool, self.nll)), self.predictions, perplexity, error, against
        )

    def _against(self) -> Against:
        reference, reference_error = _perplexity(self.reference_nll)
        ratio, ratio_error = self.ratio()
        count = len(self.divergence)
        low, high, highest = np.percentile(self.divergence, PERCENTILES).tolist()
        return Against(
            perplexity=reference,
            perplexity_error=reference_error,
            ratio=ratio,
            ratio_error=ratio_error,
            divergence=math.fsum(self.divergence) / count,
            divergence_median=low,
            divergence_99=high,
            divergence_999=highest,
            agreement=self.same / count,
            change=math.sqrt(math.fsum(each * each for each in self.change) / count),
        )


@dataclass(frozen=True)
class Against:
    """Differences between a setting and a reference; the module's docstring defines them."""

    perplexity: float  # of the reference
    perplexity_error: float | None
    ratio: float
    ratio_error: float | None  # None for a single window
    divergence: float  # nats, mean
    divergence_median: float
    divergence_99: float
    divergence_999: float
    agreement: float  # fraction of the predictions
    change: float  # of p, root mean square


@dataclass(frozen=True)
class PerplexityResult:
    """The perplexity of a text."""

    windows: int
    predictions: int
    perplexity: float
    error: float | None  # standard error; None for a single prediction
    against: Against | None = None


@dataclass(frozen=True)
class PerplexityPlan:
    """How a text is cut and run: at most `limit` windows of `window` tokens, `together` at a time.

    When decoding, the first `prompt` tokens of a window are run as a prompt, from which a policy
    may evict. Only the tokens after the prompt are predicted.

    Raises:
        InputError: A number is out of range, or the mode is unknown.
    """

    window: int
    limit: int | None = None
    mode: str = "decode"
    together: int = 8
    prompt: int = 0

    def __post_init__(self) -> None:
        if self.window < 2:
            raise InputError(f"--window={self.window}: must be at least 2 tokens")
        if not 0 <= self.prompt < self.window:
            raise InputError(
                f"--prompt={self.prompt}: must be less than --window={self.window} tokens"
            )
        if self.prompt and self.mode == "prefill":
            raise InputError(
                f"--prompt={self.prompt}: --mode prefill runs whole windows as prompts"
            )
        if self.limit is not None and self.limit < 1:
            raise InputError(f"--limit={self.limit}: must be at least 1 window")
        if self.mode not in MODES:
            raise unknown("mode", self.mode, MODES)
        if self.together < 1:
            raise InputError(f"--batch-size={self.together}: must be at least 1 window")

    @property
    def predictions(self) -> int:
        """Tokens of a window that are predicted."""
        return self.window - max(self.prompt, 1)

    def check(self, policy: Policy) -> None:
        """Require a prompt if a policy evicts at the end of prompts.

        Raises:
            InputError: The policy works on prompts, and there is none.
        """
        if policy.at_prompt and not self.prompt:
            raise InputError(
                f"policy '{type(policy).__name__.lower()}' chooses from a prompt: give --prompt, "
                "the number of tokens of each window to run as one"
            )


def windows_of(
    tokenizer: Tokenizer, text: str, plan: PerplexityPlan, context: int
) -> list[list[int]]:
    """Return the windows of a text; an incomplete window at its end is dropped.

    Each window starts with the BOS token if the tokenizer adds one.

    Raises:
        InputError: A window exceeds the context or the text.
    """
    window = plan.window
    if window > context:
        raise InputError(f"--window={window}: must not be more than the context length, {context}")
    start = tokenizer.encode("")[:1]
    tokens = tokenizer.encode(text, special=False)
    step = window - len(start)
    count = len(tokens) // step
    if len(tokens) + len(start) < 2:
        raise InputError(f"the text has {len(tokens)} tokens: give a longer one")
    if not count:
        raise InputError(
            f"the text has {len(tokens)} tokens: --window={window} must not be more than "
            f"{len(tokens) + len(start)}"
        )
    count = count if plan.limit is None else min(count, plan.limit)
    return [start + tokens[i * step : (i + 1) * step] for i in range(count)]


def measure(
    runner: Runner,
    windows: Sequence[list[int]],
    plan: PerplexityPlan,
    reference: Runner | None = None,
) -> Iterator[PerplexityTally]:
    """Score the windows, several at a time when decoding; yield the tally after each step.

    Raises:
        OutOfMemory: There is no memory for the windows of a group.
    """
    expected = scored(reference, windows, plan) if reference else None
    yield from tallied(scored(runner, windows, plan), expected, len(windows))


def scored(runner: Runner, windows: Sequence[list[int]], plan: PerplexityPlan) -> Iterator[Scores]:
    """Yield the logits of all predictions in the windows.

    Raises:
        OutOfMemory: There is no memory for the windows of a group.
    """
    score = _decode if plan.mode == "decode" else _prefill
    size = plan.together if plan.mode == "decode" else 1
    for first in range(0, len(windows), size):
        yield from score(runner, windows, range(first, min(first + size, len(windows))), plan)


def tallied(
    found: Iterable[Scores], expected: Iterable[Scores] | None, windows: int
) -> Iterator[PerplexityTally]:
    """Add the scores of some windows to a tally, compared with `expected` if given; yield the tally
    after each step.
    """
    tally = PerplexityTally(windows)
    for scores, other in _paired(found, None if expected is None else iter(expected)):
        tally.add(scores, other)
        yield tally


def _paired(
    found: Iterable[Scores], expected: Iterator[Scores] | None
) -> Iterator[tuple[Scores, Scores | None]]:
    """Yield scores with the reference's for the same predictions, however each was split."""
    theirs = None
    for scores in found:
        ours = scores
        while ours.targets:
            if expected and not (theirs and theirs.targets):
                theirs = next(expected)
            rows = min(len(ours.targets), len(theirs.targets)) if theirs else len(ours.targets)
            piece, ours = ours.cut(rows)
            other, theirs = theirs.cut(rows) if theirs else (None, None)
            yield piece, other


def _decode(
    runner: Runner, windows: Sequence[list[int]], group: range, plan: PerplexityPlan
) -> Iterator[Scores]:
    """Decode a group of windows together, up to `STEP_ROWS` tokens per step in all."""
    rows = max(1, STEP_ROWS // len(group))
    sequences: list[Any] = []
    try:
        sequences += (runner.open("perplexity", len(windows[w])) for w in group)
        last = len(windows[group[0]]) - 1  # nothing follows the last token
        for w, sequence in zip(group, sequences, strict=True):
            if plan.prompt:
                logits = runner.prefill(sequence, windows[w][: plan.prompt])
                yield Scores([w], [windows[w][plan.prompt]], logits[None])
        for at in range(plan.prompt, last, rows):
            end = min(at + rows, last)
            for sequence in sequences:
                runner.reserve(sequence, end - at)
            logits = runner.advance(sequences, [windows[w][at:end] for w in group])
            targets = [token for w in group for token in windows[w][at + 1 : end + 1]]
            yield Scores([w for w in group for _ in range(at, end)], targets, logits)
    finally:
        for sequence in sequences:
            runner.close(sequence)


def _prefill(
    runner: Runner, windows: Sequence[list[int]], group: range, plan: PerplexityPlan
) -> Iterator[Scores]:
    """Run a window as a prompt, without its last token, which predicts nothing."""
    (window,) = group
    tokens = windows[window]
    sequence = runner.open("perplexity", len(tokens))
    try:
        at = 1
        for logits in runner.prefill_all(sequence, tokens[:-1]):
            targets = tokens[at : at + len(logits)]
            at += len(logits)
            yield Scores([window] * len(targets), targets, logits)
    finally:
        runner.close(sequence)


def _nll(logs: np.ndarray, targets: list[int]) -> np.ndarray:
    found: np.ndarray = -logs[np.arange(len(targets)), targets]
    return found


def _perplexity(nll: list[list[float]]) -> tuple[float, float | None]:
    losses = np.concatenate([np.asarray(each) for each in nll if each])
    perplexity = math.exp(losses.mean())
    if len(losses) < 2:
        return perplexity, None
    return perplexity, float(perplexity * losses.std(ddof=1) / math.sqrt(len(losses)))


def _ratio(nll: list[list[float]], reference: list[list[float]]) -> tuple[float, float | None]:
    """Return exp of the mean difference, and its standard error over windows."""
    differences = [
        np.asarray(ours) - np.asarray(theirs)
        for ours, theirs in zip(nll, reference, strict=True)
        if ours
    ]
    ratio = math.exp(np.concatenate(differences).mean())
    means = np.array([each.mean() for each in differences])
    if len(means) < 2:
        return ratio, None
    return ratio, float(ratio * means.std(ddof=1) / math.sqrt(len(means)))
