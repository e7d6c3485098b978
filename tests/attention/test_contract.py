"""The laws of the attention seam, over every registered technique; each is shown to bite.

Also tests technique.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from caches import as_multiplied, cache_of, digest, held, held_planes, in_pairs
from oracle import assert_matches, max_error
from pairs import pairwise
from suffice import native
from suffice.attention import ATTENTIONS
from suffice.attention.aet import AET
from suffice.attention.exact import Exact
from suffice.attention.rule import AttentionRule
from suffice.attention.tiers import Tiers
from suffice.attention.tiers_reference import Tiered
from suffice.attention.traversal import Attended
from suffice.backends.cpu.attention import attend
from suffice.backends.cpu.rules import native_rule
from suffice.cache import KV_DTYPES
from suffice.cache.kv import KVCache

HEADS = ((1, 1), (2, 4), (1, 8), (2, 3))  # groups, and query heads of each
SIZES = ((64, 1), (80, 2), (128, 31), (64, 32), (64, 33), (80, 300), (128, 600))  # of heads, rows
SCALE = 0.1  # about 1 / sqrt(D)
# Weights and queries are rounded to 15 bits for int8; weights to 8 for codes, and for bfloat16
# where it is multiplied in pairs.
ROUNDED = {"int8": 2e-4, "planes": 2e-2, "kmeans4": 2e-2, "bfloat16": 4e-3}
BY_BASE = 2e-2  # of `tiers`: weights of values by base planes have 8 bits


def filled(
    groups: int, size: int, rows: int, dtype: str = "float32", technique: Any = None
) -> KVCache:
    """Return a cache with what the technique needs.

    If it needs bases, its reference knows what each row alone is stored as, so keys are rounded one
    by one.
    """
    options = {"rounding": None, "bases": True} if technique and technique.based else {}
    torch.default_generator.manual_seed(rows + size)  # not that of devices, which takes longer
    keys, values = normal(2, groups, rows, size)
    return cache_of(keys, values, dtype, sketch=True, **options)


def types_for(technique: Any) -> tuple[str, ...]:
    """Return types of rows that differ in what is counted and how it is stored."""
    return ("float32", "planes") if technique.based else ("float32",)


def normal(*shape: int) -> np.ndarray:
    return torch.randn(*shape).numpy()


_references: dict[Any, Attended] = {}  # which take long, and are the same for all ISAs


def reference(technique: Any, q: np.ndarray, cache: KVCache, dtype: type) -> Attended:
    count = q.shape[1]
    if not technique.based or cache.native.key_type == "kmeans4":  # else scores are estimated by q
        q = as_multiplied(q, cache, SCALE, fitted=not technique.based)
    visible = np.tri(count, cache.length, cache.length - count, bool)
    k, v = held(cache)
    key = technique, digest(q, k, v), dtype
    if key not in _references:
        given = {"stored": held_planes(cache)} if technique.based else {}
        _references[key] = technique.reference(
            q.astype(dtype), k.astype(dtype), v.astype(dtype), scale=SCALE, visible=visible, **given
        )
    return _references[key]


def plain(q: np.ndarray, cache: KVCache) -> np.ndarray:
    """Return what plain PyTorch makes of exact attention in float32."""
    k, v = (torch.from_numpy(np.repeat(each, len(q) // len(each), 0)) for each in held(cache))
    visible = torch.ones(q.shape[1], cache.length, dtype=torch.bool).tril(cache.length - q.shape[1])
    scores = SCALE * torch.from_numpy(q) @ k.transpose(1, 2)
    return (scores.masked_fill(~visible, float("-inf")).softmax(-1) @ v).numpy()


def attended(technique: Any, q: np.ndarray, cache: KVCache) -> np.ndarray:
    """Return the native output, or what a broken technique makes of it."""
    if isinstance(technique, Broken):
        return technique.attended(q, cache)
    return attend(technique.rule(), q, cache, 0, scale=SCALE)[0]


def its_share(technique: Any, cases: list[Any]) -> list[Any]:
    """Return all cases of the defaults; of another setting a third, which its neighbours add to."""
    at = next((at for at, each in enumerate(ADDED) if ATTENTIONS.build(each) == technique), None)
    return cases if at is None else cases[at % 3 :: 3]


def native_equals_reference(technique: Any) -> None:
    cases = its_share(technique, pairwise(SIZES, KV_DTYPES, HEADS))
    for (size, rows), dtype, (groups, rep) in cases:
        cache, count = filled(groups, size, rows, dtype, technique), min(rows, 3)
        q = normal(groups * rep, count, size)
        out = attended(technique, q, cache)
        exact = reference(technique, q, cache, np.float64).output
        if technique.based:
            most = 1.5 * BY_BASE if dtype == "kmeans4" else BY_BASE  # heavy values have 4 bits, too
            assert max_error(out, exact) < most * np.abs(exact).max()
            continue
        if dtype in ROUNDED and (dtype != "bfloat16" or in_pairs(dtype)):
            assert max_error(out, exact) < ROUNDED[dtype] * np.abs(exact).max()
            continue
        if technique.rule() is None:
            assert_matches(out, exact, plain(q, cache), factor=4)
            continue
        same = reference(technique, q, cache, np.float32).output
        assert_matches(out, exact, same, factor=8)  # one float32 sum over all rows, not over 256


def what_was_read_is_counted(technique: Any) -> None:
    shapes = pairwise(SIZES, HEADS, (1, 3), types_for(technique))
    for (size, rows), (groups, rep), spread, dtype in its_share(technique, shapes):
        cache, count = filled(groups, size, rows, dtype, technique), min(rows, 3)
        q = spread * normal(groups * rep, count, size)
        if technique.rule() is None:
            continue  # nothing is left out
        found = attend(technique.rule(), q, cache, 0, scale=SCALE)[1]
        read = reference(technique, q, cache, np.float64)
        held = sum(range(rows - count + 1, rows + 1))
        for group, reads in enumerate(found):
            sampled = int(read.sampled[:, group].sum()) if isinstance(read, Tiered) else 0
            assert reads.key_rows == int(read.keys[:, group].sum()) + sampled
            assert reads.value_rows == int(read.values[:, group].sum())
            assert reads.value_rows <= reads.per_head_rows <= rep * reads.value_rows
            assert reads.dense_rows == held
            if isinstance(read, Tiered):
                visible = count * rows - sum(range(count))
                alone = visible - reads.key_rows if dtype == "planes" else visible
                by_base = alone + int(read.light[:, group].sum())
                bounds = technique.bounded or technique.sample
                errors = 2 * visible if bounds else 0  # bytes, of keys and values
                assert reads.sketch_bytes == by_base * (size // 2 + 4) + errors
                assert reads.missing <= technique.eps or not technique.bounded
                assert abs(reads.missing - read.distance[:, group].max()) < 1e-3
                assert abs(reads.shift - read.shift[:, group].max()) < 2e-3


def exact_at_the_limit(technique: Any) -> None:
    limit = technique.exact_limit()
    cache = filled(2, 64, 300, technique=limit)
    q = normal(8, 2, 64)
    out = attended(limit, q, cache)
    exact = reference(Exact(), q, cache, np.float64).output
    assert_matches(out, exact, plain(q, cache), factor=4)


def a_batch_equals_its_rows(technique: Any) -> None:
    for dtype in types_for(technique):
        cache = filled(2, 64, 300, dtype, technique)
        q = normal(8, 4, 64)
        together = attended(technique, q, cache)
        for i in range(4):
            cache.truncate(297 + i)
            alone = attended(technique, q[:, i : i + 1], cache)
            cache.native.settle(0)
            assert np.array_equal(alone[:, 0], together[:, i])
            cache.reserve(3 - i)
            cache.advance(3 - i)  # the rows are still there


def what_is_rolled_back_leaves_no_trace(technique: Any) -> None:
    for dtype in types_for(technique):
        cache, other = (filled(2, 64, 300, dtype, technique) for _ in range(2))
        q = normal(8, 3, 64)
        attended(technique, 2 * q, cache)  # never settled
        for each in (cache, other):
            attended(technique, q, each)
            each.native.settle(1)
        copy = cache.fork()
        outs = [attended(technique, q, each) for each in (cache, other, copy)]
        assert np.array_equal(outs[0], outs[1]) and np.array_equal(outs[0], outs[2])


def inputs_are_left_alone(technique: Any) -> None:
    cache = filled(1, 64, 50, technique=technique)
    q = normal(4, 1, 64)
    before = q.copy(), *held(cache)
    attended(technique, q, cache)
    for was, now in zip(before, (q, *held(cache)), strict=True):
        assert np.array_equal(was, now)


class Broken(Exact):
    scale = SCALE

    def attended(self, q: np.ndarray, cache: KVCache) -> np.ndarray:
        return attend(self.rule(), q, cache, 0, scale=self.scale)[0]

    @classmethod
    def exact_limit(cls) -> Broken:
        return cls()


class WrongScale(Broken):
    scale = SCALE * 1.001


class DependsOnNeighbours(Broken):
    def attended(self, q: np.ndarray, cache: KVCache) -> np.ndarray:
        return super().attended(q, cache) + 1e-6 * q.shape[1]


class MiscountsValues(AET):
    def rule(self) -> AttentionRule:
        rule = super().rule()
        share = rule.value_share if self.values > 0.2 else 1.01 * rule.value_share
        return dataclasses.replace(rule, value_share=share)


class Remembers(Broken):
    calls = 0

    def attended(self, q: np.ndarray, cache: KVCache) -> np.ndarray:
        Remembers.calls += 1
        return super().attended(q, cache) * (1 + 1e-3 * Remembers.calls)


class SpoilsQueries(Broken):
    def attended(self, q: np.ndarray, cache: KVCache) -> np.ndarray:
        out = super().attended(q, cache)
        q *= 2
        return out


LAWS: list[tuple[Callable[[Any], None], Callable[[], Any]]] = [
    (what_was_read_is_counted, lambda: MiscountsValues(keys=0.8, values=0.1)),
    (what_is_rolled_back_leaves_no_trace, Remembers),
    (native_equals_reference, WrongScale),
    (exact_at_the_limit, WrongScale),
    (a_batch_equals_its_rows, DependsOnNeighbours),
    (inputs_are_left_alone, SpoilsQueries),
]


# Settings in addition to the defaults, which stop seldom or never on these keys.
ADDED = [
    "certified:eps=0.3,values=0.01",
    "aet:keys=0.7,values=0.05",
    "aet:keys=0.8,values=0.4,globals=16,locals=20,sinks=17",
    "aet:keys=all,values=0.1,globals=0,sinks=0",
    "aet:keys=0.8,values=0.05,globals=16,order=sketch",
    "aet:keys=0.8,values=0.05,globals=16,locals=20,sinks=3,block=1",
    "art:change=1,angle=0.5,patience=2",
    "art:change=1,angle=0.5,patience=2,block=16,order=sketch",
    "art:change=1,angle=0.5,patience=1,block=16,probe=64,values=0.1",
    "certified:bounded=false,eps=0.3",
    "certified:bounded=false,eps=0.5,values=0.05",
    "tiers:eps=0.2,skip=0",
    "tiers:eps=0.4,skip=0.0027",  # no weight is so near that roundings decide
    "tiers:eps=0,skip=0.0027",
    "tiers:eps=1,skip=0.0005",
    "tiers:eps=0.2,skip=0,bounded=true",
    "tiers:eps=0.3,skip=0.0005,bounded=true",
    "tiers:eps=0.4,skip=0.0027,sample=6",
    "skip_softmax:factor=290,block=32",
    "skip_softmax:factor=590",
    "skip_softmax:factor=290,block=16,split=256",
]
SETTINGS = [*ATTENTIONS.names(), *ADDED]


@pytest.mark.parametrize("each_isa", native.isas(), indirect=True)  # next to each other
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("law", [native_equals_reference, a_batch_equals_its_rows])
def test_law(law: Callable[[Any], None], setting: str, each_isa: str) -> None:
    law(ATTENTIONS.build(setting))


@pytest.mark.parametrize("name", ATTENTIONS.names())
def test_the_exact_limit(name: str, each_isa: str) -> None:
    technique = ATTENTIONS.build(name)
    assert technique.exact_limit() is not None, "one without a limit has tests of its own"
    exact_at_the_limit(technique)


# What is counted, kept and written does not depend on the instructions.
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(
    "law",
    [what_was_read_is_counted, what_is_rolled_back_leaves_no_trace, inputs_are_left_alone],
)
def test_law_whatever_the_instructions(law: Callable[[Any], None], setting: str) -> None:
    law(ATTENTIONS.build(setting))


def test_every_law_is_held() -> None:
    found = {
        part
        for test in (test_law, test_law_whatever_the_instructions)
        for mark in test.pytestmark  # type: ignore[attr-defined]
        if mark.args[0] == "law"
        for part in mark.args[1]
    }
    assert found | {exact_at_the_limit} == {law for law, _ in LAWS}


NEVER_STOP = [
    "aet:keys=all,values=0",
    "art:change=0",
    "art:patience=2000000",
    "certified:eps=0",
    "tiers:eps=0,skip=0",
    "skip_softmax:factor=0,block=16,split=32",
]


@pytest.mark.parametrize("setting", [*SETTINGS, *NEVER_STOP])
def test_a_rule_is_exact_where_the_kernel_is(setting: str) -> None:
    rule = ATTENTIONS.build(setting).rule()
    assert rule is None or rule.exact == native_rule(rule).exact


def test_the_settings_leave_something_out() -> None:
    for setting in ADDED:
        technique = ATTENTIONS.build(setting)
        cache = filled(1, 128, 1000, technique=technique)
        spread = 3 if "skip_softmax" in setting else 1  # else eight heads hardly agree on a tile
        q = spread * normal(8, 1, 128)
        reads = attend(technique.rule(), q, cache, 0, scale=SCALE)[1][0]
        assert reads.value_rows < reads.dense_rows, setting
        if not any(
            each in setting for each in ("keys=all", "certified:eps", "eps=0,", "skip_softmax")
        ):
            assert reads.key_rows < reads.dense_rows, setting


@pytest.mark.parametrize(("law", "broken"), LAWS, ids=lambda part: part.__name__)
def test_law_bites(law: Callable[[Any], None], broken: Callable[[], Any]) -> None:
    with pytest.raises(AssertionError):
        law(broken())


class SkipsMore(Tiers):
    def rule(self) -> AttentionRule:
        rule = super().rule()
        lightest = min(10 * rule.parameters["lightest"], 1)
        return dataclasses.replace(rule, parameters={**rule.parameters, "lightest": lightest})


class EstimatesMore(Tiers):
    def rule(self) -> AttentionRule:
        rule = super().rule()
        return dataclasses.replace(rule, parameters={**rule.parameters, "estimated": 1})


class BoundsNothing(Tiers):
    def rule(self) -> AttentionRule:
        rule = super().rule()
        return dataclasses.replace(rule, parameters={**rule.parameters, "bounded": False})


@pytest.mark.parametrize(
    ("law", "broken"),
    [
        (native_equals_reference, SkipsMore(eps=0.4, skip=0.002)),
        (what_was_read_is_counted, SkipsMore(eps=0.4, skip=0.002)),
        (what_was_read_is_counted, EstimatesMore(eps=0.4, skip=0)),
        (what_was_read_is_counted, EstimatesMore(eps=0.2, skip=0, bounded=True)),
        (what_was_read_is_counted, BoundsNothing(eps=0.2, skip=0, bounded=True)),
    ],
    ids=lambda part: getattr(part, "__name__", type(part).__name__),
)
def test_laws_bite_broken_tiers(law: Callable[[Any], None], broken: Tiers) -> None:
    with pytest.raises(AssertionError):
        law(broken)
