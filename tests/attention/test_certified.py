"""Certified attention: the sketch's bounds hold, and no more than `eps` is ever missing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from caches import cache_of
from suffice.attention.certified import Certified
from suffice.attention.certified_reference import Walk
from suffice.attention.exact import Exact
from suffice.attention.sketch import CHUNK, LAG, Sketch, estimate, sketch
from suffice.backends.cpu.attention import attend
from suffice.cache import BLOCK
from suffice.cache.kv import KVCache
from suffice.errors import InputError

SIZE = 64
Keys = Callable[[torch.Generator], np.ndarray]


def normal(generator: torch.Generator, *shape: int) -> np.ndarray:
    return torch.randn(*shape, generator=generator).numpy()


def plain(generator: torch.Generator) -> np.ndarray:
    return normal(generator, 500, SIZE)


def outlier_channel(generator: torch.Generator) -> np.ndarray:
    keys = plain(generator)
    keys[:, 7] *= 40
    keys[100, 9] = 300
    return keys


def duplicates(generator: torch.Generator) -> np.ndarray:
    keys = plain(generator)
    keys[64:256] = keys[64]
    keys[:, 3] = 2.5
    return keys


def far_needle(generator: torch.Generator) -> np.ndarray:
    keys = 0.1 * plain(generator)
    keys[33] = 3
    return keys


def last_of_blocks(generator: torch.Generator) -> np.ndarray:
    """Of 16 keys, codes give all but the last exactly."""
    keys = plain(generator)
    others = np.arange(500) % BLOCK < BLOCK - 1
    keys[others] = np.sign(keys[others])
    return np.clip(keys, -1, 1)


ADVERSARIES = (plain, outlier_channel, duplicates, far_needle, last_of_blocks)


def sketched(keys: np.ndarray, values: np.ndarray, dtype: str = "float32") -> KVCache:
    return cache_of(keys[None], values[None], dtype, sketch=True)


@pytest.mark.parametrize("adversary", ADVERSARIES, ids=lambda each: each.__name__)
def test_scores_are_within_the_bound(adversary: Keys) -> None:
    generator = torch.Generator().manual_seed(0)
    keys = adversary(generator)
    for seed in range(200):
        q = normal(generator, 3, SIZE) * 2.0 ** (seed % 7 - 3)
        rows = keys[64 * (seed % 7) :][:CHUNK]
        scores, errors = estimate(sketch(rows), q)
        true = q.astype(np.float64) @ rows.astype(np.float64).T
        assert (np.abs(true - scores) <= np.repeat(errors, 16, -1)).all()


@pytest.mark.parametrize("first", [16, 80, 176])  # within chunks
def test_rows_before_a_window_are_neither_read_nor_estimated(first: int) -> None:
    generator = torch.Generator().manual_seed(0)
    keys, values, q = plain(generator), plain(generator), 2 * normal(generator, 2, 1, SIZE)
    keys[:first] *= 20
    technique = Certified(eps=0.3)
    options = {"scale": SIZE**-0.5}
    cache = sketched(keys, values)
    found, (reads,) = attend(technique.rule(), q, cache, 0, window=500 - first, **options)
    rows = q.astype(np.float64), keys[None].astype(np.float64), values[None].astype(np.float64)
    exact = technique.reference(*rows, visible=np.arange(500)[None] >= first, **options)
    assert reads.key_rows == exact.keys.sum() < 500 - first
    np.testing.assert_allclose(found, exact.output, atol=1e-5)


def test_the_bound_test_bites() -> None:
    keys = plain(torch.Generator().manual_seed(0))[:CHUNK]
    found = sketch(keys)
    wrong = Sketch(found.codes, found.scale, found.low, 0.2 * found.residual)
    q = normal(torch.Generator().manual_seed(1), 50, SIZE)
    scores, errors = estimate(wrong, q)
    true = q.astype(np.float64) @ keys.astype(np.float64).T
    assert (np.abs(true - scores) > np.repeat(errors, 16, -1)).any()


@pytest.mark.parametrize("adversary", ADVERSARIES, ids=lambda each: each.__name__)
@pytest.mark.parametrize(
    "technique", [Certified(eps=0.05), Certified(eps=0.3, values=0.02)], ids=str
)
def test_no_more_than_eps_is_missing(technique: Certified, adversary: Keys) -> None:
    """Thousands of queries in all, in float64; the native kernel reads the same rows."""
    generator = torch.Generator().manual_seed(3)
    keys = adversary(generator)
    values = normal(generator, 500, SIZE)
    cache, skipped = sketched(keys, values), 0
    for spread in (0.3, 1.0, 3.0) * 4:
        q = spread * normal(generator, 8, 6, SIZE)
        visible = np.tri(6, 500, 494, bool)
        wide, k, v = (each.astype(np.float64) for each in (q, keys[None], values[None]))
        found = technique.reference(wide, k, v, scale=0.125, visible=visible)
        scores = torch.from_numpy(np.where(visible, 0.125 * wide @ k[0].T, -np.inf))
        missing = (scores.softmax(-1).numpy() * ~found.values[:, 0]).sum(-1)
        assert missing.max() <= technique.eps
        skipped += int((~found.values).sum())
        out, reads = attend(technique.rule(), q, cache, 0, scale=0.125)
        np.testing.assert_allclose(out, found.output, rtol=1e-4, atol=2e-5)
        assert reads[0].key_rows == int(found.keys.sum())
        assert missing.max() - 1e-6 <= reads[0].missing <= technique.eps
    assert skipped > 0 or adversary is outlier_channel, "something was left out"


def test_without_a_bound_less_is_read_and_more_may_be_missing() -> None:
    generator = torch.Generator().manual_seed(0)
    keys, values = plain(generator), plain(generator)
    q = 3 * normal(generator, 4, 1, SIZE)
    read = [
        int(Certified(eps=0.1, bounded=bounded).reference(q, keys[None], values[None], scale=0.125)
            .keys.sum())
        for bounded in (True, False)
    ]  # fmt: skip
    assert read[1] < read[0] <= 500


def test_nothing_missing_is_exact_to_the_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    cache = sketched(plain(generator), plain(generator), "bfloat16")
    q = normal(generator, 4, 3, SIZE)
    limit = Certified.exact_limit()
    assert not limit.sketched
    found, exact = (attend(each.rule(), q, cache, 0, scale=0.1)[0] for each in (limit, Exact()))
    assert np.array_equal(found, exact)


@pytest.mark.parametrize("end", [LAG + 2 * CHUNK + 3, 3 * CHUNK + 2])
def test_a_chain_gives_the_bits_of_single_steps(end: int) -> None:
    """Also where a chunk is completed or comes into use in the middle of the chain."""
    generator = torch.Generator().manual_seed(0)
    keys, values = plain(generator)[:end], plain(generator)[:end]
    q = 3 * normal(generator, 4, 8, SIZE)
    technique = Certified(eps=0.5, bounded=False)
    together = attend(technique.rule(), q, sketched(keys, values), 0, scale=0.125)[0]
    for i in range(8):
        rows = end - 7 + i
        cache = sketched(keys[:rows], values[:rows])
        alone = attend(technique.rule(), q[:, i : i + 1], cache, 0, scale=0.125)[0]
        assert np.array_equal(alone[:, 0], together[:, i])


def test_the_heaviest_come_first() -> None:
    keys = far_needle(torch.Generator().manual_seed(0))
    keys = keys.astype(np.float64)
    walk = Walk(Certified(eps=0.2), np.ones((1, SIZE)), keys, keys, np.ones(500, bool))
    walk.go()
    assert walk.keys[33] and not walk.keys[128:384].any()


def test_the_sketch_is_part_of_the_cache() -> None:
    generator = torch.Generator().manual_seed(0)
    keys, values = plain(generator), plain(generator)
    cache = sketched(keys, values)
    without = cache_of(keys[None], values[None])
    header = -(-(2 * SIZE * 2 + CHUNK // BLOCK * 4) // 32) * 32
    per_row = (header + CHUNK * SIZE // 2) // CHUNK
    assert cache.row_bytes == without.row_bytes + per_row
    assert cache.bytes > without.bytes
    with pytest.raises(ValueError, match="the cache has no sketch of its keys"):
        attend(Certified().rule(), np.ones((1, 1, SIZE), np.float32), without, 0, scale=0.1)


def test_rows_that_were_dropped_leave_no_sketch() -> None:
    """A chunk that lost some rows is sketched again once it is whole."""
    generator = torch.Generator().manual_seed(0)
    keys, values, later = (plain(generator) for _ in range(3))
    q, rule, cut = normal(generator, 4, 1, SIZE), Certified(eps=0.3).rule(), 3 * CHUNK + 20
    cache = sketched(keys, values)
    before = attend(rule, q, cache, 0, scale=0.1)[0]
    cache.truncate(cut)
    keys[cut:] = 4 * later[cut:]
    cache.append(0, keys[None, cut:], values[None, cut:])
    cache.advance(len(keys) - cut)
    fresh = sketched(keys, values)
    found, expected = (attend(rule, q, each, 0, scale=0.1)[0] for each in (cache, fresh))
    assert np.array_equal(found, expected) and not np.array_equal(found, before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps": 1.0}, r"certified: eps=1.0: must be 0 or in \[1e-06, 0.999999\]"),
        ({"eps": 1e-9}, r"certified: eps=1e-09: must be 0 or in"),
        ({"eps": -0.1}, r"certified: eps=-0.1: must be 0 or in"),
        ({"values": 2.0}, r"certified: values=2.0: must be in \[0, 1\]"),
    ],
)
def test_bad_options(options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Certified(**options)  # type: ignore[arg-type]
