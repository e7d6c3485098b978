"""The text is distributed as without drafts, whatever is drafted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from suffice.sampling import SamplingParams, SamplingState, probabilities
from suffice.speculate.acceptance import choose, next_token

V, TRIALS = 6, 4000
CRITICAL = 25.7  # of chi-squared with 5 degrees of freedom: passed once in 10 000 times
TARGET = np.array([0.4, 0.25, 0.15, 0.12, 0.08, 0.0])
DRAFTS = {
    "alike": np.array([0.38, 0.27, 0.15, 0.1, 0.1, 0.0]),
    "far": np.array([0.02, 0.03, 0.05, 0.1, 0.2, 0.6]),
    "one": np.array([0.0, 0.0, 0.0, 1.0, 0.0, 0.0]),
    "same": TARGET,
}
KeepAll = Callable[[np.ndarray, Sequence[int], np.ndarray, Callable[[int], float]], int]


def drawn(
    rng: np.random.Generator, probs: np.ndarray, count: int, trials: int = 1
) -> list[list[int]]:
    """Tokens sampled without replacement, in their order, of each trial: who comes first."""
    with np.errstate(divide="ignore"):
        times = rng.standard_exponential((trials, V)) / probs
    count = min(count, int((probs > 0).sum()))
    found: list[list[int]] = times.argsort(1)[:, :count].tolist()
    return found


def chi_squared(choice: KeepAll, draft: np.ndarray, children: int) -> tuple[float, float]:
    """Return chi-squared against the target and the fraction of choices that were drafted."""
    rng = np.random.default_rng(children)
    counts, accepted = np.zeros(V), 0
    for tokens in drawn(rng, draft, children, TRIALS):
        token = choice(TARGET, tokens, draft, lambda stream: float(rng.random()))
        counts[token] += 1
        accepted += token in tokens
    expected = TARGET * TRIALS
    assert counts[expected == 0].sum() == 0, "what cannot come does not"
    likely = expected > 0
    statistic = ((counts[likely] - expected[likely]) ** 2 / expected[likely]).sum()
    return float(statistic), accepted / TRIALS


@pytest.mark.parametrize("children", [1, 2, 3])
@pytest.mark.parametrize("draft", DRAFTS)
def test_the_choice_has_the_target_s_distribution(draft: str, children: int) -> None:
    statistic, accepted = chi_squared(choose, DRAFTS[draft], children)
    assert statistic < CRITICAL
    if children == 1:  # Leviathan et al., corollary 3.6
        best = float(np.minimum(TARGET, DRAFTS[draft]).sum())
        assert accepted >= best - 0.03


def takes_the_draft(
    target: np.ndarray,
    drafts: Sequence[int],
    draft: np.ndarray,
    number: Callable[[int], float],
) -> int:
    """Broken on purpose: refuses only what cannot come, as if both distributions were the same."""
    return next((t for t in drafts if target[t] > 0), int(target.argmax()))


def forgets_the_rest(
    target: np.ndarray,
    drafts: Sequence[int],
    draft: np.ndarray,
    number: Callable[[int], float],
) -> int:
    """Broken on purpose: after a rejection the whole target is sampled from again."""
    for at, token in enumerate(drafts):
        if number(at + 1) * draft[token] < target[token]:
            return token
    return int(np.searchsorted(target.cumsum(), number(0), side="right"))


@pytest.mark.parametrize("broken", [takes_the_draft, forgets_the_rest])
@pytest.mark.parametrize("children", [1, 2])
def test_the_test_bites(broken: KeepAll, children: int) -> None:
    assert chi_squared(broken, DRAFTS["far"], children)[0] > 10 * CRITICAL


def test_a_chain_of_steps_has_the_target_s_distribution() -> None:
    """`next_token` with its own numbers: one for each seed, over pairs of positions."""
    logits = np.log(np.maximum(TARGET, 1e-30)).astype(np.float32)
    counts = np.zeros((V, V))
    for seed in range(1500):
        state = SamplingState(SamplingParams(), seed=seed)
        rng = np.random.default_rng(seed)
        for _ in range(2):
            (drafts,) = drawn(rng, DRAFTS["alike"], 1)
            state.append(next_token(logits, state, drafts, DRAFTS["alike"]))
        counts[state.output[0], state.output[1]] += 1
    probs = probabilities(logits, SamplingState(SamplingParams(), seed=0))
    expected = np.outer(probs, probs) * 1500
    likely = expected > 0
    statistic = ((counts - expected)[likely] ** 2 / expected[likely]).sum()
    assert statistic < 59  # 24 degrees of freedom, once in 10 000 times
    assert counts[~likely].sum() == 0
