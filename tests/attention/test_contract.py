"""The laws of the attention seam, over every registered technique; each is shown to bite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from oracle import assert_matches
from suffice.attention import ATTENTIONS
from suffice.attention.exact import Exact
from suffice.cache import GROWTHS
from suffice.cache.kv import KVCache

SHAPES = [
    (g, rep, size, rows)
    for g, rep in ((1, 1), (2, 4), (1, 8))
    for size, rows in ((64, 1), (80, 2), (128, 31), (64, 32), (64, 33), (128, 1000))
]
SCALE = 0.1  # about 1 / sqrt(D)


def filled(groups: int, size: int, rows: int) -> KVCache:
    torch.manual_seed(rows + size)
    cache = KVCache(
        1,
        groups,
        size,
        growth=GROWTHS.build("double"),
        limit=2048,
        key_dtype="float32",
        value_dtype="float32",
    )
    cache.reserve(rows)
    cache.append(0, torch.randn(groups, rows, size), torch.randn(groups, rows, size))
    cache.advance(rows)
    return cache


def reference(technique: Any, q: torch.Tensor, cache: KVCache, dtype: torch.dtype) -> torch.Tensor:
    count = q.shape[1]
    visible = torch.ones(count, cache.length, dtype=torch.bool).tril(cache.length - count)
    k, v = cache.keys(0).to(dtype), cache.values(0).to(dtype)
    return technique.reference(q.to(dtype), k, v, scale=SCALE, visible=visible)


def native_equals_reference(technique: Any) -> None:
    for groups, rep, size, rows in SHAPES:
        cache, count = filled(groups, size, rows), min(rows, 3)
        q = torch.randn(groups * rep, count, size)
        out = technique.native(q, cache, 0, scale=SCALE)
        exact = reference(technique, q, cache, torch.float64)
        assert_matches(out, exact, reference(technique, q, cache, torch.float32), factor=4)


def exact_at_the_limit(technique: Any) -> None:
    limit = technique.exact_limit()
    assert limit is not None, "a technique without a limit states a bound, tested by its own tests"
    cache = filled(2, 64, 300)
    q = torch.randn(8, 2, 64)
    out = limit.native(q, cache, 0, scale=SCALE)
    exact = reference(Exact(), q, cache, torch.float64)
    assert_matches(out, exact, reference(Exact(), q, cache, torch.float32), factor=4)


def a_batch_equals_its_rows(technique: Any) -> None:
    cache = filled(2, 64, 300)
    q = torch.randn(8, 4, 64)
    together = technique.native(q, cache, 0, scale=SCALE)
    for i in range(4):
        cache.truncate(297 + i)
        alone = technique.native(q[:, i : i + 1], cache, 0, scale=SCALE)
        assert torch.equal(alone[:, 0], together[:, i])
        cache.reserve(3 - i)
        cache.advance(3 - i)  # the rows are still there


def inputs_are_left_alone(technique: Any) -> None:
    cache = filled(1, 64, 50)
    q = torch.randn(4, 1, 64)
    before = q.clone(), cache.keys(0), cache.values(0)
    technique.native(q, cache, 0, scale=SCALE)
    for was, now in zip(before, (q, cache.keys(0), cache.values(0)), strict=True):
        assert torch.equal(was, now)


class WrongScale(Exact):
    def native(self, q: torch.Tensor, *args: Any, scale: float, **kwargs: Any) -> torch.Tensor:
        return super().native(q, *args, scale=scale * 1.001, **kwargs)

    @classmethod
    def exact_limit(cls) -> WrongScale:
        return cls()


class DependsOnNeighbours(Exact):
    def native(self, q: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return super().native(q, *args, **kwargs) + 1e-6 * q.shape[1]


class SpoilsQueries(Exact):
    def native(self, q: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        out = super().native(q, *args, **kwargs)
        q *= 2
        return out


LAWS: list[tuple[Callable[[Any], None], type[Exact]]] = [
    (native_equals_reference, WrongScale),
    (exact_at_the_limit, WrongScale),
    (a_batch_equals_its_rows, DependsOnNeighbours),
    (inputs_are_left_alone, SpoilsQueries),
]


@pytest.mark.parametrize("name", ATTENTIONS.names())
@pytest.mark.parametrize("law", [law for law, _ in LAWS], ids=lambda law: law.__name__)
def test_law(law: Callable[[Any], None], name: str) -> None:
    law(ATTENTIONS.build(name))


@pytest.mark.parametrize(("law", "broken"), LAWS, ids=lambda part: part.__name__)
def test_law_bites(law: Callable[[Any], None], broken: type[Exact]) -> None:
    with pytest.raises(AssertionError):
        law(broken())
