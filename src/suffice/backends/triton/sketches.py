"""Sketches of a layer's keys, on the keys' device, and the order of blocks that they give.

Nothing here asks the device for a number: selections are tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton

from suffice.attention.sketch import CHUNK, LAG
from suffice.backends.triton.call import Blocks, Call, Held, Sums
from suffice.backends.triton.sketch import estimate, sketch_chunks
from suffice.cache import BLOCK

_PER_CHUNK = CHUNK // BLOCK
# Blocks without a sketch, at most: the rows of an unfinished chunk on either side, and the lag.
_NEWEST = 2 * _PER_CHUNK + LAG // BLOCK + 1
SUM_ERROR = 1e-5  # relative error of float32 sums, as in `suffice.attention.certified_reference`


class Sketches:
    """The sketches of B requests' keys; chunks are sketched once their 64 keys are there."""

    def __init__(
        self, requests: int, heads: int, size: int, rows: int, device: torch.device
    ) -> None:
        self.chunks = max(rows // CHUNK, 1)  # room
        shape = requests, heads, self.chunks
        self.codes = torch.zeros(*shape, CHUNK, size // 2, dtype=torch.uint8, device=device)
        self.scales = torch.zeros(*shape, size, dtype=torch.bfloat16, device=device)
        self.lows = torch.zeros_like(self.scales)
        self.residuals = torch.zeros(*shape, _PER_CHUNK, device=device)
        self._made = torch.zeros(requests, dtype=torch.int32, device=device)  # chunks

    def reserve(self, rows: int) -> None:
        """Make room for the chunks of `rows` rows of each request."""
        more = max(rows // CHUNK, 1) - self.chunks
        for name in ("codes", "scales", "lows", "residuals"):
            held: torch.Tensor = getattr(self, name)
            shape = *held.shape[:2], more, *held.shape[3:]
            setattr(self, name, torch.cat((held, held.new_zeros(shape)), 2))
        self.chunks += more

    def truncate(self, lengths: torch.Tensor) -> None:
        """Forget the chunks beyond the first rows [B] of each request."""
        torch.minimum(self._made, lengths // CHUNK, out=self._made)  # in place: graphs read it

    def select(self, indices: torch.Tensor) -> None:
        """Let request i go on with the sketches of request `indices[i]`."""
        for name in ("codes", "scales", "lows", "residuals", "_made"):
            setattr(self, name, getattr(self, name)[indices])

    def extend(self, held: Held, lengths: torch.Tensor, new: int) -> None:
        """Sketch the complete chunks among the first rows [B] of each request.

        At most `new` rows have come since the last time.
        """
        requests, heads, _, _, half = self.codes.shape
        table = self._made if held.table is None else held.table
        sketch_chunks[(-(-new // CHUNK), requests * heads)](
            held.keys, table, self.codes, self.scales, self.lows, self.residuals, self._made,
            lengths, heads, self.chunks, *held.strides,
            0 if held.table is None else table.stride(0),
            D=2 * half, HALF=triton.next_power_of_2(half), PAGE=held.page,
        )  # fmt: skip
        torch.floor_divide(lengths, CHUNK, out=self._made)

    def bytes_read(self, call: Call) -> torch.Tensor:
        """Return the bytes of sketches that each token reads for a key/value head, int32 [N, 1]."""
        begin, end = windows_of(call.tokens.first, call.tokens.length)
        each = CHUNK * call.size // 2 + 4 * call.size + 4 * _PER_CHUNK
        return ((end - begin).clamp(min=0) * each)[:, None]


class Estimates(NamedTuple):
    """Of the blocks that the sketches cover: masses and the most that they can be, log2, float32
    [N G, R, blocks]. Blocks that a token's sketch does not cover have none, -inf."""

    masses: torch.Tensor
    bounds: torch.Tensor


def estimated(call: Call, sketches: Sketches, bounded: bool) -> Estimates:
    """Return the estimates for each token."""
    begin, end = windows_of(call.tokens.first, call.tokens.length)
    half = sketches.codes.shape[-1]
    shape = call.group, _PER_CHUNK * sketches.chunks
    masses, bounds = call.empty(*shape), call.empty(*shape)
    estimate[(sketches.chunks, call.pairs)](
        call.q, sketches.codes, sketches.scales, sketches.lows, sketches.residuals,
        call.tokens.owner, begin, end, masses, bounds,
        call.scale, call.heads, sketches.chunks, *call.q.stride()[:2],
        GROUP=call.group, ROWS=call.rows, D=2 * half, HALF=triton.next_power_of_2(half),
        BOUNDED=bounded,
    )  # fmt: skip
    return Estimates(masses, bounds)


@dataclass
class Search:
    """Which blocks a token must read so that the rest has at most the share `eps` of its softmax.

    All tensors are of N G pairs. `order` [N G, blocks]: heaviest first; `masses` and `rest` [N G,
    R, blocks (+ 1)]: estimates in that order, and the most that the blocks from each place on can
    have, both in units of 2^`peak`. `eps` [N G].
    """

    order: torch.Tensor
    masses: torch.Tensor
    rest: torch.Tensor
    peak: torch.Tensor
    eps: torch.Tensor

    @classmethod
    def of(cls, found: Estimates, known: Sums, eps: torch.Tensor) -> Search:
        """Return the search after the newest rows, whose sums are known, were read."""
        peak = torch.maximum(found.masses.amax(-1), known.peaks)
        masses, shares = _shares(found.masses, peak)
        bounds, order = (found.bounds - peak[..., None]).exp2(), heaviest_first(shares)
        wide = order[:, None].expand_as(masses)
        masses, bounds = masses.gather(-1, wide), bounds.gather(-1, wide)
        return cls(order, masses, from_each_on(bounds), peak, eps)

    def known(self, sums: Sums) -> torch.Tensor:
        """Return the mass of what was read [N G, R], in units of 2^`peak`."""
        return sums.totals * (sums.peaks - self.peak).exp2()

    def chosen(self, known: torch.Tensor, first: torch.Tensor, grows: bool) -> torch.Tensor:
        """Return how many blocks of the order to read [N G], at least `first` of them.

        `known`: the mass of what was read, which `grows` by the estimates of further blocks.
        """
        held = known[..., None]
        if grows:
            held = held + torch.nn.functional.pad(self.masses.cumsum(-1), (1, 0))
        rest = self.rest + SUM_ERROR * (self.rest[..., :1] + known[..., None])
        rest = torch.where(self.rest > 0, rest, self.rest)  # where nothing is left, nothing is
        within = (rest <= self.eps[:, None, None] * (held + rest)).all(1)
        place = torch.arange(within.shape[-1], device=within.device)
        within = within & (place >= first[:, None])
        return within.int().argmax(-1)

    def missing(self, known: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Return the largest share of a head's softmax that may be unread [N G]."""
        at = chosen[:, None, None].expand(*known.shape, 1)
        rest = self.rest.gather(-1, at)[..., 0]
        return (rest / (known + rest).clamp(min=1e-30)).amax(-1)


def between(call: Call, order: torch.Tensor, first: torch.Tensor, last: torch.Tensor) -> Blocks:
    """Return the blocks at the places [first, last) [N G] of an order [N G, blocks]."""
    count = order.shape[-1]
    place = torch.arange(count, device=first.device) + first[:, None]
    blocks = order.gather(-1, place.clamp(max=count - 1)).int()
    shape = call.count, call.heads
    return Blocks(blocks.view(*shape, count), (last - first).int().view(shape))


def from_each_on(ordered: torch.Tensor) -> torch.Tensor:
    """Return the sums from each place on, and 0 at the end, [..., blocks + 1]."""
    return torch.nn.functional.pad(ordered.flip(-1).cumsum(-1).flip(-1), (0, 1))


def newest(call: Call) -> Blocks:
    """Return the blocks without a sketch, which each token reads first."""
    tokens = call.tokens
    begin, end = (each * _PER_CHUNK for each in windows_of(tokens.first, tokens.length))
    start, stop = tokens.first // BLOCK, (tokens.length + BLOCK - 1) // BLOCK
    before = torch.where(begin < end, begin - start, 0)  # the sketched blocks
    skipped = torch.where(begin < end, end - begin, 0)
    place = torch.arange(_NEWEST, dtype=torch.int32, device=call.q.device)
    blocks = start[:, None] + place + torch.where(place < before[:, None], 0, skipped[:, None])
    counts = stop - start - skipped
    shape = call.count, call.heads
    return Blocks(
        blocks[:, None].expand(*shape, _NEWEST).contiguous(),
        counts[:, None].expand(shape).contiguous(),
    )


def windows_of(first: torch.Tensor, length: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the chunks [begin, end) whose sketch each token uses, as `complete_chunks` does."""
    return (first + CHUNK - 1) // CHUNK, (length - LAG).clamp(min=0) // CHUNK


def heaviest_first(shares: torch.Tensor) -> torch.Tensor:
    """Return the blocks by descending share [..., blocks]; nearly equal ones in their order.

    Those of a share below 0, which are not there, come last.
    """
    buckets = torch.where(shares < 0, -torch.inf, _in_buckets(shares))
    return torch.sort(buckets, stable=True, dim=-1, descending=True).indices


def _shares(masses: torch.Tensor, peak: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return masses [N G, R, blocks], given as log2, in units of 2^`peak`, and their shares.

    Shares [N G, blocks] are summed over heads; -1 of blocks that no sketch covers.
    """
    found = (masses - peak[..., None]).exp2()
    shares = (found / found.sum(-1, keepdim=True).clamp(min=1e-30)).sum(1)
    return found, torch.where(masses[:, 0] == -torch.inf, -1, shares)


def by_sketch(call: Call, sketches: Sketches) -> Blocks:
    """Return the blocks without a sketch, newest first, and then the others, heaviest first."""
    found, first = estimated(call, sketches, bounded=False).masses, newest(call)
    _, shares = _shares(found, found.amax(-1).clamp(min=torch.finfo(found.dtype).min))
    order = heaviest_first(shares).int().view(call.count, call.heads, -1)
    begin, end = windows_of(call.tokens.first, call.tokens.length)
    sketched = _PER_CHUNK * (end - begin).clamp(min=0)
    place = torch.arange(_NEWEST + order.shape[-1], dtype=torch.int32, device=order.device)
    place, counts = place.expand(*first.counts.shape, -1), first.counts[..., None]
    new = first.blocks.gather(-1, (counts - 1 - place).clamp(0, _NEWEST - 1).long())
    old = order.gather(-1, (place - counts).clamp(0, order.shape[-1] - 1).long())
    return Blocks(torch.where(place < counts, new, old), first.counts + sketched[:, None])


def _in_buckets(shares: torch.Tensor) -> torch.Tensor:
    """Return ascending buckets of shares, as `suffice.attention.sketch`: four per power of two."""
    _, above = torch.frexp(shares.clamp(min=2.0**-28))
    exponent = above - 1
    quarters = torch.ldexp(shares, 2 - exponent).floor() / 4
    return (exponent + quarters).clamp(min=-27)
