"""The loop of decode attention: reads blocks of keys in an order until a technique stops.

The H/G query heads of a group share keys and values: they read the same rows and stop together.
With x_s = scale q . k_s, a token's loop over blocks of `block` rows is

    w_s = e^(x_s), or the level that stands for it     weights of the keys, all heads
    row s of V is read if a head has w_s >= v max      the value filter
    A <- A + sum w_s,  o <- o + sum w_s v_s            v_s of rows that are read
    stop once every head may, but not before a block that is not always read

and its output is o / A. This is the reference of csrc/kernels/traverse.inl, written for reading.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from suffice.attention.levels import Levels, of_group, weigh
from suffice.attention.sketch import blocks_by_mass
from suffice.cache import BLOCK


@dataclass
class Seen:
    """The sums of one token's R heads of a group; weights are in units of e^peak.

    The peak is the largest score so far. When it grows, all sums are rescaled; a code is relative
    to the peak at the time it was computed.
    """

    length: int  # keys that the token may see
    known: int  # keys that were read
    weights: np.ndarray  # [R, S], weights of the keys that were read, 0 for others
    greatest: np.ndarray  # [R], e^x of the largest score that counts for the value filter
    output: np.ndarray  # [R, D], not divided by the sum of weights

    @property
    def total(self) -> np.ndarray:
        """Sum of the weights of the keys that were read, [R]."""
        total: np.ndarray = self.weights.sum(-1)
        return total

    def rescale(self, factors: np.ndarray) -> None:
        """Multiply everything by factors [R], as the peak has grown."""
        self.weights = self.weights * factors[:, None]
        self.greatest = self.greatest * factors
        self.output = self.output * factors[:, None]


@dataclass(frozen=True)
class Attended:
    """The output [H, T, D] and which rows of K and V were read for it, bool [T, G, S].

    `sketch_bytes` int [T, G]: what was read besides these rows; None: nothing, or it is not said.
    """

    output: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    sketch_bytes: np.ndarray | None = field(default=None, kw_only=True)


class Stopping(Protocol):
    """A technique that decides, block by block, whether to stop."""

    @property
    def block(self) -> int:
        """Rows between two checks."""
        ...

    @property
    def sketched(self) -> bool:
        """Whether blocks come by descending mass, estimated from sketches, or newest first."""
        ...

    @property
    def values(self) -> float:
        """Rows of V below this fraction of the largest weight are not read; 0 reads all."""
        ...

    def new_state(self) -> Any:
        """Return the state that one key/value head keeps from token to token; None if none."""
        ...

    def always(self, state: Any, length: int) -> list[int]:
        """Return the blocks that are always read, first, for a token that sees `length` keys."""
        ...

    def watch(self) -> Any:
        """Return the state that `enough` keeps within a token."""
        ...

    def enough(self, seen: Seen, watch: Any) -> np.ndarray:
        """Return which heads may stop, bool [R]."""
        ...

    def learn(self, state: Any, masses: dict[int, float]) -> None:
        """Update the state with the softmax mass of each block that is always read."""
        ...


def traverse(
    technique: Stopping,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    scale: float,
    visible: np.ndarray | None = None,
    states: list[Any] | None = None,
    orders: list[list[int]] | None = None,
    levels: Sequence[Levels] | None = None,
) -> Attended:
    """Attend with q [H, T, D] to k, v [G, S, D], token after token; `visible` bool [T, S].

    `states` [G] are updated; None starts with new ones. `orders` [G] rank some blocks of `BLOCK`
    rows, which come in that order after the others. `levels` [H]: the levels of a coded softmax.
    """
    heads, tokens, _ = q.shape
    groups, length, _ = k.shape
    rows = heads // groups
    states = [technique.new_state() for _ in range(groups)] if states is None else states
    output = np.empty_like(q)
    keys = np.zeros((tokens, groups, length), bool)
    values = np.zeros_like(keys)
    for t in range(tokens):
        sees = np.ones(length, bool) if visible is None else visible[t]
        for g in range(groups):
            own = slice(g * rows, (g + 1) * rows)
            scores = np.where(sees, scale * q[own, t] @ k[g].T, -np.inf)
            output[own, t] = _one(
                technique,
                scores,
                v[g],
                sees,
                states[g],
                orders[g] if orders else _order(technique, scale * q[own, t], k[g], sees),
                of_group(levels, g, rows),
                keys[t, g],
                values[t, g],
            )
    return Attended(output, keys, values)


def _order(technique: Stopping, q: np.ndarray, k: np.ndarray, sees: np.ndarray) -> list[int]:
    """Return the blocks that a token's scaled queries q [R, D] rank."""
    return blocks_by_mass(q * math.log2(math.e), k, sees) if technique.sketched else []


def _one(
    technique: Stopping,
    scores: np.ndarray,
    v: np.ndarray,
    sees: np.ndarray,
    state: Any,
    ranked: list[int],
    levels: Sequence[Levels] | None,
    keys: np.ndarray,
    values: np.ndarray,
) -> np.ndarray:
    """Return one token's output [R, D]; mark in `keys` and `values` [S] the rows that were read."""
    newest = int(np.flatnonzero(sees)[-1])
    first = technique.always(state, newest + 1)
    seen = Seen(
        length=int(sees.sum()),
        known=0,
        weights=np.zeros_like(scores),
        greatest=np.zeros(len(scores), scores.dtype),
        output=np.zeros((len(scores), v.shape[-1]), scores.dtype),
    )
    peak = np.full(len(scores), -1e30, scores.dtype)  # finite, so that hidden keys get weight 0
    watch = technique.watch()
    for at, rows in enumerate(_blocks(technique.block, first, ranked, sees)):
        always = at < len(first)
        seen.known += int(sees[rows].sum())
        most = scores[:, rows].max(-1)
        grown = np.maximum(peak, most)
        seen.rescale(np.exp(peak - grown))
        peak = grown
        weights = weigh(scores[:, rows] - peak[:, None], levels)
        seen.weights[:, rows] = weights
        keys[rows] = sees[rows]
        if always or not first:
            seen.greatest = np.maximum(seen.greatest, np.exp(most - peak))
        wanted = weights >= technique.values * seen.greatest[:, None]
        values[rows] = sees[rows] & (wanted.any(0) | always)
        seen.output += (weights * values[rows]) @ v[rows]
        if at + 1 > len(first) and technique.enough(seen, watch).all():
            break
    shares = seen.weights / seen.total[:, None]
    size = technique.block
    technique.learn(state, {b: float(shares[:, b * size : (b + 1) * size].sum()) for b in first})
    output: np.ndarray = seen.output / seen.total[:, None]
    return output


def _blocks(
    size: int, first: list[int], ranked: list[int], sees: np.ndarray
) -> Iterator[np.ndarray]:
    """Yield the rows of the blocks of `first`, of unranked ones, newest first, and of the rest.

    Ranked blocks have `BLOCK` rows. With larger blocks between checks, several of the list come
    together; smaller ones come newest first out of each of the list.
    """
    rows = np.flatnonzero(sees)
    parts = max(BLOCK // size, 1)
    ranked = [block * parts + part for block in ranked for part in reversed(range(parts))]
    unit = max(size // BLOCK, 1) if ranked else 1
    small = size // unit
    lowest, newest = int(rows[0]) // small, int(rows[-1]) // small
    units = range(newest // unit, lowest // unit - 1, -1)
    ascending = [block for each in units for block in range(each * unit, (each + 1) * unit)]
    unranked = [block for block in ascending if lowest <= block <= newest and block not in ranked]
    others = [each for each in (*unranked, *ranked) if lowest <= each and each not in first]
    together = [others[at : at + unit] for at in range(0, len(others), unit)]
    for blocks in (*([block] for block in first), *together):
        yield _rows(blocks, small, len(sees))


def _rows(blocks: list[int], size: int, length: int) -> np.ndarray:
    starts = np.array(blocks)[:, None] * size
    rows: np.ndarray = (starts + np.arange(size)).ravel()
    return rows[rows < length]
