"""Which rows `tiers` reads exactly, by their bases, or not at all, and attention to them.

As `suffice.attention.tiers_reference`. Nothing here asks the device for a number. So with bounds
the share that may be missing is halved HALVINGS times where the reference goes on to halve it: then
all blocks are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from suffice.backends.triton.bases import Bases
from suffice.backends.triton.call import UNIT, Call, Reads, Sums
from suffice.backends.triton.rules import HeadRules
from suffice.backends.triton.sketches import SUM_ERROR, between, from_each_on, heaviest_first
from suffice.backends.triton.tier_audit import Bounds, Weighed, tier_figures
from suffice.backends.triton.tier_rows import (
    EVERY,
    SLACK,
    bound_units,
    estimate_units,
    score_heavy,
    sum_tiers,
    turn_queries,
)
from suffice.cache import BLOCK

HALVINGS = 2
_READ = 64  # rows that one program reads exactly


class _Queries(NamedTuple):
    """Queries as bases take them, and what bounds their errors: see `turn_queries`."""

    rounded: torch.Tensor
    steps: torch.Tensor
    of_means: torch.Tensor
    lengths: torch.Tensor
    losses: torch.Tensor
    lost_means: torch.Tensor


@dataclass(frozen=True)
class _Search:
    """What tokens' rows weigh by their bases, from which blocks are chosen.

    `scores` [N G, R, C], blocks' `masses` [N G, R, blocks] in units of 2^`peak` [N G, R], the
    blocks' `order` by them, and the `floors` below which rows are skipped. `keys` int32 [N G]
    counts those read exactly.
    """

    call: Call
    bases: Bases
    queries: _Queries
    scores: torch.Tensor
    masses: torch.Tensor
    peak: torch.Tensor
    floors: torch.Tensor
    order: torch.Tensor
    keys: torch.Tensor

    @classmethod
    def of(cls, call: Call, bases: Bases, lightest: torch.Tensor, bounded: bool) -> _Search:
        """Return the search before anything is read; `lightest` [N G]: see `attend_in_tiers`."""
        queries = _turned(call, bases, bounded)
        blocks, tokens = -(-bases.rows // BLOCK), call.tokens
        scores = call.empty(call.group, bases.rows)
        masses = call.zeros(call.group, blocks, dtype=torch.float32) - torch.inf
        tops = masses.clone()
        estimate_units[(call.units(UNIT, None), call.pairs)](
            *queries[:3], bases.key_codes, bases.key_scales, bases.key_shares,
            tokens.owner, tokens.first, tokens.length, scores, masses, tops,
            call.heads, bases.rows, blocks,
            **call.part, HALF=max(call.dim // 2, 16), UNIT=UNIT, TILE=64,
            FITTED=bases.rounding is not None,
        )  # fmt: skip
        peak = tops.amax(-1).clamp(min=EVERY)
        masses = (masses - peak[..., None]).exp2()
        total = masses.sum(-1, keepdim=True)
        below = (lightest[:, None] * total[..., 0]).log2().clamp(max=0)
        floors = torch.where(lightest[:, None] > 0, peak + below, EVERY)
        order = heaviest_first((masses / total.clamp(min=1e-30)).sum(1))
        return cls(call, bases, queries, scores, masses, peak, floors, order, call.zeros())

    def ordered(self, of_blocks: torch.Tensor) -> torch.Tensor:
        """Return figures of blocks [N G, R, blocks] in their order."""
        return of_blocks.gather(-1, self.order[:, None].expand_as(of_blocks))

    def read(
        self, begin: torch.Tensor, end: torch.Tensor, exact: torch.Tensor | None = None
    ) -> None:
        """Put exact scores in the place of those of blocks [begin, end) of the order.

        With bounds, `exact` [N G, R, blocks] gets the blocks' masses.
        """
        call, listed = self.call, between(self.call, self.order, begin, end)
        q, k, _, table, *rest = call.inputs(listed)
        shapes = {name: x for name, x in call.shapes(_READ, listed).items() if name != "LISTED"}
        score_heavy[(call.units(_READ, listed), call.pairs)](
            q, k, table, *rest, self.scores, self.peak, self.floors,
            self.peak if exact is None else exact, self.keys,
            call.scale, call.heads, self.bases.rows, self.order.shape[-1], *call.strides(listed),
            **shapes, BOUNDED=exact is not None,
        )  # fmt: skip

    def errors(self) -> list[torch.Tensor]:
        """Return what blocks weigh and lack if they are light: see `bound_units`."""
        call, bases, tokens, queries = self.call, self.bases, self.call.tokens, self.queries
        found = [torch.zeros_like(self.masses) for _ in range(4)]
        bound_units[(call.units(UNIT, None), call.pairs)](
            bases.key_scales, bases.key_shares, bases.key_errors, bases.value_errors,
            queries.lengths, queries.losses, queries.lost_means,
            tokens.owner, tokens.first, tokens.length, self.scores, self.peak, self.floors,
            *found, call.heads, bases.rows, self.order.shape[-1],
            GROUP=call.group, ROWS=call.rows, UNIT=UNIT, TILE=64,
            FITTED=bases.rounding is not None,
        )  # fmt: skip
        return found

    def bounded(self, most: torch.Tensor) -> tuple[torch.Tensor, Bounds]:
        """Read blocks until no softmax is further than `most` [N G] from the exact one.

        Return how many [N G], and what is then known.
        """
        held = torch.nn.functional.pad(self.ordered(self.masses).cumsum(-1), (1, 0))
        used, more, less, lost = (from_each_on(self.ordered(each)) for each in self.errors())
        above = more * (1 + SUM_ERROR)
        by_estimates = (held + used + more - less) * (1 - SUM_ERROR)
        ends = [_first(above, by_estimates, most / 2**times) for times in range(HALVINGS + 1)]
        end = torch.zeros_like(ends[0])
        done = torch.zeros_like(end, dtype=torch.bool)
        exact = torch.zeros_like(self.masses)
        for wanted in (*ends, torch.full_like(end, self.order.shape[-1])):
            begin, end = end, torch.where(done, end, wanted)
            self.read(begin, end, exact)
            at = end[:, None, None].expand(*used.shape[:2], 1)
            light, high, low, off = (x.gather(-1, at)[..., 0] for x in (used, above, less, lost))
            total = (exact.sum(-1) + light) * (1 - SUM_ERROR)
            distance = (high / (total + high - low).clamp(min=1e-30)).clamp(max=1)
            done = (distance <= most[:, None]).all(-1)
        shift = 2 * distance + off * (1 + SUM_ERROR) / total.clamp(min=1e-30)
        return end, Bounds(distance, shift)

    def summed(self, heavy: torch.Tensor, values: torch.Tensor, light: torch.Tensor) -> Sums:
        """Store the output, and return its sums; count the values of both kinds that are read."""
        call, bases, sums = self.call, self.bases, self.call.none()
        _, _, v, table, _, _, *of_tokens = call.inputs(None)
        units = call.units(UNIT, None)
        of_units = call.of_units(units)
        shapes = {name: x for name, x in call.shapes(UNIT, None).items() if name != "LISTED"}
        sum_tiers[(units, call.pairs)](
            v, table, bases.value_codes, bases.value_scales, heavy, *of_tokens,
            self.scores, self.floors, *of_units, values, light,
            call.heads, units, bases.rows, self.order.shape[-1], *call.strides(None)[2:-1],
            **shapes, **bases.rotation,
        )  # fmt: skip
        call.join(of_units, sums, None, UNIT)
        return sums


def attend_in_tiers(call: Call, rules: HeadRules, bases: Bases) -> tuple[torch.Tensor, Reads]:
    """Return the output, and what was read; see `attend`.

    Limits are the share of the softmax that may have estimated scores, `eps` of `tiers`, and that
    below which rows are skipped, `skip`.
    """
    shape, bounded = (call.count, call.heads), bool(rules.parameters["bounded"])
    most, least = (rules.limits[name].repeat(call.count) for name in ("estimated", "lightest"))
    search = _Search.of(call, bases, least, bounded)
    bounds = None
    if bounded:
        end, bounds = search.bounded(most)
    else:
        rest = from_each_on(search.ordered(search.masses))
        end = _first(rest, rest[..., :1], most)
        search.read(torch.zeros_like(end), end)
    place = torch.arange(search.order.shape[-1], device=end.device)
    heavy = (place < end[:, None]).to(torch.int8)
    heavy = torch.zeros_like(heavy).scatter_(-1, search.order, heavy)
    values, light = call.zeros(), call.zeros()
    sums = search.summed(heavy, values, light)
    seen = (call.tokens.length - call.tokens.first)[:, None].expand(shape)
    keys, values, light = (each.view(shape) for each in (search.keys, values, light))
    sketched = (seen + light) * (call.size // 2 + 4) + 2 * bounded * seen
    missing, shift = (
        (None, None) if bounds is None else (each.amax(-1).view(shape) for each in bounds)
    )
    weighed = Weighed(search.scores, search.floors, heavy)
    figures = partial(tier_figures, call, bases, weighed, bounds)
    reads = Reads(
        keys, values, keys + values, sums, sketched, missing, shift=shift, figures=figures
    )
    return call.out, reads


def _turned(call: Call, bases: Bases, bounded: bool) -> _Queries:
    rounding, none = bases.rounding, call.tokens.owner  # not read
    rounded = call.empty(2, call.rows, call.dim // 2, dtype=torch.int8)
    steps, of_means, losses, lost_means = (call.empty(call.rows) for _ in range(4))
    turned = call.empty(call.rows, call.dim) if bounded else none
    inverses, means = (none, none) if rounding is None else (rounding.inverses, rounding.means)
    turn_queries[(call.pairs,)](
        call.q, inverses, means, rounded, steps, of_means, turned, losses, lost_means,
        call.scale, call.heads, *call.q.stride()[:2],
        **call.part, **bases.rotation, FITTED=rounding is not None, BOUNDED=bounded,
    )  # fmt: skip
    if not bounded:
        return _Queries(rounded, steps, of_means, none, none, none)
    lengths = turned.view(call.count, call.heads, call.rows, -1)[..., : call.size].double()
    if rounding is not None:
        lengths = lengths @ rounding.duals
    lengths = SLACK * torch.linalg.vector_norm(lengths, dim=-1).float().flatten(0, 1)
    return _Queries(rounded, steps, of_means, lengths, losses, lost_means)


def _first(missing: torch.Tensor, whole: torch.Tensor, most: torch.Tensor) -> torch.Tensor:
    """Return the first place where at most the share `most` [N G] is missing in every head.

    It is the last place if nothing may be missing.
    """
    share = most[:, None, None]
    within = ((missing <= share * whole) | (share >= 1)).all(1)
    return torch.where(most > 0, within.int().argmax(-1), within.shape[-1] - 1)
