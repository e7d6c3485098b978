"""Early termination against the example of its paper, and its state from token to token."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from caches import cache_of, empty_cache
from suffice.attention.aet import AET
from suffice.attention.exact import Exact
from suffice.attention.traversal import Seen
from suffice.backends.cpu.attention import attend as attend_natively
from suffice.errors import InputError


def seen(weights: list[float], length: int) -> Seen:
    """Return what a single head has seen of keys with these weights."""
    row = np.array([weights])
    return Seen(length, len(weights), row, row.max(-1), np.zeros((1, 1)))


def test_the_papers_example() -> None:
    """Fig. 3: .6, .3 and .1 of six are known, so the others count as .2 each: 1 / 1.6 < .9."""
    aet = AET(keys=0.9, block=1)
    assert not aet.enough(seen([0.6, 0.3, 0.1], 6), None)
    assert AET(keys=0.625, block=1).enough(seen([0.6, 0.3, 0.1], 6), None), "equality stops"
    assert not AET(keys=0.626, block=1).enough(seen([0.6, 0.3, 0.1], 6), None)
    # the sum is 1 and one key is left, which counts as .1: 1 / 1.1
    assert aet.enough(seen([0.6, 0.2, 0.1, 0.07, 0.03], 6), None)


def attend(aet: AET, weights: list[float], value_of: int) -> tuple[float, list[bool], list[bool]]:
    """Attend to keys of these weights (D = 1); the output is the share of key `value_of`."""
    k = np.array([[[math.log(weight)] for weight in weights]])
    v = np.zeros_like(k)
    v[0, value_of] = 1
    found = aet.reference(np.ones((1, 1, 1)), k, v, scale=1.0)
    return found.output.item(), found.keys[0, 0].tolist(), found.values[0, 0].tolist()


def test_keys_come_newest_first_until_they_suffice() -> None:
    aet = AET(keys=0.9, values=0, block=1, sinks=1, globals=0, locals=2)
    # Known first are 0, 4 and 5. With 3 and 2 the sum is 1.02 and the mean without the largest
    # .105: 1.02 / 1.125 > .9, where it was .98 / 1.233 before.
    share, keys, values = attend(aet, [0.6, 9.0, 0.04, 0.02, 0.06, 0.3], 0)
    assert keys == [True, False, True, True, True, True] == values
    assert share == pytest.approx(0.6 / 1.02)


@pytest.mark.parametrize("native", [False, True])
def test_the_first_check_comes_after_one_more_token(native: bool) -> None:
    """Right after the tokens that are always read, .97 of an estimated 1.0 would suffice."""
    aet = AET(keys=0.9, values=0, block=1, sinks=1, globals=0, locals=1)
    weights = [0.96, 0.01, 0.01, 0.01, 0.01]
    if not native:
        assert attend(aet, weights, 0)[1] == [True, False, False, True, True]
        return
    keys = np.zeros((1, len(weights), 64), np.float32)
    keys[0, :, 0] = np.log(weights)
    query = np.zeros((1, 1, 64), np.float32)
    query[..., 0] = 1
    reads = attend_natively(aet.rule(), query, cache_of(keys, keys), 0, scale=1.0)[1]
    assert (reads[0].key_rows, reads[0].value_rows) == (3, 3)


@pytest.mark.parametrize("visible", [[0b001, 0b011, 0b101], [0b001, 0b011, 0b111]])
def test_rows_of_other_drafts_are_not_read(visible: list[int]) -> None:
    """With `block=1` the newest rows are listed one by one, also in a tree of drafts."""
    cache, parents = empty_cache(1, 1, 64), [-1, 0, 0 if visible[2] == 0b101 else 1]
    generator = torch.Generator().manual_seed(1)
    keys, values = (torch.randn(1, 43, 64, generator=generator).numpy() for _ in range(2))
    queries = torch.randn(2, 3, 64, generator=generator).numpy()
    cache.reserve(43)
    cache.append(0, keys[:, :40], values[:, :40])
    cache.advance(40)
    cache.append_tentative(keys[None, :, 40:], values[None, :, 40:], parents)
    aet = AET(keys=2, values=1e-9, block=1, globals=8, locals=4)  # leaves out next to nothing
    out, reads = attend_natively(aet.rule(), queries, cache, 0, scale=0.125)
    sees = np.ones((3, 43), bool)
    sees[:, 40:] = [[bits >> draft & 1 for draft in range(3)] for bits in visible]
    found = Exact().reference(queries, keys, values, scale=0.125, visible=sees)
    np.testing.assert_allclose(out, found.output, rtol=1e-4, atol=1e-5)
    assert reads[0].key_rows == sees.sum()


def test_values_of_light_keys_are_not_read_but_weigh() -> None:
    aet = AET(keys=2, values=0.1, block=1, sinks=1, globals=0, locals=1)
    share, keys, values = attend(aet, [0.5, 0.04, 0.05, 0.3, 0.01], 3)
    assert all(keys) and values == [True, False, True, True, True], ".05 is a tenth of the largest"
    assert share == pytest.approx(0.3 / 0.9), "the sum is over all keys that were read"


def test_global_tokens_are_those_that_weighed_most() -> None:
    aet = AET(block=1, sinks=1, globals=2, locals=1)
    state = aet.new_state()
    assert aet.always(state, 4) == [0, 1, 2, 3]
    aet.learn(state, {0: 0.5, 1: 0.3, 2: 0.1, 3: 0.1})
    assert aet.always(state, 5) == [0, 1, 3, 4], "2 was the lightest"
    aet.learn(state, {0: 0.5, 1: 0.0, 3: 0.4, 4: 0.1})
    assert aet.always(state, 6) == [0, 3, 4, 5], "1 had .3 in all, 3 has .5"


@pytest.mark.parametrize("block", [1, 16])
def test_what_was_found_is_kept_by_the_cache(block: int) -> None:
    """Steps on a cache that is forked, with drafts that are taken back, equal the reference."""
    aet = AET(keys=0.8, values=0.01, globals=32, locals=8, block=block)
    generator = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(1, 220, 64, generator=generator).numpy() for _ in range(2))
    queries = 3 * torch.randn(4, 220, 64, generator=generator).numpy()
    keys[:, ::37] += 0.3 * queries.mean(1)[:1]
    cache = empty_cache(1, 1, 64)
    states = [aet.new_state()]
    for length in range(1, 221):
        cache.reserve(3)
        if length % 7 == 0:
            cache.append_tentative(
                keys[None, :, :2], values[None, :, :2], [-1, 0]
            )  # drafts of no use
            attend_natively(aet.rule(), queries[:, :2], cache, 0, scale=0.125)
            cache.rollback()
        if length == 150:
            cache = cache.fork()
        row = slice(length - 1, length)
        cache.append_tentative(keys[None, :, row], values[None, :, row], [-1])
        out = attend_natively(aet.rule(), queries[:, row], cache, 0, scale=0.125)[0]
        cache.commit([0])
        found = aet.reference(
            queries[:, row], keys[:, :length], values[:, :length], scale=0.125, states=states
        )
        np.testing.assert_allclose(out, found.output, rtol=1e-4, atol=1e-5)
    assert found.keys.sum() < 220


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys": 0}, "aet: keys=0: must be above 0"),
        ({"keys": 3}, "aet: keys=3: must be above 0 and at most 1, or all"),
        ({"values": -1}, r"aet: values=-1: must be in \[0, 1\]"),
        ({"order": "sketch", "block": 1}, "aet: block=1: order=sketch needs block=16"),
        ({"block": 0}, "aet: block=0: must be at least 1 token"),
        ({"globals": -1}, "aet: globals=-1: must be at least 0 tokens"),
        ({"locals": 0}, "aet: locals=0: must be at least 1"),
    ],
)
def test_bad_options(options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        AET(**options)  # type: ignore[arg-type]


def test_the_kernel_has_two_block_sizes() -> None:
    with pytest.raises(InputError, match="aet: block=8: the native kernel has blocks of 16 tokens"):
        AET(block=8).rule()
