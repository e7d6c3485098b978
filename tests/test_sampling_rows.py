"""Native sampling gives the bits of its reference, whatever the batch, threads and CPU.

Each law is a function of a sampler, and must refuse one that is broken on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffice import native, sampling
from suffice.errors import InputError
from suffice.sampling import SamplingParams, SamplingState, reference, uniform

Array = np.ndarray
Sampler = Callable[[Array, Sequence[SamplingState]], list[Any]]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0},
    {"temperature": 0.3},
    {"temperature": 1e-4},
    {"temperature": 40.0},
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": 700},
    {"top_p": 0},
    {"top_p": 1e-12},
    {"top_p": 0.9},
    {"top_p": 0.999, "temperature": 5.0},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.3, "presence_penalty": -0.2},
    {"logit_bias": {3: 5.0, 9: -100.0}, "top_k": 5},
    {"allowed_token_ids": [1, 3, 4, 40], "top_k": 9},
    {"min_tokens": 9},
]


def state_of(seed: int = 0, **values: Any) -> SamplingState:
    return SamplingState(
        SamplingParams(**{"max_tokens": None, **values}),
        seed,
        prompt=[1, 2, 2, 30],
        output=[3, 4, 4, 30],
        stop_ids=frozenset({0, 5}),
        bad_words=((7,), (4, 30, 8), (4, 4, 9), (30, 30, 10)),
    )


def logits_of(seed: int, size: int = 1000) -> Array:
    """Whole numbers, which tie, for every other seed."""
    logits = 3 * np.random.default_rng(seed).standard_normal(size, np.float32)
    return np.round(logits) if seed % 2 else logits


def differences(probabilities: Callable[[Array, SamplingState], Array]) -> int:
    """Return in how many cases probabilities are not those of the reference, bit for bit."""
    found = 0
    for values in SETTINGS:
        for seed, size in enumerate((1000, 999, 64, 4097, 63)):
            logits, state = logits_of(seed, size), state_of(**values)
            expected = reference.probabilities(logits, state)
            found += not np.array_equal(probabilities(logits, state), expected)
    return found


@pytest.fixture
def restored() -> Iterator[None]:
    isa, threads = native.isa(), native.threads()
    yield
    native.use_isa(isa)
    native.set_threads(threads)


@pytest.mark.parametrize("isa", native.isas())
@pytest.mark.usefixtures("restored")
def test_probabilities_are_the_reference_s(isa: str) -> None:
    native.use_isa(isa)
    assert differences(sampling.probabilities) == 0


def by_libm(logits: Array, state: SamplingState) -> Array:
    """Broken on purpose: weights come from another exponential."""
    kept = reference.weights_of(logits, state) > 0
    adjusted = reference.adjust(logits, state)
    scaled = (adjusted - adjusted.max()) / np.float32(max(state.params.temperature, 1e-5))
    weights = np.where(kept, np.exp(scaled), np.float32(0))
    return weights / weights.sum()


def last_ties(logits: Array, state: SamplingState) -> Array:
    """Broken on purpose: of equal tokens the last are kept. (No rule here is for single tokens.)"""
    plain = SamplingState(state.params, state.seed)
    return sampling.probabilities(logits[::-1].copy(), plain)[::-1]


@pytest.mark.parametrize("broken", [by_libm, last_ties])
def test_the_comparison_bites(broken: Callable[[Array, SamplingState], Array]) -> None:
    assert differences(broken) > 10


@given(
    st.lists(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0, -math.inf]), min_size=1, max_size=200),
    st.integers(0, 70),
    st.sampled_from([0.01, 0.3, 0.5, 0.75, 1.0]),
    st.sampled_from([0.0, 0.1, 0.6, 1.0]),
    st.floats(0, 1, exclude_max=True),
)
def test_ties_are_the_reference_s(
    values: list[float], top_k: int, top_p: float, min_p: float, number: float
) -> None:
    logits = np.array(values, np.float32)
    state = SamplingState(SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p), int(number * 1e9))
    (token,) = sampling.sample(logits[None], [state])
    if np.isinf(logits).all():
        assert str(token) == str(reference.sample(logits, state))
        return
    expected = reference.probabilities(logits, state)
    assert np.array_equal(sampling.probabilities(logits, state), expected)
    assert token == reference.sample(logits, state)


def test_weights_are_exponentials() -> None:
    """Within 2 units in the last place of float32 and half of one of 2**-42."""
    x = -np.geomspace(1e-6, 40, 20_000, dtype=np.float32)
    exact = np.exp(x.astype(np.float64))
    ulps = np.abs(reference.exp(x) - exact) / np.spacing(exact.astype(np.float32))
    assert ulps.max() < 2
    weights = reference.weigh(np.append(x, np.float32(0)), np.float32(0), 1.0)
    assert weights[-1] == 2**42
    assert (np.abs(weights[:-1] * 2.0**-42 - exact) <= 2**-43 + 2**-22 * exact).all()


@pytest.mark.parametrize("values", SETTINGS, ids=str)
def test_masks_of_rows(values: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    rows = np.stack([logits_of(seed, 1003) for seed in range(4)])
    masks = rng.integers(0, 2**32, (4, 33), np.uint32)  # a word more than needed
    masks[0], masks[1, :32] = 0xFFFFFFFF, 0
    masks[1, 31] = 1 << 3  # token 995; the bits from 1003 on belong to none
    masks[2:, 0] |= 0b11010  # some of `allowed_token_ids`
    states = [state_of(seed, **values) for seed in range(4)]
    expected = [reference.sample(*row) for row in zip(rows, states, masks, strict=True)]
    assert [*map(str, sampling.sample(rows, states, masks))] == [*map(str, expected)]
    probs = sampling.probabilities(rows[2], states[2], masks[2])
    assert np.array_equal(probs, reference.probabilities(rows[2], states[2], masks[2]))
    assert sampling.sample(rows[1:2], [SamplingState(SamplingParams(), 0)], masks[1:2]) == [995]


def mixed_rows(count: int, size: int = 700) -> tuple[Array, list[SamplingState]]:
    rows = np.stack([logits_of(seed, size) for seed in range(count)])
    return rows, [state_of(seed, **SETTINGS[seed % len(SETTINGS)]) for seed in range(count)]


def depends_on_batch(sampler: Sampler) -> bool:
    """Whether any row's token changes with the rows around it."""
    rows, states = mixed_rows(36)
    alone = [sampler(rows[i : i + 1], states[i : i + 1])[0] for i in range(36)]
    order = np.random.default_rng(0).permutation(36)
    together = sampler(rows[order], [states[i] for i in order])
    return together != [alone[i] for i in order]


def tokens_of_many(sampler: Sampler) -> list[Any]:
    """Flat distributions: the smallest change of a sum moves some token."""
    size = 3000
    rows = np.stack([logits_of(2 * seed, size) / 8 for seed in range(64)])
    return sampler(rows, [SamplingState(SamplingParams(), seed) for seed in range(64)])


def depends_on_threads(sampler: Sampler) -> bool:
    """Whether any token changes with the number of threads."""
    found = []
    for threads in (1, 2, 3):
        native.core.set_threads(threads)
        found.append(tokens_of_many(sampler))
    return found[1:] != found[:-1]


def depends_on_isa(sampler: Sampler) -> bool:
    """Whether any token changes with the instruction set."""
    found = []
    for isa in native.isas():
        native.use_isa(isa)
        found.append(tokens_of_many(sampler))
    return found[1:] != found[:-1]


def by_place(logits: Array, states: Sequence[SamplingState]) -> list[Any]:
    """Broken on purpose: the random number depends on the row's place in the batch."""
    placed = [SamplingState(s.params, s.seed, index=at) for at, s in enumerate(states)]
    return sampling.sample(logits, placed)


def by_parts(parts: Callable[[], int], logits: Array, states: Sequence[SamplingState]) -> list[Any]:
    """Broken on purpose: float16 sums of as many parts as there are threads, or lanes."""
    tokens = []
    for row, state in zip(logits, states, strict=True):
        probs = np.exp(row - row.max()).astype(np.float16)
        shares = [share.cumsum(dtype=np.float16) for share in np.array_split(probs, parts())]
        ends = np.cumsum([0, *(share[-1] for share in shares)], dtype=np.float32)[:-1]
        sums = np.concatenate([share + end for share, end in zip(shares, ends, strict=True)])
        number = uniform(state.seed, state.index, len(state.output))
        tokens.append(int(np.searchsorted(sums, number * sums[-1], side="right")))
    return tokens


def lanes() -> int:
    return 2 + native.ISAS.index(native.isa())


LAWS: list[tuple[Callable[[Sampler], bool], Sampler]] = [
    (depends_on_batch, by_place),
    (depends_on_threads, partial(by_parts, native.threads)),
    (depends_on_isa, partial(by_parts, lanes)),
]


@pytest.mark.parametrize(("law", "broken"), LAWS, ids=["batch", "threads", "isa"])
@pytest.mark.usefixtures("restored")
def test_tokens_depend_on_their_row_only(law: Callable[[Sampler], bool], broken: Sampler) -> None:
    assert not law(sampling.sample)
    if law is not depends_on_isa or len(native.isas()) > 1:
        assert law(broken), "the law does not bite"


def test_rows_may_have_a_stride() -> None:
    rows, states = mixed_rows(5)
    padded = np.full((5, 720), math.nan, np.float32)
    padded[:, :700] = rows
    assert sampling.sample(padded[:, :700], states) == sampling.sample(rows, states)
    same = np.broadcast_to(rows[0], rows.shape)
    assert sampling.sample(same, states) == sampling.sample(same.copy(), states)


@pytest.mark.parametrize("isa", native.isas())
@pytest.mark.usefixtures("restored")
def test_any_nan_is_found(isa: str) -> None:
    native.use_isa(isa)
    for size in (1, 63, 64, 65, 200):
        for place in range(size):
            logits = np.zeros((1, size), np.float32)
            logits[0, place] = math.nan
            (found,) = sampling.sample(logits, [SamplingState(SamplingParams(), 0)])
            assert str(found) == "the model's largest logit is nan: its weights may be damaged"


def test_a_mask_that_leaves_nothing_is_named() -> None:
    masks = np.zeros((1, 2), np.uint32)
    (found,) = sampling.sample(
        np.zeros((1, 40), np.float32), [SamplingState(SamplingParams(), 0)], masks
    )
    assert str(found) == (
        "no token is left to choose: allowed_token_ids, bad_words, min_tokens and the mask "
        "exclude them all"
    )


def test_logprobs_are_the_reference_s() -> None:
    rows = [logits_of(seed, 700) for seed in range(12)]
    tokens, counts = [*range(5, 65, 5)], [0, 1, 2, 5, 10, 11, 12, 64, 65, 300, 699, 700]
    assert np.mean([len(np.unique(row)) for row in rows[1::2]]) < 30, "there are ties"
    found = sampling.top_logprobs(rows, tokens, counts)
    for entry, row, token, count in zip(found, rows, tokens, counts, strict=True):
        expected = reference.top_logprobs(row, token, count)
        assert isinstance(entry, sampling.TokenLogprobs)
        assert (entry.token, entry.rank) == (token, expected.rank)
        assert [each for each, _ in entry.top] == [each for each, _ in expected.top]
        values = [entry.logprob, *(value for _, value in entry.top)]
        exact = [expected.logprob, *(value for _, value in expected.top)]
        np.testing.assert_allclose(values, exact, rtol=0, atol=5e-7)


def test_logprobs_of_damaged_logits() -> None:
    rows = np.zeros((4, 70), np.float32)
    rows[1, 3], rows[2, 3], rows[3] = math.nan, math.inf, -math.inf
    first, *others = sampling.top_logprobs([*rows], [0, 0, 0, 0], [2, 2, 2, 2])
    assert isinstance(first, sampling.TokenLogprobs)
    assert first.logprob == pytest.approx(-math.log(70))
    assert all(isinstance(each, InputError) for each in others)
    assert "largest logit is nan" in str(others[0])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"allowed_token_ids": [70]}, "outside the vocabulary of 70"),
        ({"logit_bias": {70: 1.0}}, "outside the vocabulary of 70"),
        ({"presence_penalty": 1.0}, "outside the vocabulary of 70"),
        ({"logit_bias": {2**31 - 1: 1.0}}, "token ids must be in"),
    ],
)
def test_tokens_beyond_the_vocabulary_are_refused(values: dict[str, Any], message: str) -> None:
    state = SamplingState(SamplingParams(**values), 0, prompt=[70])
    with pytest.raises(ValueError, match=message):
        sampling.sample(np.zeros((1, 70), np.float32), [state])


def test_bans_beyond_the_vocabulary_are_empty() -> None:
    state = SamplingState(
        SamplingParams(min_tokens=1), 0, stop_ids=frozenset({70}), bad_words=((71,),)
    )
    assert (sampling.probabilities(np.zeros(70, np.float32), state) > 0).all()


def unadjusted(seed: int, **values: Any) -> SamplingState:
    """A state that takes logits as they are: only then may their maxima be used."""
    return SamplingState(SamplingParams(**values), seed)


def maxima_of(logits: Array) -> Array:
    rows, size = logits.shape
    blocks = -(-size // native.LOGIT_BLOCK)
    padded = np.full((rows, blocks * native.LOGIT_BLOCK), -np.inf, np.float32)
    padded[:, :size] = logits
    found: Array = padded.reshape(rows, blocks, -1).max(2)
    return found


@pytest.mark.parametrize("size", [63, 64, 1000, 4097])
def test_known_maxima_change_no_token(each_isa: str, size: int) -> None:
    logits = np.stack([logits_of(seed, size) for seed in range(6)])
    for values in SETTINGS:
        states = [unadjusted(seed, **values) for seed in range(6)]
        states[1::2] = [state_of(seed, **values) for seed in range(3)]
        known = sampling.sample(logits, states, maxima=maxima_of(logits))
        assert known == [reference.sample(*each) for each in zip(logits, states, strict=True)]


def test_known_maxima_spare_the_logits(each_isa: str) -> None:
    """Blocks that cannot hold a token that may come are not read, so nobody sees what they are."""
    logits = np.stack([logits_of(seed, 4096) for seed in (0, 2)])
    maxima = maxima_of(logits)
    for values, most in (({"temperature": 0}, 1), ({"top_k": 3}, 3)):
        states = [unadjusted(seed, **values) for seed in range(2)]
        expected = sampling.sample(logits, states)
        spoilt = logits.copy()
        for row, own in zip(spoilt, maxima, strict=True):
            blocks = row.reshape(-1, native.LOGIT_BLOCK)
            blocks[own < np.sort(own)[-most]] = np.nan
        assert sampling.sample(spoilt, states, maxima=maxima) == expected
        assert all(isinstance(each, InputError) for each in sampling.sample(spoilt, states))


def test_a_nan_among_known_maxima_is_found(each_isa: str) -> None:
    logits = np.stack([logits_of(seed) for seed in range(3)])
    maxima = maxima_of(logits)
    maxima[1, 4] = np.nan
    for values in ({"temperature": 0}, {"top_k": 40}):
        states = [unadjusted(seed, **values) for seed in range(3)]
        found = sampling.sample(logits, states, maxima=maxima)
        assert [isinstance(each, InputError) for each in found] == [False, True, False]


def test_maxima_of_another_shape_are_refused() -> None:
    logits = logits_of(0)[None]
    for shape in ((1, 15), (2, 16), (1, 17)):
        with pytest.raises(ValueError, match="maxima must be"):
            sampling.sample(logits, [state_of()], maxima=np.zeros(shape, np.float32))


@pytest.mark.parametrize("top_k", [0, -1, 50])
def test_a_top_k_that_excludes_nothing(top_k: int) -> None:
    logits = np.random.default_rng(0).standard_normal((1, 50)).astype(np.float32)
    plain, other = (SamplingState(SamplingParams(**k), 0) for k in ({}, {"top_k": top_k}))
    found, expected = (sampling.probabilities(logits[0], state) for state in (other, plain))
    assert np.array_equal(found, expected) and (found > 0).all()


class Only:
    """A constraint that allows one word of tokens."""

    fault = ""

    def fill(self, words: np.ndarray) -> None:
        words[:] = 0
        words[0] = 0b110

    def advance(self, token: int) -> None: ...


def test_a_mask_and_a_constraint_both_hold() -> None:
    logits = np.arange(40, dtype=np.float32)[None]
    state = SamplingState(SamplingParams(temperature=0), 0, constraint=Only())
    assert sampling.sample(logits, [state]) == [2]
    masks = np.full((1, 2), 0xFFFFFFFF, np.uint32)
    masks[0, 0] = 0b1010
    assert sampling.sample(logits, [state], masks) == [1]
