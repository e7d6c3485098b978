"""The laws of coded softmaxes with each attention that takes one; each is shown to bite.

A score that is nearer to a border than rounding reaches may get the code on either side: heads that
have such a score are left out of comparisons with the reference, and few are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_contract import HEADS, SCALE, SIZES, filled, normal

from caches import as_multiplied, digest, held
from oracle import assert_matches, max_error
from pairs import pairwise
from suffice.attention import ATTENTIONS
from suffice.attention.exact import Exact
from suffice.attention.exaq import EXAQ
from suffice.attention.exaq_km import levels_of
from suffice.attention.levels import Levels
from suffice.attention.rule import coded_rule, coded_rules
from suffice.attention.traversal import Attended
from suffice.backends.cpu.attention import attend
from suffice.cache import GROWTHS, KV_DTYPES, alike
from suffice.cache.kv import KVCache
from suffice.native import core

# Of scores, for types whose queries are rounded.
MARGINS = {"int8": 1e-3, "kmeans4": 5e-3, "planes": 1e-3}
ERRORS = {"int8": 5e-4, "kmeans4": 2e-2, "planes": 2e-2}  # and whose weights are
SPREAD = 2  # of queries: scores have a standard deviation of some 2
LEVELS = {
    "exaq 2": EXAQ(2).layer_levels(2.0, -30.0),
    "exaq 3": EXAQ(3).layer_levels(2.0, -30.0),
    "exaq 4 flush": EXAQ(4, tail="flush").layer_levels(2.0, -30.0),
    "exaq_km 2": levels_of((0.002, 0.1, 0.4, 0.9)),
}
STOPPING = (
    "aet:keys=0.8,values=0.1",
    "art:change=1,angle=0.5,patience=2,block=32,values=0.1",
    "skip_softmax:factor=30,block=16",
)


def visible_of(cache: KVCache, count: int, window: int | None) -> np.ndarray:
    before = cache.length - count
    seen = np.tri(count, cache.length, before, bool)
    return seen if window is None else seen & ~np.tri(count, cache.length, before - window, bool)


def run(
    levels: Levels, attention: str, q: np.ndarray, cache: KVCache, window: int | None = None
) -> tuple[np.ndarray, list[core.Reads]]:
    technique = ATTENTIONS.build(attention)
    group = len(q) // cache.heads(0)
    rule = coded_rule(technique.rule(), [levels] * group)
    return attend(rule, q, cache, 0, scale=SCALE, window=window)


_references: dict[Any, Attended] = {}  # which take long, and are the same for all ISAs


def reference(
    levels: Levels,
    attention: str,
    q: np.ndarray,
    cache: KVCache,
    dtype: type = np.float64,
    window: int | None = None,
) -> Attended:
    rows = as_multiplied(q, cache, SCALE), *held(cache)
    key = levels, attention, window, dtype, digest(*rows)
    if key not in _references:
        q, k, v = (each.astype(dtype) for each in rows)
        visible = visible_of(cache, q.shape[1], window)
        _references[key] = ATTENTIONS.build(attention).reference(
            q, k, v, scale=SCALE, visible=visible, levels=[levels] * len(q)
        )
    return _references[key]


def certain(
    levels: Levels, q: np.ndarray, cache: KVCache, window: int | None, margin: float
) -> np.ndarray:
    """Return the heads and tokens without a score within `margin` of a border, bool [H, T]."""
    keys = np.repeat(held(cache)[0].astype(np.float64), len(q) // cache.heads(0), 0)
    scores = SCALE * as_multiplied(q, cache, SCALE).astype(np.float64) @ keys.swapaxes(1, 2)
    scores = np.where(visible_of(cache, q.shape[1], window), scores, -np.inf)
    x = scores - scores.max(-1, keepdims=True)
    return np.abs(x[..., None] - np.array(levels.borders)).min((2, 3)) > margin


def native_equals_reference(levels: Levels) -> None:
    compared = total = 0
    dtypes = itertools.cycle(KV_DTYPES)  # seven sizes: each meets all of them
    shapes = itertools.product(HEADS, SIZES)
    for ((groups, rep), (size, rows)), dtype in zip(shapes, dtypes, strict=False):
        for window in (None, 2, 200) if rows > 200 else (None,):  # 2: without the first draft
            cache, count = filled(groups, size, rows, dtype), min(rows, 3)
            q = SPREAD * normal(groups * rep, count, size)
            out = run(levels, "exact", q, cache, window)[0]
            exact = reference(levels, "exact", q, cache, window=window).output
            sure = certain(levels, q, cache, window, MARGINS.get(dtype, 1e-5))
            compared, total = compared + int(sure.sum()), total + sure.size
            if not sure.any():
                continue
            if dtype in MARGINS:  # queries and weights are rounded
                assert max_error(out[sure], exact[sure]) < ERRORS[dtype] * np.abs(exact).max()
                continue
            same = reference(levels, "exact", q, cache, np.float32, window).output
            assert_matches(out[sure], exact[sure], same[sure], factor=8)
    assert compared > 0.6 * total


def what_was_read_is_counted(levels: Levels) -> None:
    for (size, rows), (groups, rep), window in pairwise(SIZES, HEADS, (None, 200)):
        cache, count = filled(groups, size, rows), min(rows, 3)
        q = SPREAD * normal(groups * rep, count, size)
        read = reference(levels, "exact", q, cache, window=window)
        alone = sum(
            reference(levels, "exact", q[h::rep], cache, window=window).values.sum((0, 2))
            for h in range(rep)
        )
        sure = certain(levels, q, cache, window, 1e-5).reshape(groups, -1).all(-1)
        gone = max(rows - count + 1 - 200, 0) if window else 0  # before the first token
        for first in (True, False):
            found = run(levels, "exact", q, cache, window)[1]
            for group in np.flatnonzero(sure).tolist():
                summed = count + (rows - count) * first  # each row when it comes, once
                summed += gone + count - 1 if gone else 0  # and when it goes: drafts are not kept
                summed *= levels.weights[0] > 0
                own = found[group]
                assert own.value_rows == int(read.values[:, group].sum()) + summed
                assert own.per_head_rows == int(alone[group]) + rep * summed
                if window is None:
                    assert own.key_rows == int(read.keys[:, group].sum())


def a_batch_equals_its_rows(levels: Levels) -> None:
    for window in (None, 100):
        cache = filled(2, 64, 300)
        q = SPREAD * normal(8, 4, 64)
        together = run(levels, "exact", q, cache, window)[0]
        for i in range(4):
            cache.truncate(297 + i)
            alone = run(levels, "exact", q[:, i : i + 1], cache, window)[0]
            cache.native.settle(0)
            assert np.array_equal(alone[:, 0], together[:, i])
            cache.reserve(3 - i)
            cache.advance(3 - i)  # the rows are still there


def what_is_rolled_back_leaves_no_trace(levels: Levels) -> None:
    """Drafts, with values that would show, come and go; the sum of values is as it was."""
    cache, fresh = filled(2, 64, 300), filled(2, 64, 300)
    for each in (cache, fresh):
        each.reserve(8)
    drafts, q = normal(2, 1, 2, 3, 64), normal(8, 1, 64)

    def attended(each: KVCache, rows: np.ndarray, parents: list[int]) -> np.ndarray:
        each.append_tentative(rows[0], rows[1], parents)
        return run(levels, "exact", np.repeat(q, len(parents), 1), each)[0]

    attended(cache, 1e6 * drafts, [-1, 0, 0])
    cache.rollback()
    attended(cache, drafts, [-1, 0, 0])
    cache.commit([0, 2])  # a path that is not how the rows lie
    attended(cache, 1e6 * drafts, [-1, 0, 1])
    cache.rollback()
    cache.append_tentative(*drafts[..., :1, :], [-1])  # never attended from
    cache.commit([0])
    for part in (slice(0, 1), slice(2, 3), slice(0, 1)):
        fresh.append(0, drafts[0, 0, :, part], drafts[1, 0, :, part])
        fresh.advance(1)
    outs = [attended(each, drafts[..., 2:, :], [-1]) for each in (cache.fork(), cache, fresh)]
    assert all(np.array_equal(out, outs[0]) for out in outs)
    for each in (cache, fresh):
        each.rollback()
    cache.truncate(200)
    fresh = filled(2, 64, 300)
    fresh.truncate(200)
    outs = [attended(each, drafts[..., 1:2, :], [-1]) for each in (cache, fresh)]
    assert np.array_equal(outs[0], outs[1])


def stopping_equals_reference(levels: Levels) -> None:
    compared = 0
    sizes = [size for size in SIZES if size[-1] in (2, 33, 300, 600)]
    for attention, (groups, rep), (size, rows) in pairwise(STOPPING, HEADS, sizes):
        cache, count = filled(groups, size, rows), min(rows, 3)
        q = SPREAD * normal(groups * rep, count, size)
        out, reads = run(levels, attention, q, cache)
        found = reference(levels, attention, q, cache)
        counted = [int(found.keys[:, group].sum()) for group in range(groups)]
        if [each.key_rows for each in reads] != counted:
            continue  # a code on the border, so another stop
        off = np.abs(out - found.output).max(-1) > 1e-5
        compared += int((~off).sum())
        assert int(off.sum()) <= 0.1 * off.size + 1
    assert compared > 100


LAWS: list[Callable[[Levels], None]] = [
    native_equals_reference,
    what_was_read_is_counted,
    a_batch_equals_its_rows,
    what_is_rolled_back_leaves_no_trace,
    stopping_equals_reference,
]


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_law(law: Callable[[Levels], None], name: str, each_isa: str) -> None:
    law(LEVELS[name])


def _twin(change: Callable[[Levels], Levels]) -> Callable[..., object]:
    genuine = run

    def broken(levels: Levels, *args: object, **kwargs: object) -> object:
        return genuine(change(levels), *args, **kwargs)  # type: ignore[arg-type]

    return broken


def _higher(levels: Levels) -> Levels:
    return Levels(tuple(border + 0.1 for border in levels.borders), levels.weights)


def _heavier(levels: Levels) -> Levels:
    return Levels(levels.borders, (levels.weights[0] * 1.01, *levels.weights[1:]))


@pytest.mark.parametrize(
    ("law", "change"),
    [
        (native_equals_reference, _heavier),
        (native_equals_reference, _higher),
        (what_was_read_is_counted, _higher),
        (stopping_equals_reference, _higher),
    ],
)
def test_law_bites(
    law: Callable[[Levels], None],
    change: Callable[[Levels], Levels],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(law.__globals__, "run", _twin(change))
    with pytest.raises(AssertionError):
        law(LEVELS["exaq 2"])


def test_values_below_the_first_border_are_not_read() -> None:
    """Were they touched, values that are not numbers would show."""
    cache = KVCache(
        alike(1, 1, 64), growth=GROWTHS.build("double"), limit=512, key_dtype="float32",
        value_dtype="float32",
    )  # fmt: skip
    cache.reserve(200)
    k, v = np.zeros((1, 200, 64), np.float32), np.ones((1, 200, 64), np.float32)
    k[:, :, 0] = -100.0
    k[:, 150:, 0] = 0.0
    v[:, :150] = np.nan
    cache.append(0, k, v)
    cache.advance(200)
    q = np.zeros((2, 1, 64), np.float32)
    q[..., 0] = 10
    flushed = EXAQ(2, tail="flush").layer_levels(2.0, -30.0)
    out, (reads,) = run(flushed, "exact", q, cache)
    np.testing.assert_allclose(out, 1, rtol=1e-6)
    assert (reads.key_rows, reads.value_rows) == (200, 50)


def test_heads_of_a_group_have_levels_of_their_own() -> None:
    cache = filled(1, 64, 100)
    q = SPREAD * normal(2, 1, 64)
    pair = [LEVELS["exaq 2"], LEVELS["exaq_km 2"]]
    out = attend(coded_rule(None, pair), q, cache, 0, scale=SCALE)[0]
    wide = (each.astype(np.float64) for each in (q, *held(cache)))
    expected = Exact().reference(*wide, scale=SCALE, levels=pair).output
    np.testing.assert_allclose(out, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("attention", ["exact", *STOPPING])
def test_groups_have_levels_of_their_own(attention: str) -> None:
    shapes = (4, 2, 64), (2, 90, 64), (2, 90, 64)
    q, k, v = (normal(*shape).astype(np.float64) for shape in shapes)
    levels, technique = list(LEVELS.values()), ATTENTIONS.build(attention)
    both = technique.reference(SPREAD * q, k, v, scale=SCALE, levels=levels)
    rules = coded_rules([[technique.rule(), technique.rule()]], [levels])[0]
    for g, own in enumerate((slice(2), slice(2, 4))):
        parts = SPREAD * q[own], k[g : g + 1], v[g : g + 1]
        alone = technique.reference(*parts, scale=SCALE, levels=levels[own])
        np.testing.assert_array_equal(both.output[own], alone.output)
        assert rules[g].softmax_tables == tuple(levels[own])


def test_what_the_core_refuses() -> None:
    levels, cache = LEVELS["exaq 2"], filled(1, 64, 10)
    rule = coded_rule(None, [levels])
    with pytest.raises(ValueError, match="levels for each of the 2 query heads"):
        attend(rule, normal(2, 1, 64), cache, 0, scale=SCALE)
    certified = coded_rule(ATTENTIONS.build("certified").rule(), [levels])
    with pytest.raises(ValueError, match="the certified rule needs the exact softmax"):
        attend(certified, normal(1, 1, 64), cache, 0, scale=SCALE)
    for borders, weights, message in (
        ([[0.0] * 3], [], "one entry per head"),
        ([[0.0] * 3], [[1.0] * 5], "4, 8 or 16 weights"),
        ([[0.0] * 4], [[1.0] * 4], "one fewer than weights"),
        ([[0.0, 1.0, 0.0]], [[1.0] * 4], "borders must ascend"),
        ([[0.0] * 3], [[-1.0] * 4], "weights cannot be negative"),
    ):
        with pytest.raises(ValueError, match=message):
            core.AttentionRule("read_all", {}, 0.0).with_softmax_tables(borders, weights)
