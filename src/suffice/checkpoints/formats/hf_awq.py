"""Weights that AWQ stores in its `gemm` version.

A layer [N, K] has, with eight codes of 4 bits in a word of 32 bits,

    qweight int32 [K, N / 8]    codes, along N
    qzeros  int32 [G, N / 8]    zero points, along N
    scales  [G, N]

    w[n, k] = scales[k // group, n] (code[n, k] - zero[k // group, n])

The codes of a word, from its lowest bits on, belong to the rows 0, 2, 4, 6, 1, 3, 5, 7 of eight.

Source   WQLinear_GEMM of AutoAWQ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suffice.checkpoints.formats.hf_parts import FLOAT_TYPES, Parts
from suffice.checkpoints.stored_file import unpack_words
from suffice.quant.stored_codes import StoredCodes, stored_codes

BITS = 4
_IN_WORD = 8  # codes
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # of the rows 0, 1, ... in a word


@dataclass(frozen=True)
class AWQ:
    """Codes of 4 bits; `group` columns share a scale, or all of a row."""

    parts: ClassVar[tuple[str, ...]] = ("qweight", "qzeros", "scales")

    group: int | None

    def is_coded(self, parts: Parts) -> bool:
        """Whether the layer has codes."""
        return "qweight" in parts

    def shape(self, parts: Parts) -> tuple[int, int]:
        """Return the weight's shape.

        Raises:
            InputError: The tensors do not fit each other.
        """
        columns, words = parts.shape("qweight")
        groups, _ = parts.shape("scales")
        parts.expect("qweight", ["I32"])
        parts.expect("qzeros", ["I32"], (groups, words))
        parts.expect("scales", FLOAT_TYPES, (groups, words * _IN_WORD))
        parts.groups(columns, groups, self.group)
        return words * _IN_WORD, columns

    def read(self, parts: Parts) -> StoredCodes:
        """Read a weight.

        Raises:
            InputError: A scale is not finite.
        """
        _, columns = self.shape(parts)
        scales = parts.scales("scales").T
        codes = unpack_words(parts.load("qweight").T, BITS, _PLACES)
        zeros = unpack_words(parts.load("qzeros").T, BITS, _PLACES)
        group = parts.groups(columns, scales.shape[1], self.group)
        return stored_codes(codes, scales, zeros, BITS, group)

    def type(self, parts: Parts) -> str:
        """Return AWQ and the bits of a code."""
        return f"AWQ-{BITS}"
