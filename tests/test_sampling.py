"""Sampling against plain float64 references, transformers' processors, and chi-squared."""

from __future__ import annotations

import math
from typing import Any

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
from suffice.sampling import SamplingState, adjust, draw, probabilities, sample, uniform
from suffice.sampling_params import SamplingParams

V = 300
SEEDS = range(5)


def logits_of(seed: int, rows: int | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(*([V] if rows is None else [rows, V]), generator=generator)


def state_of(seed: int = 0, prompt: Any = (), output: Any = (), **values: Any) -> SamplingState:
    state = SamplingState(SamplingParams(**{"max_tokens": None, **values}), seed, prompt=prompt)
    for token in output:
        state.append(token)
    return state


def reference(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Temperature, min-p, top-k and top-p in float64, by a sort."""
    scaled = logits.double() / params.temperature
    probs = scaled.softmax(-1)
    scaled[probs < params.min_p * probs.max()] = -math.inf
    order = scaled.argsort(descending=True, stable=True)
    if params.top_k > 0:
        scaled[order[params.top_k :]] = -math.inf
    probs = scaled.softmax(-1)
    if params.top_p < 1:
        before = probs[order].cumsum(0) - probs[order]
        probs[order[before >= params.top_p]] = 0
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
    expected = reference(logits_of(seed), state.params)
    actual = probabilities(logits_of(seed), state)
    assert torch.equal(actual > 0, expected > 0) or values.get("temperature") == 1e-4
    torch.testing.assert_close(actual.double(), expected, atol=1e-6, rtol=1e-5)


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
    scores = logits[None].clone()
    for warper in warpers:
        scores = warper(torch.zeros(1, 1, dtype=torch.int64), scores)
    actual = probabilities(logits, state_of(**values))
    torch.testing.assert_close(actual, scores[0].softmax(-1), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("penalty", [1.3, 0.6])
def test_repetition_penalty_matches_transformers(penalty: float) -> None:
    logits, prompt, output = logits_of(1), [3, 4, 4, 9], [4, 11, 11]
    expected = RepetitionPenaltyLogitsProcessor(penalty)(
        torch.tensor([prompt + output]), logits[None].clone()
    )
    actual = adjust(logits, state_of(prompt=prompt, output=output, repetition_penalty=penalty))
    torch.testing.assert_close(actual, expected[0])


def test_presence_and_frequency_count_the_output_only() -> None:
    logits, prompt, output = logits_of(1), [3, 4, 4, 9], [4, 11, 11]
    expected = logits.double()
    for token, count in ((4, 1), (11, 2)):
        expected[token] -= 0.7 * count + 0.4
    state = state_of(prompt=prompt, output=output, frequency_penalty=0.7, presence_penalty=0.4)
    torch.testing.assert_close(adjust(logits, state).double(), expected)


def test_penalties_grow_with_the_output() -> None:
    values = {"frequency_penalty": 1.0, "repetition_penalty": 1.5}
    state = state_of(prompt=[5], **values)
    for token in (7, 7, 2, 5):
        adjust(logits_of(0), state)
        state.append(token)
    fresh = state_of(prompt=[5], output=[7, 7, 2, 5], **values)
    assert torch.equal(adjust(logits_of(0), state), adjust(logits_of(0), fresh))


def test_bias_matches_transformers() -> None:
    bias = {3: 5.0, 8: -100.0}
    expected = SequenceBiasLogitsProcessor([[[token], value] for token, value in bias.items()])(
        torch.zeros(1, 1, dtype=torch.int64), logits_of(2)[None].clone()
    )
    actual = adjust(logits_of(2), state_of(logit_bias=bias))
    torch.testing.assert_close(actual, expected[0])


def test_masks_leave_only_what_is_allowed() -> None:
    state = state_of(allowed_token_ids=[1, 2, 3, 4, 5], min_tokens=2, output=[7, 4])
    state.stop_ids = frozenset({2})
    state.bad_words = ((3,), (4, 5), (7, 1))
    logits = logits_of(0)
    kept = adjust(logits, state)
    assert (kept > -math.inf).nonzero()[:, 0].tolist() == [1, 2, 4], "two tokens are there"
    early = state_of(allowed_token_ids=[1, 2, 3], min_tokens=2, output=[7])
    early.stop_ids, early.bad_words = frozenset({2}), state.bad_words
    assert (adjust(logits, early) > -math.inf).nonzero()[:, 0].tolist() == []
    assert torch.equal(kept[[1, 2, 4]], logits[[1, 2, 4]])


def test_order_of_masks_bias_and_penalties() -> None:
    logits = torch.zeros(V)
    logits[3] = 1.0
    state = state_of(
        prompt=[3], output=[3], logit_bias={3: 2.0}, repetition_penalty=2.0, presence_penalty=0.5
    )
    assert adjust(logits, state)[3] == pytest.approx((1 + 2) / 2 - 0.5)


def test_logits_are_not_changed() -> None:
    logits = logits_of(3)
    before = logits.clone()
    state = state_of(
        output=[1], logit_bias={3: 2.0}, presence_penalty=1.0, min_tokens=4, top_k=5, top_p=0.5
    )
    sample(logits[None], [state])
    probabilities(logits, state)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("values", [{}, {"min_tokens": 3}, {"logprobs": 2}])
def test_greedy_takes_the_first_of_the_likeliest(values: dict[str, Any]) -> None:
    logits = torch.zeros(3, V)
    logits[0, [40, 7, 200]] = 5.0
    logits[2, [299]] = 5.0
    states = [state_of(temperature=0, **values) for _ in range(3)]
    assert sample(logits, states) == [7, 0, 299]
    assert probabilities(logits[0], states[0])[7] == 1


def test_ties_go_to_the_lowest_ids() -> None:
    logits = torch.zeros(V)
    assert probabilities(logits, state_of(top_k=3)).nonzero()[:, 0].tolist() == [0, 1, 2]
    half = probabilities(logits, state_of(top_p=0.5))
    assert half.nonzero()[:, 0].tolist() == list(range(V // 2))


def test_top_p_alone_looks_as_far_as_it_must() -> None:
    probs = torch.full((5000,), 1 / 5000)
    for top_p, size in ((1e-9, 1), (0.01, 50), (0.5, 2500), (0.9999, 5000)):
        assert abs(sampling.nucleus_size(probs, top_p) - size) <= 1


@given(
    st.lists(st.floats(0, 1, width=32), min_size=1, max_size=40).filter(lambda p: sum(p) > 1e-30),
    st.floats(0, 1, exclude_max=True),
)
def test_draw_inverts_the_running_sum(weights: list[float], number: float) -> None:
    probs = torch.tensor(weights)
    index = draw(probs, number)
    sums = probs.double().cumsum(0)
    assert probs[index] > 0, "what has no probability is never drawn"
    assert index == 0 or sums[index - 1] <= number * sums[-1] or sums[index - 1] < sums[-1]
    assert number * sums[-1] <= sums[index]


def test_draw_at_the_ends() -> None:
    probs = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0])
    assert [draw(probs, u) for u in (0.0, 0.4999, 0.5, 1 - 2**-53)] == [1, 1, 3, 3]


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
        numbers = torch.tensor([uniform(*arguments(i)) for i in range(count)])
        seen = torch.histc(numbers, bins, 0, 1).double()
        chi = ((seen - count / bins) ** 2 / (count / bins)).sum().item()
        assert 49 - 4 * math.sqrt(98) < chi < 49 + 4 * math.sqrt(98)


@pytest.mark.parametrize(
    "values", [{}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}, {"temperature": 0.5}], ids=str
)
def test_tokens_follow_the_distribution(values: dict[str, Any]) -> None:
    logits = torch.linspace(-1, 1, 12)[
        torch.randperm(12, generator=torch.Generator().manual_seed(1))
    ]
    count = 6000
    state = state_of(seed=11, **values)
    expected = reference(logits, state.params) * count
    seen = torch.zeros(12, dtype=torch.float64)
    for _ in range(count):
        (token,) = sample(logits[None], [state])
        assert isinstance(token, int)
        seen[token] += 1
        state.output.append(token)
    possible = expected > 0
    assert not seen[~possible].any()
    chi = ((seen - expected)[possible] ** 2 / expected[possible]).sum().item()
    freedom = int(possible.sum()) - 1
    assert chi < freedom + 4 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_row_gives_the_same_token_in_any_batch(seed: int) -> None:
    logits = logits_of(seed, 6)
    values = [
        {},
        {"top_k": 9},
        {"top_p": 0.9},
        {"min_p": 0.1},
        {"temperature": 0},
        {"logit_bias": {1: 3}},
    ]
    alone = [
        sample(logits[i][None].clone(), [state_of(seed=i, **v)])[0] for i, v in enumerate(values)
    ]
    order = torch.randperm(6, generator=torch.Generator().manual_seed(seed)).tolist()
    together = sample(logits[order], [state_of(seed=i, **values[i]) for i in order])
    assert together == [alone[i] for i in order]


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
    (token,) = sample(torch.full((1, V), -math.inf), [state_of()])
    assert str(token) == (
        "no token is left to choose: allowed_token_ids, bad_words and min_tokens exclude them all"
    )


def test_top_logprobs_are_of_the_raw_distribution() -> None:
    logits = logits_of(4)
    expected = logits.double().log_softmax(-1)
    best = expected.argsort(descending=True).tolist()
    pairs, rank = sampling.top_logprobs(logits, best[10], 3)
    assert [token for token, _ in pairs] == [best[10], *best[:3]]
    assert rank == 11
    for token, value in pairs:
        assert value == pytest.approx(expected[token].item(), abs=1e-5)
    pairs, rank = sampling.top_logprobs(logits, best[0], 0)
    assert (len(pairs), rank) == (1, 1)
