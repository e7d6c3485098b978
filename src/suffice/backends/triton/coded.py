"""Attention with a coded softmax: tables of weights, and the sums of values that go with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton

from suffice.attention.levels import Levels
from suffice.backends.triton.call import LOG2_E, UNIT, Blocks, Call, Held, Reads, Tokens
from suffice.backends.triton.codes import begin_sums, move_sums, score_units, sum_codes


@dataclass(frozen=True)
class Tables:
    """The tables of H query heads: `borders` [H, codes - 1] in base 2, and `weights` [H, codes].

    `tailed`: some head gives keys below all borders a weight.
    """

    borders: torch.Tensor
    weights: torch.Tensor
    tailed: bool

    @classmethod
    def of(cls, levels: Sequence[Levels], device: torch.device) -> Tables:
        """Return the tables of a layer's query heads."""
        borders = np.array([each.borders for each in levels]) * LOG2_E
        weights = np.array([each.weights for each in levels])
        held = [torch.from_numpy(x.astype(np.float32)).to(device) for x in (borders, weights)]
        return cls(held[0], held[1], bool(weights[:, 0].any()))


class ValueSums:
    """The sums of the values that B requests' last tokens see, in float64.

    They go on from token to token: new rows are added, those that leave a window subtracted.
    """

    def __init__(self, requests: int, heads: int, size: int, device: torch.device) -> None:
        shape = requests, heads
        self.sums = torch.zeros(*shape, size, dtype=torch.float64, device=device)
        self.begins = torch.zeros(*shape, dtype=torch.int32, device=device)
        self.ends, self.moves = torch.zeros_like(self.begins), torch.zeros_like(self.begins)

    def extend(self, held: Held, tokens: Tokens) -> None:
        """Go on to the rows that the last token of each request sees."""
        owner = tokens.owner.long()
        begins, ends = (
            old[:, 0].scatter_reduce(0, owner, new, "amax")
            for old, new in ((self.begins, tokens.first), (self.ends, tokens.length))
        )
        self._move(held, begins, ends)

    def truncate(self, held: Held, lengths: torch.Tensor) -> None:
        """Go back to the first rows [B] of each request, which are still held.

        Where rows have left a window the next token begins again: some of them are back in it.
        """
        begins, ends = self.begins[:, 0], self.ends[:, 0]
        kept = torch.where(begins > 0, 0, lengths)
        lost = ends > lengths
        self._move(held, torch.where(lost, 0, begins), torch.where(lost, kept, ends))

    def forget(self, request: int) -> None:
        """Begin again: a request's rows are others now."""
        for each in (self.sums, self.begins, self.ends):
            each[request] = 0

    def select(self, indices: torch.Tensor) -> None:
        """Let request i go on with the sums of request `indices[i]`."""
        for name in ("sums", "begins", "ends", "moves"):
            setattr(self, name, getattr(self, name)[indices])

    def _move(self, held: Held, begins: torch.Tensor, ends: torch.Tensor) -> None:
        requests, heads, size = self.sums.shape
        table = begins if held.table is None else held.table
        move_sums[(requests * heads,)](
            held.values, table, self.sums, self.begins, self.ends, self.moves, begins, ends,
            heads, *held.strides, 0 if held.table is None else table.stride(0),
            D=size, DIM=triton.next_power_of_2(size), PAGE=held.page,
        )  # fmt: skip


def attend_coded(
    call: Call, tables: Tables, sums: ValueSums | None, listed: Blocks | None
) -> tuple[torch.Tensor, Reads]:
    """Return the output by codes; see `attend`.

    `sums` go on to the call's rows. Without them, or in lists, values of all rows with a weight are
    read.
    """
    if listed is not None or not tables.tailed:
        sums = None
    if sums is not None:
        sums.extend(call.held, call.tokens)
    q, k, v, table, blocks, counts, owner, first, length = call.inputs(listed)
    units = call.units(UNIT, listed)
    *of_queries, at_owner, at_page, at_row, at_head, at_table, at_list = call.strides(listed)
    rows = at_owner, at_page, at_row, at_head, at_table
    shapes = call.shapes(UNIT, listed)
    scores, tops = call.empty(call.group, units * UNIT), call.empty(units, call.group)
    # With larger tiles, or more warps, the compiler keeps registers in memory.
    few = {"TILE": min(shapes["TILE"], 32), "num_warps": 4}
    score_units[(units, call.pairs)](
        q, k, table, blocks, counts, owner, first, length, scores, tops,
        call.scale, call.heads, units, *of_queries, *rows, at_list, **shapes | few,
    )  # fmt: skip
    found, values = call.none(), call.zeros()
    kinds = {"SUMMED": sums is not None, "CODES": tables.weights.shape[1]}
    held = (sums.sums, sums.begins, sums.ends, sums.moves) if sums else (owner,) * 4
    begin_sums[(call.pairs,)](
        v, table, owner, first, length, counts, tops, tables.weights, *held,
        found.peaks, found.totals, found.sums, values, call.heads, units, *rows,
        **{name: shapes[name] for name in shapes if name != "TILE"}, **kinds,
    )  # fmt: skip
    of_units = call.of_units(units)
    sum_codes[(units, call.pairs)](
        v, table, blocks, counts, owner, first, length, scores, found.peaks, tables.borders,
        tables.weights, *of_units, values, call.heads, units, *rows, at_list,
        **shapes, **kinds, TAILED=tables.tailed,
    )  # fmt: skip
    call.join(of_units, found, listed, UNIT)
    shape = call.count, call.heads
    seen = (length - first)[:, None].expand(shape) if listed is None else call.rows_of(listed)
    values = values.view(shape)
    return call.out, Reads(seen, values, seen + values, found)
