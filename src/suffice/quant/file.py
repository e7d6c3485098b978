"""Weights as their file stores them: codes stay codes, floats stay floats.

Exact    always, the weights: no value of the file changes. The inputs of matrices in codes are
         rounded to 16 bits, or to `act_bits` at the `sites`, with a scale for every 32 of a
         token's inputs.
Cost     the bits per weight that the file has (docs/formats.md).
Native   csrc/formats/panels.inl, csrc/kernels/linear_codes.inl
Options
    act_bits  bits of the inputs of matrices in codes: 16 or 8
    dtype     type of matrices in float: bfloat16 or float32; none: that of the model
    sites     matrices whose inputs have 8 bits; the others have 16. The default leaves out `down`
              (its inputs cost most of what 8 bits cost), and linear is all of a layer
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from suffice.errors import InputError
from suffice.quant.none import NoQuant
from suffice.quant.packed_codes import INPUT_LEVELS
from suffice.quant.panels import Allocate, PackedLinear
from suffice.quant.sites import STEADY, input_bits


@dataclass(frozen=True)
class AsStored:
    """Matrices in codes with inputs of `act_bits` bits, 16 or 8, at `sites`, such as `qkv+down`,
    and of 16 elsewhere; matrices in float in `dtype`."""

    calibrates: ClassVar[bool] = False
    needs_text: ClassVar[bool] = False
    hadamard: ClassVar[bool] = False

    act_bits: int = 16
    dtype: str | None = None
    sites: str = STEADY

    def __post_init__(self) -> None:
        if self.act_bits not in INPUT_LEVELS:
            raise InputError(f"file: act_bits={self.act_bits}; allowed: 8, 16")
        _ = self.floats  # refuses an unknown type
        input_bits("file", self.act_bits, self.sites, "")  # refuses unknown sites

    @property
    def floats(self) -> NoQuant:
        """The method for matrices in float."""
        return NoQuant() if self.dtype is None else NoQuant(self.dtype)

    @property
    def coded_bits(self) -> None:
        """Bits of codes that `pack` chooses: it chooses none."""

    def for_matrix(self, matrix: str) -> AsStored:
        """Return the method for a matrix, by its name: `act_bits` are the bits of its inputs."""
        bits = input_bits("file", self.act_bits, self.sites, matrix)
        return self if bits == self.act_bits else AsStored(bits, dtype=self.dtype)

    def pack(
        self, weight: np.ndarray, bias: np.ndarray | None = None, allocate: Allocate = np.empty
    ) -> PackedLinear:
        """Pack a dense weight [N, K], which is not in codes."""
        return self.floats.pack(weight, bias, allocate)
