"""`certified` on GPUs: sketches, bounds of blocks' masses, and the share that stays unread."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from gpu.device_rows import DEVICE, Case
from suffice.attention.sketch import CHUNK, complete_chunks, sketch
from suffice.backends.triton.call import LOG2_E, Call
from suffice.backends.triton.sketches import Sketches, estimated, windows_of


def sketched(case: Case, page: int = 0) -> Sketches:
    heads, size = case.k.shape[1], case.k.shape[-1]
    made = Sketches(len(case.lengths), heads, size, max(case.lengths), DEVICE)
    made.extend(case.held(page), case.tokens.length, max(case.lengths))
    return made


def uneven(lengths: tuple[int, ...], **options: object) -> Case:
    """Return a case in which some keys and channels are much larger than others."""
    case = Case.random(lengths, **options)  # type: ignore[arg-type]
    made = torch.Generator().manual_seed(1)
    case.k *= torch.rand(*case.k.shape[:3], 1, generator=made)
    case.k[..., 3] *= 8
    return case


@pytest.mark.parametrize(("size", "page"), [(64, 0), (80, 16), (256, 0)])
def test_sketches_are_the_reference_s(size: int, page: int) -> None:
    case = uneven((140, 70), size=size)
    made = sketched(case, page)
    for at, length in enumerate(case.lengths):
        for head, chunk in np.ndindex(2, length // CHUNK):
            keys = case.k[at, head, chunk * CHUNK : (chunk + 1) * CHUNK].numpy()
            expected = sketch(keys)
            packed = made.codes[at, head, chunk].cpu()
            codes = torch.cat((packed & 15, packed >> 4), -1).numpy()
            assert np.abs(codes - expected.codes).max() <= 1  # where rounding is a tie
            assert (codes != expected.codes).mean() < 0.05
            scale = made.scales[at, head, chunk].float().cpu().numpy()
            low = made.lows[at, head, chunk].float().cpu().numpy()
            np.testing.assert_allclose(
                scale, expected.scale, rtol=2**-6
            )  # the interpreter cuts digits off
            left = np.linalg.norm(keys - (scale * codes + low), axis=-1).reshape(-1, 16).max(-1)
            held = made.residuals[at, head, chunk].cpu().numpy()
            assert (held >= left).all() and (held <= 1.001 * left).all()


def test_sketches_grow_with_the_text() -> None:
    case = uneven((200, 130))
    whole = sketched(case)
    made = Sketches(2, 2, 64, 200, DEVICE)
    before = 0
    for lengths in ([63, 10], [64, 130], [200, 130]):
        rows = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
        made.extend(case.held(), rows, max(lengths) - before)
        before = min(lengths)
    for name in ("codes", "scales", "lows", "residuals"):
        assert torch.equal(getattr(made, name), getattr(whole, name))


def test_sketches_of_dropped_rows_are_forgotten() -> None:
    case, other = uneven((130,)), uneven((130,), seed=1)
    made = sketched(case)
    other.k[:, :, :60] = case.k[:, :, :60]
    chunks = made._made
    made.truncate(torch.tensor([60], dtype=torch.int32, device=DEVICE))
    assert made._made is chunks, "graphs read it where it is"
    made.extend(other.held(), other.tokens.length, 70)
    assert torch.equal(made.codes, sketched(other).codes)


def test_which_rows_have_a_sketch_depends_on_no_step() -> None:
    ends = [(first, length) for length in range(300) for first in (0, 1, 63, 64, 130, 250)]
    found = windows_of(*(torch.tensor(each) for each in zip(*ends, strict=True)))
    for (first, length), begin, end in zip(ends, *(each.tolist() for each in found), strict=True):
        expected = complete_chunks(first, length)
        assert (begin, end) == expected or (begin >= end and expected == (0, 0))


def within_bounds(case: Case, made: Sketches) -> bool:
    """Return whether no block's mass is above its bound, as float64 says."""
    call = Call(case.q.to(DEVICE), case.held(), case.tokens, case.scale * LOG2_E)
    found = estimated(call, made, bounded=True)
    group, heads = call.group, call.heads
    for at, length in enumerate(case.lengths):
        rows = complete_chunks(0, length)[1] * CHUNK
        q = case.q[at].double().view(heads, group, -1) * case.scale
        scores = (q @ case.k[at, :, :rows].double().mT) * LOG2_E
        masses = scores.exp2().view(heads, group, -1, 16).sum(-1).log2()
        bounds = found.bounds.view(len(case.lengths), heads, group, -1)[at].cpu().double()
        if not (masses <= bounds[..., : rows // 16]).all():
            return False
    return True


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_mass_is_above_its_bound(dtype: torch.dtype) -> None:
    case = uneven((320, 130), group=3, dtype=dtype)
    made = sketched(case)
    assert within_bounds(case, made)
    made.residuals *= 0.02
    assert not within_bounds(case, made), "the test bites"


@pytest.mark.parametrize(
    ("eps", "group", "size", "page", "window"),
    [(0.05, 4, 64, 0, None), (0.3, 2, 80, 16, 330)],
)
def test_no_more_than_eps_is_missing(
    eps: float, group: int, size: int, page: int, window: int | None
) -> None:
    case = uneven((420, 40), group=group, size=size, window=window)
    found, reads = case.run(f"certified:eps={eps}", page=page)
    exact = case.run("exact", page=page)[0]
    expected = case.reference(f"certified:eps={eps}")
    assert reads.missing is not None and reads.missing.max() <= eps
    for at, length in enumerate(case.lengths):
        for head in range(2):
            own = slice(head * group, (head + 1) * group)
            longest = case.v[at, head, :length].norm(dim=-1).max()
            error = (found[at, own] - exact[at, own]).norm(dim=-1).max()
            # What is missing has been shared out among the rest.
            assert error <= 2 * reads.missing[at, head].cpu() * longest + 1e-5
            # Queries are rounded otherwise, so that a few blocks may differ.
            assert abs(int(reads.keys[at, head]) - expected[at].keys[0, head].sum()) <= 48
    assert (reads.keys[0] < 420).any() or eps < 0.1


def test_too_small_estimates_are_made_up_for() -> None:
    """Blocks are chosen by estimates; what was read then says whether more is needed."""
    case = uneven((420,), group=2)
    few, reads = case.run("certified:eps=0.3,bounded=false")
    sure = case.run("certified:eps=0.3")[1]
    assert reads.missing is not None and sure.missing is not None
    assert reads.keys.sum() < sure.keys.sum()
    assert sure.missing.max() <= 0.3 and few.isfinite().all()


def test_a_cache_without_sketches_is_read_whole() -> None:
    case = Case.random((40, 95))
    found, reads = case.run("certified:eps=0.5")
    np.testing.assert_allclose(found, case.run("exact")[0], atol=1e-6)
    assert reads.keys.tolist() == [[40] * 2, [95] * 2] and not reads.missing.any()  # type: ignore[union-attr]


def test_eps_0_is_exact() -> None:
    case = dataclasses.replace(uneven((200,)))
    assert torch.equal(case.run("certified:eps=0")[0], case.run("exact")[0])
