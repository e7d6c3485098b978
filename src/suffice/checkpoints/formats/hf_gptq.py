"""Weights that GPTQ's programs store: AutoGPTQ, GPTQModel, optimum, transformers.

A layer [N, K] has, with codes of b bits packed into words of 32 bits,

    qweight int32 [K b / 32, N]    codes, along K
    qzeros  int32 [G, N b / 32]    zero points, along N; one less than they are, modulo 2^b
    scales  [G, N]
    g_idx   int32 [K]              the group of each column; with act-order they are mixed

    w[n, k] = scales[g_idx[k], n] (code[n, k] - zero[g_idx[k], n])

The format `gptq_v2` stores the zero points as they are. If all are 2^(b - 1) (`sym`), they move
into the levels.

Source   QuantLinear of AutoGPTQ, TorchLinear of GPTQModel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from suffice.checkpoints.formats.hf_parts import FLOAT_TYPES, Parts, order_of
from suffice.checkpoints.stored_file import unpack_words
from suffice.quant.stored_codes import StoredCodes, stored_codes

BITS = (2, 3, 4, 8)
_WORD_BITS = 32


@dataclass(frozen=True)
class GPTQ:
    """Codes of `bits` bits; `group` columns share a scale, or all of a row.

    `shift` is added to stored zero points. With `overrides` some layers have their own bits and
    group, which follow from their shapes.
    """

    parts: ClassVar[tuple[str, ...]] = ("qweight", "qzeros", "scales", "g_idx")

    bits: int
    group: int | None
    shift: int = 1
    overrides: bool = False

    def is_coded(self, parts: Parts) -> bool:
        """Whether the layer has codes."""
        return "qweight" in parts

    def shape(self, parts: Parts) -> tuple[int, int]:
        """Return the weight's shape.

        Raises:
            InputError: The tensors do not fit each other.
        """
        words, rows = parts.shape("qweight")
        groups, _ = parts.shape("scales")
        columns = parts.shape("g_idx", 1)[0] if "g_idx" in parts else words * 32 // self.bits
        bits = words * _WORD_BITS / columns
        if bits not in (BITS if self.overrides else (self.bits,)):
            raise parts.error(
                f"'qweight' has {words} words for {columns} columns, {bits:.3g} bits each; "
                f"{self.bits} bits expected"
            )
        if rows * int(bits) % _WORD_BITS:
            raise parts.error(f"{rows} zero points of {int(bits)} bits are not whole words")
        parts.expect("qweight", ["I32"])
        parts.expect("scales", FLOAT_TYPES, (groups, rows))
        parts.expect("qzeros", ["I32"], (groups, rows * int(bits) // _WORD_BITS))
        if "g_idx" in parts:
            parts.expect("g_idx", ["I32", "I64"])
        self._group(parts, columns, groups)
        return rows, columns

    def read(self, parts: Parts) -> StoredCodes:
        """Read a weight.

        Raises:
            InputError: A scale is not finite, or `g_idx` mixes groups that are not whole.
        """
        _, columns = self.shape(parts)
        bits = self._bits(parts, columns)
        scales = parts.scales("scales").T
        codes = unpack_words(parts.load("qweight").T, bits)
        zeros = unpack_words(parts.load("qzeros"), bits).T + np.uint8(self.shift) & 2**bits - 1
        order = None
        if "g_idx" in parts:
            order = order_of(parts, "g_idx", columns, scales.shape[1])
        if order is not None:
            codes = np.take(codes, order, 1)
        group = self._group(parts, columns, scales.shape[1])
        return stored_codes(codes, scales, zeros, bits, group, order)

    def type(self, parts: Parts) -> str:
        """Return GPTQ and the bits of a code."""
        return f"GPTQ-{self._bits(parts, self.shape(parts)[1])}"

    def _bits(self, parts: Parts, columns: int) -> int:
        return parts.shape("qweight")[0] * _WORD_BITS // columns

    def _group(self, parts: Parts, columns: int, count: int) -> int | None:
        said = -(-columns // count) if self.overrides else self.group
        return parts.groups(columns, count, said)
