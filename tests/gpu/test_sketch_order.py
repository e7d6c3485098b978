"""`art` in the order of sketches on GPUs: blocks without a sketch first, then the heaviest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gpu.device_rows import DEVICE, Case
from gpu.test_certified_kernels import sketched, uneven
from suffice.attention.sketch import CHUNK, complete_chunks
from suffice.backends.triton import sketches
from suffice.backends.triton.call import LOG2_E, Call
from suffice.cache import BLOCK

PER_CHUNK = CHUNK // BLOCK
SKETCHED = "art:change=0.5,angle=0.5,patience=2,block=16,order=sketch"
ENDLESS = "art:change=0.5,patience=1000,block=16,order=sketch"


def orders(case: Case) -> list[list[list[int]]]:
    """Return the blocks that each token and head reads, in their order."""
    call = Call(case.q.to(DEVICE), case.held(), case.tokens, case.scale * LOG2_E)
    found = sketches.by_sketch(call, sketched(case))
    return [
        [own[:count].tolist() for own, count in zip(blocks, counts, strict=True)]
        for blocks, counts in zip(found.blocks, found.counts.tolist(), strict=True)
    ]


@pytest.mark.parametrize("window", [None, 230, 60])
def test_each_block_comes_once_newest_or_heaviest_first(window: int | None) -> None:
    case = uneven((300, 213, 40), group=2, window=window)
    for at, of_heads in enumerate(orders(case)):
        first, length = case.firsts[at], case.lengths[at]
        begin, end = (PER_CHUNK * each for each in complete_chunks(first, length))
        whole = range(first // BLOCK, -(-length // BLOCK))
        new = [block for block in reversed(whole) if not begin <= block < end]
        for head, order in enumerate(of_heads):
            assert order[: len(new)] == new and sorted(order) == list(whole)
            shares = shares_of(case, at, head)[order[len(new) :]]
            # Buckets are a quarter of a power of two, and the sketch rounds scores.
            assert (shares[1:] <= 1.6 * np.maximum.accumulate(shares[::-1])[::-1][:-1] + 1e-6).all()
            assert (np.minimum.accumulate(shares)[:-1] * 2 + 1e-6 >= shares[1:]).all()


def shares_of(case: Case, at: int, head: int) -> np.ndarray:
    """Return the shares of the softmax that a token's blocks have, summed over query heads."""
    q = case.scale * case.q[at].double().view(case.k.shape[1], -1, case.q.shape[-1])[head]
    weights = (q @ case.k[at, head, : case.lengths[at]].double().mT).softmax(-1).sum(0)
    padded = torch.nn.functional.pad(weights, (0, -len(weights) % BLOCK))
    found: np.ndarray = padded.view(-1, BLOCK).sum(1).numpy()
    return found


def test_what_never_stops_is_exact() -> None:
    case = uneven((300, 40), group=2, window=230)
    found, reads = case.run(ENDLESS)
    np.testing.assert_allclose(found, case.run("exact")[0], atol=2e-6)
    assert reads.keys.tolist() == [[230] * 2, [40] * 2]
    for at, (first, length) in enumerate(zip(case.firsts, case.lengths, strict=True)):
        begin, end = complete_chunks(first, length)
        each = CHUNK * 64 // 2 + 4 * 64 + 4 * PER_CHUNK
        assert reads.sketched is not None
        assert reads.sketched[at].tolist() == [(end - begin) * each] * 2


def test_it_stops_where_the_reference_does_and_sooner_than_newest_first() -> None:
    case = uneven((420, 333), group=2, dtype=torch.bfloat16)
    case.k[:, :, 100:110] *= 3  # heavy rows far back
    found, reads = case.run(SKETCHED)
    expected = case.reference(SKETCHED)
    newest = case.run(SKETCHED.replace(",order=sketch", ""))[1]
    assert (reads.keys < newest.keys).any()
    for at, own in enumerate(expected):
        keys = own.keys.reshape(2, -1).sum(-1)
        # Queries are rounded otherwise, so that blocks of nearly equal mass may change places.
        assert (abs(reads.keys[at].cpu().numpy() - keys) <= 4 * BLOCK).all()
        same = reads.keys[at].cpu().numpy() == keys
        off = np.abs(found[at].float().numpy() - own.output[:, 0]).reshape(2, -1).max(-1)
        assert (off[same] < 0.05).all() and same.any()


def test_blocks_outside_of_a_window_are_read_by_nobody_twice() -> None:
    """Sketched blocks of hardly any mass come before those that have no sketch."""
    case = Case.random((420,), group=1, window=330)
    case.k[0, :, 300:310] = 12 * torch.nn.functional.normalize(case.q[0], dim=-1)[:, None]
    found, reads = case.run("certified:eps=1e-6")
    assert reads.keys.tolist() == [[330, 330]]
    np.testing.assert_allclose(found, case.run("exact")[0], atol=2e-6)


def test_the_comparison_bites(monkeypatch: pytest.MonkeyPatch) -> None:
    real = sketches.heaviest_first

    def lightest(*given: Any) -> torch.Tensor:
        return real(*given).flip(-1)

    monkeypatch.setattr(sketches, "heaviest_first", lightest)
    with pytest.raises(AssertionError):
        test_each_block_comes_once_newest_or_heaviest_first(230)
