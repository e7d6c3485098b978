"""Sampling against plain float64 references, transformers' processors, and chi-squared.

Also tests state.py. test_sampling_rows.py compares native code with the NumPy reference.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from suffice import sampling
from suffice.errors import InputError
from suffice.native import core
from suffice.sampling import SamplingState, draw, probabilities, reference, rows, sample, uniform
from suffice.sampling.reference import adjust
from suffice.sampling_params import SamplingParams

V = 300
SEEDS = range(5)
Array = np.ndarray


def logits_of(seed: int, rows: int | None = None) -> Array:
    rng = np.random.default_rng(seed)
    return 3 * rng.standard_normal(V if rows is None else (rows, V), np.float32)


def state_of(seed: int = 0, prompt: Any = (), output: Any = (), **values: Any) -> SamplingState:
    state = SamplingState(SamplingParams(**{"max_tokens": None, **values}), seed, prompt=prompt)
    for token in output:
        state.append(token)
    return state


def by_sort(logits: Array, params: SamplingParams) -> Array:
    """Temperature, min-p, top-k and top-p in float64, by a sort."""
    scaled = logits.astype(np.float64) / params.temperature
    probs = np.exp(scaled - scaled.max())
    scaled[probs < params.min_p] = -math.inf
    order = np.argsort(-scaled, kind="stable")
    if params.top_k > 0:
        scaled[order[params.top_k :]] = -math.inf
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    if params.top_p < 1:
        before = probs[order].cumsum() - probs[order]
        probs[order[1:][before[1:] >= params.top_p]] = 0
    return probs / probs.sum()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "values",
    [
        {},
        {"temperature": 0.3},
        {"temperature": 1e-4},
        {"top_k": 1},
        {"top_k": 7},
        {"top_k": V + 5},
        {"top_p": 0},
        {"top_p": 1e-9},
        {"top_p": 0.9},
        {"top_p": 0.99999},
        {"min_p": 0.05},
        {"min_p": 1.0},
        {"min_p": 0.02, "top_p": 0.8, "top_k": 20, "temperature": 1.7},
        {"top_p": 0.999, "temperature": 5.0},
    ],
    ids=str,
)
def test_probabilities_match_the_float64_reference(seed: int, values: dict[str, Any]) -> None:
    state = state_of(**values)
    expected = by_sort(logits_of(seed), state.params)
    actual = probabilities(logits_of(seed), state)
    relative = expected / expected.max()
    assert (actual[relative > 2**-42] > 0).all() and not actual[relative < 2**-44].any()
    np.testing.assert_allclose(actual, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("values", "warpers"),
    [
        ({"temperature": 0.7}, [TemperatureLogitsWarper(0.7)]),
        ({"top_k": 12}, [TopKLogitsWarper(12)]),
        ({"top_p": 0.8}, [TopPLogitsWarper(0.8)]),
        ({"min_p": 0.1}, [MinPLogitsWarper(0.1)]),
        (
            {"temperature": 2.0, "min_p": 0.01, "top_k": 50, "top_p": 0.9},
            [
                TemperatureLogitsWarper(2.0),
                MinPLogitsWarper(0.01),
                TopKLogitsWarper(50),
                TopPLogitsWarper(0.9),
            ],
        ),
    ],
    ids=["temperature", "top_k", "top_p", "min_p", "all"],
)
def test_probabilities_match_transformers(seed: int, values: Any, warpers: Any) -> None:
    logits = logits_of(seed)
    scores = torch.from_numpy(logits)[None]
    for warper in warpers:
        scores = warper(torch.zeros(1, 1, dtype=torch.int64), scores)
    actual = probabilities(logits, state_of(**values))
    np.testing.assert_allclose(actual, scores[0].softmax(-1), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("penalty", [1.3, 0.6])
def test_repetition_penalty_matches_transformers(penalty: float) -> None:
    logits, prompt, output = logits_of(1), [3, 4, 4, 9], [4, 11, 11]
    expected = RepetitionPenaltyLogitsProcessor(penalty)(
        torch.tensor([prompt + output]), torch.from_numpy(logits)[None]
    )
    actual = adjust(logits, state_of(prompt=prompt, output=output, repetition_penalty=penalty))
    np.testing.assert_allclose(actual, expected[0])


def test_presence_and_frequency_count_the_output_only() -> None:
    logits, prompt, output = logits_of(1), [3, 4, 4, 9], [4, 11, 11]
    expected = logits.astype(np.float64)
    for token, count in ((4, 1), (11, 2)):
        expected[token] -= 0.7 * count + 0.4
    state = state_of(prompt=prompt, output=output, frequency_penalty=0.7, presence_penalty=0.4)
    np.testing.assert_allclose(adjust(logits, state), expected, rtol=1e-6)


def test_penalties_grow_with_the_output() -> None:
    values = {"frequency_penalty": 1.0, "repetition_penalty": 1.5}
    state = state_of(prompt=[5], **values)
    for token in (7, 7, 2, 5):
        before = probabilities(logits_of(0), state)
        state.append(token)
        assert probabilities(logits_of(0), state)[token] < before[token]
    fresh = state_of(prompt=[5], output=[7, 7, 2, 5], **values)
    assert np.array_equal(probabilities(logits_of(0), state), probabilities(logits_of(0), fresh))


def test_a_state_ahead_leaves_the_state_as_it_is() -> None:
    state = state_of(prompt=[5], output=[7], frequency_penalty=1.0, repetition_penalty=1.5)
    before = probabilities(logits_of(0), state)
    ahead = state.ahead([7, 2, 5])
    fresh = state_of(prompt=[5], output=[7, 7, 2, 5], frequency_penalty=1.0, repetition_penalty=1.5)
    assert np.array_equal(probabilities(logits_of(0), ahead), probabilities(logits_of(0), fresh))
    assert np.array_equal(probabilities(logits_of(0), state), before)
    assert (state.output, ahead.output) == ([7], [7, 7, 2, 5])


def test_bias_matches_transformers() -> None:
    bias = {3: 5.0, 8: -100.0}
    expected = SequenceBiasLogitsProcessor([[[token], value] for token, value in bias.items()])(
        torch.zeros(1, 1, dtype=torch.int64), torch.from_numpy(logits_of(2))[None]
    )
    actual = adjust(logits_of(2), state_of(logit_bias=bias))
    np.testing.assert_allclose(actual, expected[0])


def kept(values: Array) -> list[int]:
    return [int(index) for index in np.flatnonzero(values > -math.inf)]


def test_masks_leave_only_what_is_allowed() -> None:
    state = state_of(allowed_token_ids=[1, 2, 3, 4, 5], min_tokens=2, output=[7, 4])
    state.stop_ids = frozenset({2})
    state.bad_words = ((3,), (4, 5), (7, 1))
    logits = logits_of(0)
    adjusted = adjust(logits, state)
    assert kept(adjusted) == [1, 2, 4], "two tokens are there"
    early = state_of(allowed_token_ids=[1, 2, 3], min_tokens=2, output=[7])
    early.stop_ids, early.bad_words = frozenset({2}), state.bad_words
    assert kept(adjust(logits, early)) == []
    assert np.array_equal(adjusted[[1, 2, 4]], logits[[1, 2, 4]])


def test_a_mask_from_outside() -> None:
    """Bits of 32-bit words, the first token in the lowest; those beyond the last are ignored."""
    mask = np.zeros(V // 32 + 1, np.uint32)
    mask[0], mask[9] = 1 << 31 | 1 << 2, 1 << 3 | 1 << 20
    assert kept(adjust(logits_of(0), state_of(), mask)) == [2, 31, 9 * 32 + 3]
    assert kept(adjust(logits_of(0), state_of(allowed_token_ids=[1, 2]), mask)) == [2]


def test_order_of_masks_bias_and_penalties() -> None:
    logits = np.zeros(V, np.float32)
    logits[3] = 1.0
    state = state_of(
        prompt=[3], output=[3], logit_bias={3: 2.0}, repetition_penalty=2.0, presence_penalty=0.5
    )
    assert adjust(logits, state)[3] == pytest.approx((1 + 2) / 2 - 0.5)


def test_logits_are_not_changed() -> None:
    logits = logits_of(3)
    before = logits.copy()
    state = state_of(
        output=[1], logit_bias={3: 2.0}, presence_penalty=1.0, min_tokens=4, top_k=5, top_p=0.5
    )
    sample(logits[None], [state])
    probabilities(logits, state)
    reference.sample(logits, state)
    assert np.array_equal(logits, before)


@pytest.mark.parametrize("values", [{}, {"min_tokens": 3}, {"logprobs": 2}])
def test_greedy_takes_the_first_of_the_likeliest(values: dict[str, Any]) -> None:
    logits = np.zeros((3, V), np.float32)
    logits[0, [40, 7, 200]] = 5.0
    logits[2, [299]] = 5.0
    states = [state_of(temperature=0, **values) for _ in range(3)]
    assert sample(logits, states) == [7, 0, 299]
    assert probabilities(logits[0], states[0])[7] == 1


def test_ties_go_to_the_lowest_ids() -> None:
    logits = np.zeros(V, np.float32)
    assert np.flatnonzero(probabilities(logits, state_of(top_k=3))).tolist() == [0, 1, 2]
    half = probabilities(logits, state_of(top_p=0.5))
    assert np.flatnonzero(half).tolist() == list(range(V // 2))


def test_top_p_alone_looks_as_far_as_it_must() -> None:
    weights = np.full(5000, 2**30)
    for top_p, size in ((0, 1), (1e-9, 1), (0.01, 50), (0.5, 2500), (0.9999, 5000)):
        assert abs(reference.nucleus_size(weights, top_p) - size) <= 1


@given(
    st.lists(st.floats(0, 1, width=32), min_size=1, max_size=40).filter(lambda p: sum(p) > 1e-30),
    st.floats(0, 1, exclude_max=True),
)
def test_draw_inverts_the_running_sum(weights: list[float], number: float) -> None:
    probs = np.array(weights, np.float32)
    index = draw(probs, number)
    sums = probs.cumsum(dtype=np.float64)
    assert probs[index] > 0, "what has no probability is never drawn"
    assert index == 0 or sums[index - 1] <= number * sums[-1] or sums[index - 1] < sums[-1]
    assert number * sums[-1] <= sums[index]


def test_draw_at_the_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    probs = np.array([0.0, 0.5, 0.0, 0.5, 0.0])
    numbers = (0.0, 0.4999, 0.5, 1 - 2**-53)
    assert [draw(probs, number) for number in numbers] == [1, 1, 3, 3]
    weights = np.array([0, 3, 0, 3, 0])
    assert [reference.draw(weights, number) for number in numbers] == [1, 1, 3, 3]
    given = iter(numbers)
    monkeypatch.setattr(rows, "uniform", lambda *arguments: next(given))
    logits = np.where(probs > 0, np.float32(0), np.float32(-math.inf))
    assert sample(np.stack([logits] * 4), [state_of() for _ in numbers]) == [1, 1, 3, 3]


def test_uniform_depends_on_every_argument_and_nothing_else() -> None:
    numbers = {
        uniform(s, i, p, d)
        for s in (0, 1, 2**64 - 1)
        for i in (0, 1)
        for p in (0, 1)
        for d in (0, 1)
    }
    assert len(numbers) == 24
    assert uniform(5, 0, 3) == uniform(5, 0, 3)


def test_uniform_is_uniform() -> None:
    count, bins = 20_000, 50
    for arguments in ((lambda i: (7, 0, i)), (lambda i: (i, 0, 0)), (lambda i: (7, i, 0))):
        seen, _ = np.histogram([uniform(*arguments(i)) for i in range(count)], bins, (0, 1))
        chi = ((seen - count / bins) ** 2 / (count / bins)).sum()
        assert 49 - 4 * math.sqrt(98) < chi < 49 + 4 * math.sqrt(98)


@pytest.mark.parametrize(
    "values", [{}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}, {"temperature": 0.5}], ids=str
)
def test_tokens_follow_the_distribution(values: dict[str, Any]) -> None:
    logits = np.random.default_rng(1).permutation(np.linspace(-1, 1, 12, dtype=np.float32))
    count = 6000
    state = state_of(seed=11, **values)
    expected = by_sort(logits, state.params) * count
    seen = np.zeros(12)
    for _ in range(count):
        (token,) = sample(logits[None], [state])
        assert isinstance(token, int)
        seen[token] += 1
        state.append(token)
    possible = expected > 0
    assert not seen[~possible].any()
    chi = ((seen - expected)[possible] ** 2 / expected[possible]).sum()
    freedom = int(possible.sum()) - 1
    assert chi < freedom + 4 * math.sqrt(2 * freedom)


def test_sampling_and_probabilities_agree() -> None:
    for position in range(50):
        state = state_of(seed=3, top_k=20, top_p=0.9, output=[1] * position)
        probs = probabilities(logits_of(position), state)
        assert sample(logits_of(position)[None], [state]) == [draw(probs, uniform(3, 0, position))]


def test_a_broken_row_is_an_error_of_its_own() -> None:
    logits = logits_of(0, 3)
    logits[1, 7] = math.nan
    for temperature in (0, 1):
        tokens = sample(logits, [state_of(temperature=temperature) for _ in range(3)])
        assert isinstance(tokens[0], int)
        assert isinstance(tokens[2], int)
        assert str(tokens[1]) == "the model's largest logit is nan: its weights may be damaged"
    with pytest.raises(InputError, match="the model's largest logit is nan"):
        probabilities(logits[1], state_of())
    (token,) = sample(np.full((1, V), -math.inf, np.float32), [state_of()])
    assert str(token) == (
        "no token is left to choose: allowed_token_ids, bad_words and min_tokens exclude them all"
    )


def test_top_logprobs_are_of_the_raw_distribution() -> None:
    logits = logits_of(4)
    expected = torch.from_numpy(logits).double().log_softmax(-1)
    best = expected.argsort(descending=True).tolist()
    (found,) = sampling.top_logprobs([logits], [best[10]], [3])
    assert isinstance(found, sampling.TokenLogprobs)
    assert (found.token, found.rank) == (best[10], 11)
    assert [token for token, _ in found.top] == best[:3]
    for token, value in [(found.token, found.logprob), *found.top]:
        assert value == pytest.approx(expected[token].item(), abs=1e-6)
    (found,) = sampling.top_logprobs([logits], [best[0]], [0])
    assert isinstance(found, sampling.TokenLogprobs)
    assert (found.top, found.rank) == ([], 1)


@pytest.mark.parametrize("number", [-1e-9, 1.0, math.nan])
def test_a_number_that_is_never_drawn_is_refused(number: float) -> None:
    given = logits_of(0, 2), [state_of().native] * 2, None, np.array([0.5, number])
    with pytest.raises(ValueError, match=r"^numbers must be in \[0, 1\)$"):
        core.sample_rows(*given, np.zeros(2, np.int32), np.zeros(2, np.float32))
