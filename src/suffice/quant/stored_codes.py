"""Weights of few bits as a file stores them, before they are packed.

    w[n, order[k]] = scale[n, g] (level[code[n, k]] - zero[n, g]),    g = k // group

Every factor but a float32 scale is exact in float32, so the product is rounded at most once.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from suffice.quant.code_layout import UNIT, CodeLayout, ScaleForm

_OFFSET = 128  # of levels in bytes
_BYTE_BITS = 8
_SCALES: dict[ScaleForm, np.dtype[np.generic]] = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
}


@dataclass(frozen=True)
class StoredCodes:
    """A weight [N, K] in codes: uint8 `codes` [N, K], `scales` [N, G] of the layout's form.

    Scales that are powers are bytes e for 2^(e - 128). `levels` uint8 [2^bits] are offset by 128.
    `zeros` uint8 [N, G] are there if the layout's minima are `zero`; those of 8 bits are offset by
    128, as the levels are. `order` int32 [K] is there if column k of the codes belongs to input
    order[k].
    """

    layout: CodeLayout
    levels: np.ndarray
    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None = None
    order: np.ndarray | None = None

    def rows(self, first: int, out: np.ndarray) -> None:
        """Write the values of rows `first`, ... into `out` float32 [rows, K]."""
        own = slice(first, first + len(out))
        table = self.levels.astype(np.float32) - _OFFSET
        zeros = None if self.zeros is None else self.zeros[own].astype(np.float32)
        if zeros is not None and self.layout.bits == _BYTE_BITS:
            zeros -= _OFFSET
        scales = self.scales[own].astype(np.float32)
        if self.layout.scales == "power":
            scales = np.ldexp(np.float32(1), self.scales[own].astype(np.int32) - _OFFSET)
        values = np.empty_like(out) if self.order is not None else out
        for g, begin in enumerate(range(0, out.shape[1], self.layout.group)):
            columns = slice(begin, begin + self.layout.group)
            levels = table[self.codes[own, columns]]
            if zeros is not None:
                levels -= zeros[:, g, None]
            np.multiply(levels, scales[:, g, None], out=values[:, columns])
        if self.order is not None:
            out[:, self.order] = values


def stored_codes(
    codes: np.ndarray,
    scales: np.ndarray,
    zeros: np.ndarray,
    bits: int,
    group: int | None,
    order: np.ndarray | None = None,
) -> StoredCodes:
    """Describe scale (code - zero) in the form that needs the fewest bytes; no value changes.

    `zeros` [N, G] or [] are whole numbers below 2^bits. A zero point that all groups share moves
    into the levels. Scales in float32 that float16 or bfloat16 holds exactly are stored so. `group`
    columns share a scale; None: all of a row.
    """
    scales, form = _narrowed(scales)
    shared = int(zeros.flat[0])
    own = bool((zeros != shared).any())
    if bits == _BYTE_BITS:
        own, shared = own or shared != _OFFSET, _OFFSET
    elif own:
        shared = 0
    columns = codes.shape[1]
    layout = CodeLayout(bits, group or -(-columns // UNIT) * UNIT, form, "zero" if own else "none")
    levels = (np.arange(2**bits) - shared + _OFFSET).astype(np.uint8)
    return StoredCodes(
        layout,
        levels,
        np.ascontiguousarray(codes),
        scales,
        np.broadcast_to(zeros, scales.shape).astype(np.uint8) if own else None,
        order,
    )


def _narrowed(scales: np.ndarray) -> tuple[np.ndarray, ScaleForm]:
    """Return scales in the first of the types that holds them all, and the name of the type."""
    with np.errstate(over="ignore", under="ignore"):
        for form, dtype in _SCALES.items():
            narrow = scales.astype(dtype)
            if scales.dtype == dtype or (
                scales.dtype == np.float32 and np.array_equal(narrow.astype(np.float32), scales)
            ):
                return narrow, form
    raise AssertionError(f"scales of type {scales.dtype}")
