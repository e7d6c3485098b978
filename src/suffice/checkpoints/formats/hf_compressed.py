"""Weights that compressed-tensors (LLM Compressor) stores.

A layer [N, K] has, in its formats `pack-quantized` and `int-quantized`,

    weight_packed      int32 [N, K b / 32]    codes of b bits along K, 2^(b - 1) above their values
    weight_shape       [2]                    N and K
    weight             int8 [N, K]            in place of these two
    weight_scale       [N, G], [N, 1] or [1]  for groups of columns, rows, or the whole tensor
    weight_zero_point  int32 [N b / 32, G]    packed along N, as the codes are; or int8 [N, G]
    weight_g_idx       int32 [K]              the group of each column, with act-order

    w[n, k] = weight_scale[n, g] (value[n, k] - zero_point[n, g])

`float-quantized` is 8-bit floats; `hf_float8` reads them. A configuration may have several groups
of layers; which one a layer belongs to follows from its tensors.

Source   the quantized compressors of compressed-tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from suffice.checkpoints.formats.hf_float8 import FLOAT8, Float8
from suffice.checkpoints.formats.hf_parts import FLOAT_TYPES, Parts, Stored, order_of
from suffice.checkpoints.stored_file import unpack_words
from suffice.quant.stored_codes import StoredCodes, stored_codes

BITS = (4, 8)
_WORD_BITS = 32
_BYTE_BITS = 8


@dataclass(frozen=True)
class Integers:
    """A scheme of integers: bits, and the columns that share a scale (None: a row or all)."""

    bits: int
    group: int | None


@dataclass(frozen=True)
class Compressed:
    """The schemes of a configuration: those of integers, and that of 8-bit floats if any."""

    parts: ClassVar[tuple[str, ...]] = (
        "weight",
        "weight_packed",
        "weight_shape",
        "weight_scale",
        "weight_zero_point",
        "weight_g_idx",
    )

    integers: tuple[Integers, ...] = ()
    floats: Float8 | None = None

    def is_coded(self, parts: Parts) -> bool:
        """Whether the layer has codes or 8-bit floats."""
        return "weight_packed" in parts or parts.type("weight") in ("I8", FLOAT8)

    def shape(self, parts: Parts) -> tuple[int, int]:
        """Return the weight's shape.

        Raises:
            InputError: The tensors do not fit each other or any scheme.
        """
        if parts.type("weight") == FLOAT8:
            return self._float8(parts).shape(parts)
        rows, columns, bits = self._codes(parts)
        count = self._scales(parts, rows)
        self._group(parts, columns, bits, count)
        if "weight_zero_point" in parts:
            packed = (-(-rows * bits // _WORD_BITS), count)
            if parts.type("weight_zero_point") == "I32":
                parts.expect("weight_zero_point", ["I32"], packed)
            else:
                whole = ((), (1,)) if count == 1 else ()
                parts.expect("weight_zero_point", ["I8"], (rows, count), (1, count), *whole)
        if "weight_g_idx" in parts:
            parts.expect("weight_g_idx", ["I32", "I64"], (columns,))
        return rows, columns

    def read(self, parts: Parts) -> Stored:
        """Read a weight.

        Raises:
            InputError: A scale is not finite, a zero point is out of range, or act-order mixes
                groups that are not whole.
        """
        if parts.type("weight") == FLOAT8:
            return self._float8(parts).read(parts)
        return self._integers(parts)

    def type(self, parts: Parts) -> str:
        """Return int or FP and the bits of a code."""
        return "FP8" if parts.type("weight") == FLOAT8 else f"int{self._codes(parts)[2]}"

    def _integers(self, parts: Parts) -> StoredCodes:
        rows, columns, bits = self._codes(parts)
        count = self._scales(parts, rows)
        scales = parts.scales("weight_scale").reshape(-1, count)
        scales = np.broadcast_to(scales, (rows, count))
        if "weight_packed" in parts:
            codes = unpack_words(parts.load("weight_packed"), bits)[:, :columns]
        else:
            codes = parts.load("weight").view(np.uint8) ^ np.uint8(0x80)
        order = None
        if "weight_g_idx" in parts and (parts.load("weight_g_idx") != -1).all():
            order = order_of(parts, "weight_g_idx", columns, count)
        if order is not None:
            codes = np.take(codes, order, 1)
        group = self._group(parts, columns, bits, count)
        return stored_codes(codes, scales, self._zeros(parts, rows, bits), bits, group, order)

    def _codes(self, parts: Parts) -> tuple[int, int, int]:
        """Return the rows and columns of a weight of integers, and the bits of a code."""
        if "weight_packed" not in parts:
            rows, columns = parts.shape("weight")
            return rows, columns, _BYTE_BITS
        rows, words = parts.shape("weight_packed")
        parts.expect("weight_packed", ["I32"])
        parts.expect("weight_shape", ["I32", "I64"], (2,))
        said = parts.load("weight_shape").tolist()
        for scheme in self.integers:
            if said == [rows, said[1]] and words == -(-said[1] * scheme.bits // _WORD_BITS):
                return rows, said[1], scheme.bits
        bits = " or ".join(str(scheme.bits) for scheme in self.integers) or "other"
        raise parts.error(
            f"'weight_packed' has shape {[rows, words]}, which does not hold {said} codes of "
            f"{bits} bits"
        )

    def _scales(self, parts: Parts, rows: int) -> int:
        """Return the groups of a row that have scales."""
        count = parts.last("weight_scale")
        parts.expect("weight_scale", FLOAT_TYPES, (rows, count), (1, 1), (), (1,))
        return count

    def _group(self, parts: Parts, columns: int, bits: int, count: int) -> int | None:
        """Return the columns of a group, by the first scheme that has the number of groups."""
        plain = "weight_packed" not in parts  # bytes hold integers of fewer bits, too
        said = [each.group for each in self.integers if plain or each.bits == bits]
        if not said:
            raise parts.error("it has integers, which no scheme of the configuration has")
        fitting = [group for group in said if count == (1 if group is None else columns / group)]
        return parts.groups(columns, count, (fitting or said)[0])

    def _zeros(self, parts: Parts, rows: int, bits: int) -> np.ndarray:
        """Return the zero points as codes."""
        middle = 1 << bits - 1
        if "weight_zero_point" not in parts:
            return np.array(middle)
        found = parts.load("weight_zero_point")
        if parts.type("weight_zero_point") == "I32":
            packed: np.ndarray = unpack_words(found.T, bits)[:, :rows].T
            return packed
        values = found.astype(np.int64)
        if values.min() < -middle or values.max() >= middle:
            raise parts.error(
                f"'weight_zero_point' has values from {values.min()} to {values.max()}; "
                f"{-middle} to {middle - 1} are possible with {bits} bits"
            )
        zeros: np.ndarray = values + middle
        return zeros

    def _float8(self, parts: Parts) -> Float8:
        if self.floats is None:
            raise parts.error("it has 8-bit floats, which no scheme of the configuration has")
        return self.floats
