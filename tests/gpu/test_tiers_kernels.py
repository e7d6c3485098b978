"""`tiers` on GPUs: bases of rows, the rows of each tier, and the bound on the distance."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from caches import Rounding as FittedTo
from caches import cache_of, channel_scales
from gpu.device_rows import DEVICE, Case, based
from oracle import max_error
from pairs import pairwise
from suffice.attention import ATTENTIONS
from suffice.attention.planes import LEVELS, Planes, rotated, with_base
from suffice.attention.tiers_reference import Tiered
from suffice.backends.triton import tiers
from suffice.backends.triton.bases import Bases, Rounding
from suffice.backends.triton.call import Reads


def uneven(lengths: tuple[int, ...], **options: Any) -> Case:
    """Return a case in which some keys matter more than others."""
    case = Case.random(lengths, **options)
    made = torch.Generator().manual_seed(1)
    case.k *= 2 * torch.rand(*case.k.shape[:3], 1, generator=made) ** 2
    return case


def planes(made: Bases, rows: torch.Tensor, at: int, *, keys: bool) -> Planes:
    """Return a request's rows [G, S, D], keys or values, with the bases that are held of them."""
    count, name = rows.shape[1], "key" if keys else "value"
    packed = getattr(made, f"{name}_codes")[at, :, :count].cpu()
    levels = LEVELS[torch.stack((packed & 15, packed >> 4), -1).flatten(-2).numpy()]
    scale = getattr(made, f"{name}_scales")[at, :, :count, None].float().cpu().numpy()
    turned = rotated(rows.double().numpy())
    exact = np.divide(turned, scale, out=np.zeros_like(turned), where=scale > 0)
    return Planes(levels, exact - levels, scale)


def references(case: Case, technique: str, made: Bases) -> list[Tiered]:
    """Return what the reference makes of each token, by the bases that are held."""
    own: Any = ATTENTIONS.build(technique)
    found = []
    for at, (first, length) in enumerate(zip(case.firsts, case.lengths, strict=True)):
        rows = [x[case.owned[at], :, :length] for x in (case.k, case.v)]
        stored = tuple(planes(made, x, case.owned[at], keys=x is rows[0]) for x in rows)
        parts = (x.double().numpy() for x in (case.q[at][:, None], *rows))
        seen = np.arange(length)[None] >= first
        found.append(own.reference(*parts, scale=case.scale, visible=seen, stored=stored))
    return found


def equals(case: Case, technique: str, page: int = 0) -> Reads:
    """Require the reference's output, and its rows of each tier."""
    made = based(case, page)
    found, reads = case.run(technique, page, bases=made)
    size = case.q.shape[-1]
    bounded = "bounded" in technique
    for at, exact in enumerate(references(case, technique, made)):
        expected = exact.output[:, 0]
        error = 1e-5 if case.q.dtype == torch.float32 else 2e-2
        assert max_error(found[at].float().numpy(), expected) < error
        assert reads.keys[at].tolist() == exact.keys[0].sum(-1).tolist()
        assert reads.values[at].tolist() == exact.values[0].sum(-1).tolist()
        seen, light = case.lengths[at] - case.firsts[at], exact.light[0].sum(-1)
        by_base = (seen + light) * (size // 2 + 4) + 2 * seen * bounded
        assert reads.sketched is not None and reads.sketched[at].tolist() == by_base.tolist()
        if bounded:
            assert reads.missing is not None and reads.shift is not None
            np.testing.assert_allclose(reads.missing[at].cpu(), exact.distance[0], rtol=1e-3)
            np.testing.assert_allclose(reads.shift[at].cpu(), exact.shift[0], rtol=1e-3)
    return reads


def several(case: Case, count: int, spread: float = 1.0) -> Case:
    """Return `count` tokens of the first request, whose queries vary `spread` times as much."""
    heads, size = case.q.shape[1:]
    q = 2 * spread * torch.randn(count, heads, size, generator=torch.Generator().manual_seed(5))
    seen = list(case.lengths)[:1] * count, list(case.firsts)[:1] * count
    return Case(q, case.k[:1], case.v[:1], *seen, [0] * count)


def stored_lengths(codes: torch.Tensor) -> np.ndarray:
    """Return what bytes stand for."""
    return ((codes.cpu().int() << 19) + 0x3E000000).view(torch.float32).numpy()


@pytest.mark.parametrize(("size", "page"), [(64, 0), (80, 16), (256, 0)])
def test_bases_are_the_reference_s(size: int, page: int) -> None:
    case = uneven((20, 9), size=size)
    case.k[0, 0, 3] = 0
    made = based(case, page)
    for at, keys in np.ndindex(2, 2):
        rows = (case.k if keys else case.v)[at, :, : case.lengths[at]]
        found, expected = (
            planes(made, rows, at, keys=bool(keys)),
            with_base(rows.numpy(), keys=keys),
        )
        np.testing.assert_allclose(found.scale, expected.scale, rtol=1e-6)
        assert (found.levels != expected.levels)[found.scale[..., 0] > 0].mean() < 1e-3
        name = "key_errors" if keys else "value_errors"
        lengths = stored_lengths(getattr(made, name)[at, :, : rows.shape[1]])
        of_rows = found.lengths if keys else 64 * found.errors
        assert (lengths != of_rows[..., 0])[found.scale[..., 0] > 0].mean() < 0.02


def fitted_to(size: int) -> tuple[FittedTo, Rounding]:
    """Return some rounding of one head's keys, as caches of the CPU have it, and for the device."""
    some = FittedTo(1, 1, size)
    parts = [channel_scales(size)[None], some.means[0], *(part[0] for part in some.factors)]
    return some, Rounding.of(parts, DEVICE)


def test_fitted_bases_are_those_of_the_cpu() -> None:
    case, (some, rounding) = uneven((20,), heads=1), fitted_to(64)
    made = based(case, rounding=rounding)
    cache = cache_of(*(x[0].numpy() for x in (case.k, case.v)), bases=True, rounding=some.native)
    expected = np.empty((1, 20, 64), np.float32)
    cache.native.load(0, 0, expected, None, base=True)
    base = planes(made, case.k[0], 0, keys=True)
    of_mean = made.key_shares[0, :, :20, None].float().cpu().numpy() * some.means[0, :, None]
    found = rotated(base.base + of_mean) / channel_scales(64)
    off = np.abs(found - expected).max(-1) / np.abs(expected).max()
    assert (off < 1e-5).mean() > 0.9  # another scale may be as good but for rounding
    lost = rotated(case.k[0].double().numpy() * channel_scales(64)) - of_mean
    lost = lost / base.scale - base.levels
    passed, weights = (part[0, 0].astype(np.float64) for part in some.factors)
    length = np.sqrt((weights * (lost + lost @ passed) ** 2).sum(-1))
    held = stored_lengths(made.key_errors[0, :, :20])
    assert (held >= length).all() and (held < 1.07 * length).all()


def test_bases_grow_with_the_text() -> None:
    case = uneven((50, 30), heads=1)
    whole, made = based(case), Bases(2, 1, 64, 20, DEVICE)
    begun = torch.tensor([17, 30], dtype=torch.int32, device=DEVICE)
    made.extend(dataclasses.replace(case, k=-case.k).held(), torch.minimum(begun, begun - 10), 20)
    rows = made._made
    made.truncate(begun * 0)
    assert made._made is rows, "graphs read it where it is"
    made.reserve(50)
    for lengths in (begun, case.tokens.length):
        made.extend(case.held(), lengths, 33)
    made.select(torch.tensor([1, 0], device=DEVICE))
    for name in ("codes", "scales", "errors"):
        for side in ("key", "value"):
            found, expected = (getattr(x, f"{side}_{name}") for x in (made, whole))
            assert torch.equal(found[1], expected[0])
            assert torch.equal(found[0, :, :30], expected[1, :, :30])


SETTINGS = ("eps=0.3,skip=0", "eps=0.5,skip=0.002", "eps=1,skip=0.01", "eps=0,skip=0.005")
SETTINGS += ("eps=0.2,skip=0,bounded=true", "eps=0.6,skip=0.001,bounded=true")


@pytest.mark.parametrize(
    ("setting", "group", "size", "page", "window"),
    [
        *pairwise(SETTINGS, (1, 4), (64, 80), (0, 16), (None, 40)),
        ("eps=0.5,skip=0.002", 8, 256, 16, 30),
        ("eps=0.4,skip=0.001,bounded=true", 8, 128, 0, None),
    ],
)
def test_kernels_equal_the_reference(
    setting: str, group: int, size: int, page: int, window: int | None
) -> None:
    lengths = (70, 20) if size < 128 else (50,)
    equals(
        uneven(lengths, heads=1, group=group, size=size, window=window), f"tiers:{setting}", page
    )


def test_a_long_text() -> None:
    equals(uneven((270,), heads=1, group=2), "tiers:eps=0.4,skip=0.001")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types(dtype: torch.dtype) -> None:
    equals(uneven((60,), heads=1, dtype=dtype), "tiers:eps=0.5,skip=0.002")


def test_where_what_was_read_weighs_too_little_more_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Blocks are chosen by estimates: half as much may be missing then, as in the reference."""
    case, technique = several(uneven((130,), heads=1, group=1), 60), "tiers:eps=0.3,bounded=true"
    some = [17, 18, 47]  # the last two are such tokens
    case = Case(case.q[some], case.k, case.v, [130] * 3, [0] * 3, [0] * 3)
    reads = equals(case, technique)
    assert reads.missing is not None and reads.missing.max() <= 0.3
    monkeypatch.setattr(tiers, "HALVINGS", 0)  # all are read instead
    more = case.run(technique, bases=based(case))[1].keys
    assert (more > reads.keys).flatten().tolist() == [False, True, True]


def test_nothing_left_out_is_exact() -> None:
    case = uneven((70,))
    assert torch.equal(case.run("tiers:eps=0,skip=0")[0], case.run("exact")[0])


def that_bases_miss(case: Case, made: Bases) -> Case:
    """Return the case with queries along what bases of some keys lack, some of them large."""
    keys = case.k[0, 0].numpy()
    lost = torch.from_numpy(keys - rotated(planes(made, case.k[0], 0, keys=True).base)[0])
    lost = lost / lost.norm(dim=-1, keepdim=True)
    count, heads, _ = case.q.shape
    rows = torch.arange(count * heads) * 5 % len(keys)
    sizes = torch.linspace(1, 60, count)[:, None, None]
    return dataclasses.replace(case, q=sizes * lost[rows].view(case.q.shape).float())


def softmax_of(case: Case) -> torch.Tensor:
    """Return the exact softmaxes of one head's tokens, [N, H, S]."""
    return (case.scale * case.q.double() @ case.k[0, 0].double().mT).softmax(-1)


def distances(case: Case, made: Bases, technique: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how far softmaxes are from the exact ones, and what is said of it, [N].

    Values are rows of a unit matrix, and bases lack nothing of them: outputs are softmaxes. The
    same is found for an audit (`tier_audit.py`).
    """
    found, reads = case.run(technique, bases=made)
    rows = case.k.shape[2]
    off = (found[..., :rows].double() - softmax_of(case)).abs().sum(-1) / 2
    assert reads.missing is not None and reads.figures is not None
    np.testing.assert_allclose(reads.figures()[0].cpu(), off, atol=1e-5)
    return off.amax(-1), reads.missing[:, 0].cpu().double()


@pytest.mark.parametrize(("fitted", "skip"), [(False, 0.002), (True, 0.0)])
def test_no_softmax_is_further_away_than_its_bound(fitted: bool, skip: float) -> None:
    rows, rounding = (32, fitted_to(64)[1]) if fitted else (64, None)
    case, eps = uneven((rows,), heads=1), 1 if fitted else 0.4
    case.v = torch.eye(64)[:rows].clone()[None, None]
    made = based(case, rounding=rounding)
    kinds = [several(case, 4, 0.5), several(case, 2, 4.0), that_bases_miss(several(case, 6), made)]
    loose = []
    for tokens in kinds:
        off, said = distances(tokens, made, f"tiers:eps={eps},skip={skip},bounded=true")
        assert (off <= said + 1e-5).all() and (said <= eps).all()
        loose += (said / off)[off > 1e-3].tolist()
    assert 1 < np.median(loose) < 1000
    if not fitted:
        made.key_errors.zero_()
        off, said = distances(tokens, made, f"tiers:eps={eps},skip={skip},bounded=true")
        assert (off > said + 1e-3).any(), "the test bites"


def test_lengths_of_queries_and_keys_bound_their_products() -> None:
    """In the measure that a rounding is fitted to; both are equal for the worst query."""
    some, rounding = fitted_to(64)
    passed, weights = (part[0, 0].astype(np.float64) for part in some.factors)
    factor = np.eye(64) + passed.T
    lost = np.random.default_rng(0).standard_normal((20, 64))
    worst = lost @ factor.T * weights @ factor
    length = np.sqrt((weights * (lost @ factor.T) ** 2).sum(-1))
    of_query = np.linalg.norm(worst @ rounding.duals[0].cpu().numpy(), axis=-1)
    np.testing.assert_allclose(length * of_query, (worst * lost).sum(-1), rtol=1e-5)


def test_no_output_is_further_away_than_its_bound() -> None:
    case = several(uneven((64,), heads=1), 8)
    case.v[0, 0, ::2] = torch.from_numpy(rotated(np.eye(64)[::2]))  # bases lack much of these
    made = based(case)
    longest = case.v.norm(dim=-1).max()
    for technique in ("tiers:eps=1,skip=0,bounded=true", "tiers:eps=0.4,skip=0.01,bounded=true"):
        found, reads = case.run(technique, bases=made)
        exact = softmax_of(case) @ case.v[0, 0].double()
        shift = ((found.double() - exact).norm(dim=-1) / longest).amax(-1)
        assert reads.shift is not None and reads.figures is not None
        np.testing.assert_allclose(reads.figures()[2].cpu().amax(-1), shift, atol=1e-5)
        said = reads.shift[:, 0].cpu().double()
        assert (shift <= said + 1e-5).all() and (shift > 1e-3).any()


def test_the_comparison_bites(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel gets the code, the scale or the error of another row."""
    case, technique = uneven((60,), heads=1), "tiers:eps=0.5,skip=0.001,bounded=true"
    equals(case, technique)
    made, broken = based(case), dataclasses.replace(case)
    for change in ("key_codes", "key_scales", "value_codes", "value_scales", "key_errors"):
        turned = copy.copy(made)
        setattr(turned, change, getattr(made, change).roll(1, 2))
        options = {"bases": turned}
        monkeypatch.setattr(
            broken, "run", lambda *given, own=options, **_: case.run(technique, **own)
        )
        with pytest.raises(AssertionError):
            equals(broken, technique)
