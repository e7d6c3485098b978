"""Coded softmaxes on GPUs: codes, the values that they need, and the sums of all values."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from gpu.device_rows import DEVICE, Case, listed
from oracle import assert_matches, max_error
from pairs import pairwise
from suffice.attention.exact import Exact
from suffice.attention.exaq import EXAQ
from suffice.attention.levels import Levels
from suffice.backends.triton.call import Reads
from suffice.backends.triton.coded import Tables, ValueSums


def levels_of(heads: int, bits: int = 2, tail: str = "clip") -> list[Levels]:
    """Return levels that differ from head to head."""
    return [EXAQ(bits, tail=tail).levels_of_clip(-3 - 0.4 * (head % 5)) for head in range(heads)]


def run(
    case: Case,
    levels: Sequence[Levels],
    *,
    values: ValueSums | None = None,
    summed: bool = True,
    **options: Any,
) -> tuple[torch.Tensor, Reads]:
    heads, size = case.k.shape[1], case.k.shape[-1]
    if summed and values is None:
        values = ValueSums(len(case.lengths), heads, size, DEVICE)
    return case.run("exact", tables=Tables.of(levels, DEVICE), value_sums=values, **options)


def equals(
    case: Case, levels: Sequence[Levels], summed: Sequence[int] | None = None, **options: Any
) -> None:
    """Require the reference's output, and the values that it reads.

    `summed`: those that each token reads for the sum of all besides; None: those that it sees.
    """
    found, reads = run(case, levels, **options)
    if summed is None:
        tailed = any(each.weights[0] for each in levels)
        seen = zip(case.firsts, case.lengths, strict=True)
        summed = [(end - begin) * tailed for begin, end in seen]
    given = [levels] * len(case.lengths)
    for at, exact in enumerate(case.reference("exact", levels=given)):
        expected = exact.output[:, 0]
        if case.q.dtype == torch.float32:
            plain = case.reference("exact", np.float32, levels=given)[at].output[:, 0]
            assert_matches(found[at], expected, plain)
        else:
            assert max_error(found[at].float().numpy(), expected) < 2e-2
        assert reads.keys[at].tolist() == exact.keys[0].sum(-1).tolist()
        values = (exact.values[0].sum(-1) + summed[at]).tolist()
        assert reads.values[at].tolist() == values
        assert reads.fetched[at].tolist() == [
            a + b for a, b in zip(reads.keys[at], values, strict=True)
        ]


@pytest.mark.parametrize(
    ("bits", "tail", "group", "size", "page", "window"),
    [
        *pairwise((2, 3), ("clip", "flush"), (1, 4), (64, 80), (0, 48), (None, 50)),
        (4, "clip", 8, 256, 16, 30),
    ],
)
def test_kernels_equal_the_reference(
    bits: int, tail: str, group: int, size: int, page: int, window: int | None
) -> None:
    case = Case.random((150, 33) if size < 256 else (40,), group=group, size=size, window=window)
    equals(case, levels_of(2 * group, bits, tail), page=page)


def test_a_long_text() -> None:
    equals(Case.random((600,), heads=1, group=2), levels_of(2, 3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types(dtype: torch.dtype) -> None:
    equals(Case.random((90,), dtype=dtype), levels_of(8, 3))


Rows = tuple[int, int]


def step(one: Rows, other: Rows) -> int:
    """Return how many rows are read to go from the sum of some rows to that of others."""
    (begin, end), (to_begin, to_end) = one, other
    if to_begin >= end or to_end <= begin:
        return to_end - to_begin
    return abs(to_end - end) + abs(to_begin - begin)


@pytest.mark.parametrize(("window", "page"), [(None, 16), (40, 0)])
def test_sums_of_values_go_on_from_token_to_token(window: int | None, page: int) -> None:
    """Each token reads its own value, those since the last one, and those that leave the window.

    Requests change their places on the way.
    """
    values, levels = ValueSums(2, 2, 64, DEVICE), levels_of(4)
    whole = Case.random((103, 65), group=2)
    before: list[Rows] = [(0, 0), (0, 0)]
    for lengths in ([20, 60], [100, 61], [62, 101], [65, 103]):
        if lengths == [62, 101]:
            whole.k, whole.v, before = whole.k.flip(0), whole.v.flip(0), before[::-1]
            values.select(torch.tensor([1, 0], device=DEVICE))
        q = Case.random(lengths, group=2, seed=sum(lengths)).q
        firsts = [max(each - (window or each), 0) for each in lengths]
        case = Case(q, whole.k, whole.v, lengths, firsts)
        now = list(zip(firsts, lengths, strict=True))
        equals(case, levels, list(map(step, before, now)), page=page, values=values)
        before = now


@pytest.mark.parametrize("window", [90, 40])
def test_drafts_are_cropped(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of a step read what the request's sum has more or less than theirs, each for itself.

    A window's first rows are not those that a sum after fewer tokens has: it is made again.
    """
    values, levels = ValueSums(1, 2, 64, DEVICE), levels_of(4)
    whole, before = Case.random((90, 1, 1), group=2), (0, 0)
    for kept, lengths in ((0, [60, 61, 62]), (62, [63]), (52, [53, 54])):
        count, rows = len(lengths), max(lengths)
        k, v = (each[:1, :, :rows].expand(count, -1, -1, -1) for each in (whole.k, whole.v))
        firsts = [max(each - window, 0) for each in lengths]
        case = Case(whole.q[:count], k, v, lengths, firsts)
        if kept < before[1]:
            values.truncate(case.held(), torch.tensor([kept], dtype=torch.int32, device=DEVICE))
            before = (0, 0 if before[0] else kept)
        now = firsts[-1], lengths[-1]
        summed = [step(now, each) for each in zip(firsts, lengths, strict=True)]
        summed[-1] += step(before, now)
        owner = torch.zeros(count, dtype=torch.int32, device=DEVICE)
        tokens = dataclasses.replace(case.tokens, owner=owner)
        with monkeypatch.context() as patch:
            patch.setattr(Case, "tokens", tokens)
            equals(case, levels, summed, values=values)
        before = now


@pytest.mark.parametrize("tail", ["clip", "flush"])
def test_lists_of_blocks(tail: str) -> None:
    """The sum of all values is not that of a list: all its values with a weight are read."""
    case, levels = Case.random((160, 90)), levels_of(8, 3, tail)
    orders = [[[9, 0, 4], [3, 9, 8, 1]], [[5, 1], [0, 5, 2]]]
    found, reads = run(case, levels, blocks=listed(orders))
    for at, head in np.ndindex(2, 2):
        rows = [row for block in orders[at][head] for row in range(block * 16, block * 16 + 16)]
        rows = [row for row in rows if row < case.lengths[at]]
        own = slice(4 * head, 4 * head + 4)
        q, k, v = case.q[at, own, None], case.k[at, head, None, rows], case.v[at, head, None, rows]
        exact = Exact().reference(
            *(each.double().numpy() for each in (q, k, v)), scale=case.scale, levels=levels[own]
        )
        np.testing.assert_allclose(found[at, own], exact.output[:, 0], atol=2e-6)
        assert reads.keys[at, head] == len(rows)
        assert reads.values[at, head] == (len(rows) if tail == "clip" else exact.values.sum())


@pytest.mark.parametrize("change", ["border", "weight", "base", "sum", "begin", "end"])
def test_the_comparison_bites(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel gets another border, another weight, or the sum of other rows."""
    case, levels = Case.random((60, 40)), levels_of(8)
    values, given = ValueSums(2, 2, 64, DEVICE), Tables.of(levels, DEVICE)
    values.extend(case.held(), case.tokens)
    summed = [0, 0]
    equals(case, levels, summed, values=values)
    if change == "border":
        given.borders[5, 2] -= 0.5
    elif change in ("weight", "base"):
        given.weights[5, 2 if change == "weight" else 0] *= 1.01
    elif change == "sum":
        values.sums[1, 0, 7] += 0.1
    elif change == "begin":
        values.begins[0, 1] = 1
    else:
        values.ends[0, 1] = 61
    monkeypatch.setattr(Tables, "of", lambda *ignored: given)
    with pytest.raises(AssertionError):
        equals(case, levels, summed, values=values)
