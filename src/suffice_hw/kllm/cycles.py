"""KLLM's units cycle by cycle, on given codes; `design` has closed formulas of the same units.

A wave computes one output column in each lane. In every cycle, in this order:

    MACs      take `macs` filled bins of each lane, then as many outliers, then add the two sums;
              a wave's bins come once all of its indices are counted
    counters  take counters * counter_inputs indices of each lane
    concat    fills the index registers from full weight buffers, once all indices are counted
    memory    fills the weight buffers, which have room for `lane_inputs` weights of a lane; its
              queue holds what one cycle brings

Lanes share the activations' indices, so all begin a wave together, and the slowest one holds up the
next. The MACs' products are added by a tree with a register at each level, which takes a wave while
the one before is still in it. So it adds to the last wave only.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from suffice_hw.kllm.design import Design

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]


def product(
    design: Design, inputs: int, filled: Sequence[int], outliers: int = 0, added: int = 1
) -> int:
    """Return the cycles of a product with `inputs` inputs, the first wave's included.

    Args:
        design: The accelerator.
        inputs: Inputs of each column.
        filled: Of each wave, the bins that its slowest lane sums.
        outliers: Inputs that are multiplied one by one.
        added: Cycles in which the two sums are added; 0: there are no outliers.
    """
    pieces = -(-inputs // design.lane_inputs)  # fills of the weight buffers for a column
    sizes = [min(design.lane_inputs, inputs - i * design.lane_inputs) for i in range(pieces)]
    needed = [design.lanes * size * design.weight_bits / 8 for size in sizes]
    rate, step = design.bytes_per_cycle(), design.counters * design.counter_inputs
    waves = len(filled)
    loading, held = 0, 0.0  # the piece that memory brings, and its bytes in the buffers
    indices = counted = 0  # in the registers; pieces of the current column that were counted
    ready: deque[int] = deque()  # waves that are counted, at most one besides the MACs' own
    bins = sparse = additions = 0
    begun = done = cycle = 0
    while done < waves:
        cycle += 1
        if not (bins or sparse or additions) and ready:
            bins, sparse, additions = ready.popleft(), outliers, added
        if bins:
            bins = max(bins - design.macs, 0)
        elif sparse:
            sparse = max(sparse - design.macs, 0)
        elif additions:
            additions -= 1
        busy = bins or sparse or additions
        if not busy and done + len(ready) < begun:
            done += 1
        if indices and (counted < pieces or not ready):
            indices = max(indices - step, 0)
            if not indices:
                counted += 1
        if counted == pieces and not ready:
            ready.append(filled[begun])
            begun, counted = begun + 1, 0
        full = loading < pieces * waves and held >= needed[loading % pieces]
        if full and not indices and counted < pieces:
            indices = sizes[loading % pieces]
            held -= needed[loading % pieces]
            loading += 1
        if loading < pieces * waves:
            held = min(held + rate, needed[loading % pieces] + rate)
    return cycle + tree_levels(design.macs)


def tree_levels(macs: int) -> int:
    """Return the levels of the tree that adds the products of `macs` units."""
    return math.ceil(math.log2(macs)) if macs > 1 else 0


def summed(terms: Floats, counts: Codes, macs: int) -> tuple[float, int]:
    """Return the sum of terms by their counts, and its cycles: MACs and a tree, bins by bins.

    Empty bins are left out.
    """
    filled = np.flatnonzero(counts)
    levels: list[Floats | None] = [None] * tree_levels(macs)
    total, at, cycles = 0.0, 0, 0
    while at < len(filled) or any(level is not None for level in levels):
        cycles += 1
        own = filled[at : at + macs]
        at += len(own)
        products = np.zeros(macs)
        products[: len(own)] = terms[own] * counts[own]
        arriving: Floats | None = products if len(own) else None
        for i, level in enumerate(levels):  # a level's register gets the sums of pairs
            levels[i], arriving = _paired(arriving), level
        if arriving is not None:
            total += float(arriving.sum())
    return total, cycles


def _paired(values: Floats | None) -> Floats | None:
    if values is None:
        return None
    padded = np.append(values, 0.0) if len(values) % 2 else values
    pairs: Floats = padded[::2] + padded[1::2]
    return pairs


def clustered(values: Floats, centroids: Floats, width: int) -> tuple[Codes, int]:
    """Return the code of the nearest centroid of each value, and the cycles.

    `width` values enter in a cycle; each stage compares with one border between centroids [2^a],
    ascending, and halves the choice.
    """
    borders = (centroids[1:] + centroids[:-1]) / 2
    bits = tree_levels(len(centroids))
    stages: list[tuple[Floats, Codes] | None] = [None] * bits
    found: list[Codes] = []
    at = cycles = 0
    while at < len(values) or any(stage is not None for stage in stages):
        cycles += 1
        own = values[at : at + width]
        at += len(own)
        arriving = (own, np.zeros(len(own), np.int64)) if len(own) else None
        for i, stage in enumerate(stages):
            if arriving is not None:
                half = 1 << (bits - 1 - i)
                beyond = arriving[0] > borders[arriving[1] + half - 1]
                arriving = (arriving[0], arriving[1] + half * beyond)
            stages[i], arriving = arriving, stage
        if arriving is not None:
            found.append(arriving[1])
    return np.concatenate(found), cycles


def found(design: Design, inputs: int) -> int:
    """Return the cycles of a vector's outliers: trees are built, then pop in turn or together."""
    cycles = 0
    for begin in range(0, inputs, design.tree_leaves):
        leaves = min(inputs - begin, design.tree_leaves)
        depth = math.ceil(math.log2(min(inputs, design.tree_leaves)))
        cycles += depth  # a level a cycle, from the leaves to the root
        left = [math.ceil(leaves * design.outlier_share / 2)] * 2  # of both trees
        while any(left):
            cycles += depth  # a popped leaf's ancestors are compared again, one a cycle
            for tree in range(2):
                if left[tree]:
                    left[tree] -= 1
                    if design.serial_pops:
                        break
    return cycles
