"""Packed weights as the extension multiplies and unpacks them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np

from suffice.native import core
from suffice.quant.code_panels import grid_words
from suffice.quant.outliers import count_of
from suffice.quant.packed_codes import PackedCodes
from suffice.quant.panels import ROWS, PackedLinear

assert core.PANEL == ROWS, "what packs weights and kernels must agree on a panel's rows"

_MADE: WeakKeyDictionary[PackedLinear, core.Linear] = WeakKeyDictionary()


def native_linear(packed: PackedLinear) -> core.Linear:
    """Return the extension's layer, made once for each weight; it points into `packed.data`.

    Raises:
        ValueError: The weight's parts do not fit each other.
    """
    found = _MADE.get(packed)
    if found is None:
        found = _coded(packed) if isinstance(packed, PackedCodes) else _plain(packed)
        _MADE[packed] = found
    return found


def unpack(packed: PackedLinear) -> np.ndarray:
    """Return what `packed.unpack` does, computed by the extension."""
    weight = np.empty((packed.rows, packed.columns), np.float32)
    native_linear(packed).unpack(weight)
    return packed.by_input(weight) if isinstance(packed, PackedCodes) else weight


def unpack_rows(packed: PackedLinear, rows: Sequence[int]) -> np.ndarray:
    """Return some rows of the dense weight, float32 [len(rows), K]."""
    linear, found = native_linear(packed), np.empty((len(rows), packed.columns), np.float32)
    for row, to in zip(rows, found, strict=True):
        linear.unpack_row(row, to)
    return packed.by_input(found) if isinstance(packed, PackedCodes) else found


def multiply(packed: PackedLinear, x: np.ndarray) -> np.ndarray:
    """Return the products float32 [rows, N] of a weight with rows of inputs float32 [rows, K]."""
    found = np.empty((len(x), -(-packed.rows // ROWS) * ROWS), np.float32)
    native_linear(packed)(np.ascontiguousarray(x), found)
    return found[:, : packed.rows]


def _plain(packed: PackedLinear) -> core.Linear:
    data = packed.data.view(np.uint8).reshape(-1)
    return core.Linear(data, packed.rows, packed.columns, packed.dtype, packed.scale, packed.bias)


def _coded(packed: PackedCodes) -> core.Linear:
    linear = core.Linear(
        packed.data.reshape(-1),
        packed.rows,
        packed.columns,
        "codes",
        bias=packed.bias,
        levels=packed.levels,
        group=packed.layout.group,
        scales=packed.layout.scales,
        minima=packed.layout.minima,
        grid=packed.layout.grid,
        entries=None if packed.layout.grid == "none" else grid_words(packed.layout.grid),
        order=packed.order,
        rotation=packed.rotation,
        max_code=packed.most,
    )
    site = packed.site
    if site is not None:
        kept = 0 if site.thresholds else count_of(packed.columns, site.share)
        low, high = site.thresholds or (-math.inf, math.inf)
        linear.set_inputs(site.levels, kept, site.group or 0, low, high)
    return linear
