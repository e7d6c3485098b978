"""The best weights of about 4 bits that need no calibration and only seconds.

Codes of the file stay as they are if they have at most 5 bits per weight with their scales, or as
few bits as they would get here. Other matrices are rounded:

    q, o, gate, up     4 bits         the output of most weights, and the least sensitive
    down               5 bits
    k, v               6 bits         small where heads share them, and sensitive
    embedding, head    6 bits

Codes have nested scales for 16 columns; those of 4 bits have 16 levels that suit values around
zero. Codes of 4 and 5 bits may also have scales and minima for 32 columns, whichever loses less.

Bound    |w - q| <= scale * half the widest gap of the levels, for values within them.
Cost     4.625 bits per weight for 4 bits, 5.625 for 5, 6.625 for 6; about 5 in all.
Native   csrc/kernels/linear_codes.inl, csrc/kernels/round_groups.inl
Options
    act_bits    bits of inputs: 16 or 8
    sites       matrices whose inputs have 8 bits; the others have 16. The default leaves out `down`
                (its inputs cost most of what 8 bits cost), and linear is all of a layer
    compensate  GPTQ's error compensation with the text of `suffice quantize`
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np

from suffice.errors import InputError
from suffice.quant import gptq
from suffice.quant.activations import Site
from suffice.quant.code_layout import CodeLayout
from suffice.quant.code_panels import LEVEL_OFFSET, pack_panels
from suffice.quant.coded import Coded, check_weight
from suffice.quant.nested import NestedGrid, RoundGroups, Rounding, round_groups
from suffice.quant.packed_codes import INPUT_LEVELS, PackedCodes
from suffice.quant.panels import Allocate, float32
from suffice.quant.sites import SITE_OF, STEADY, in_dense_layer, input_bits

OWN_BITS = 5.0  # per weight, of codes that stay as the file has them
BITS = {"k": 6, "v": 6, "down": 5}  # of matrices of a layer that do not have 4
MORE_BITS = 6  # of all others
# Levels of least squares for 16 normal values times the best of many scales.
TABLE = (-118, -94, -77, -61, -46, -33, -20, -8, 3, 15, 28, 42, 58, 76, 103, 127)


@dataclass(frozen=True)
class Nested:
    """Codes of `bits` bits, 4 to 6, with nested scales, and inputs of `act_bits` bits."""

    dtype: ClassVar[None] = None
    calibrates: ClassVar[bool] = True
    needs_text: ClassVar[bool] = False
    hadamard: ClassVar[bool] = False
    fisher: ClassVar[bool] = False
    weighs_inputs: ClassVar[bool] = False

    bits: int
    act_bits: int = 16
    compensate: bool = True

    @property
    def coded_bits(self) -> None:
        """Bits of codes whose choice without a text loses much quality: none."""

    def for_matrix(self, matrix: str) -> Nested:
        """Return the method for a matrix: the same for all names."""
        return self

    def stays(self, layout: CodeLayout) -> bool:
        """Return whether codes that a file has in a layout are as good as any chosen here."""
        return layout.bits_per_weight <= max(OWN_BITS, signed(self.bits).layout.bits_per_weight)

    def best(self, weight: np.ndarray, by: RoundGroups = round_groups) -> Rounding:
        """Return the form that loses least on a weight float32 [N, K]."""
        forms = [signed(self.bits)]
        if self.bits < MORE_BITS:
            forms.append(with_minima(self.bits))
        if len(forms) == 1:
            return forms[0]
        return min(forms, key=lambda form: by(weight, form, None).lost)

    def pack(
        self, weight: np.ndarray, bias: np.ndarray | None = None, allocate: Allocate = np.empty
    ) -> PackedCodes:
        """Round a dense weight [N, K] and pack it.

        Raises:
            InputError: A weight that is not a matrix of finite numbers.
        """
        check_weight(weight)
        weight = weight.astype(np.float32, copy=False)
        form = self.best(weight)
        found = round_groups(weight, form, None)
        data = pack_panels(form.layout, found.codes, found.numbers, allocate)
        return self.packed_as(form, data, weight.shape, bias)

    def packed_as(
        self, form: Rounding, data: np.ndarray, shape: tuple[int, ...], bias: np.ndarray | None
    ) -> PackedCodes:
        """Return the weight [N, K] of panels in a form."""
        rows, columns = shape
        return PackedCodes(
            data,
            rows,
            columns,
            bias=float32(bias),
            layout=form.layout,
            levels=(form.levels + LEVEL_OFFSET).astype(np.uint8),
            most=INPUT_LEVELS[self.act_bits],
        )

    def quantize(
        self, weight: np.ndarray, hessian: np.ndarray | None = None, by: RoundGroups = round_groups
    ) -> Coded:
        """Return a weight [N, K] as codes without minima.

        With H = E[x x^T] [K, K] of its inputs, and `compensate`, errors are compensated.

        Raises:
            InputError: A weight that is not a matrix of finite numbers.
        """
        check_weight(weight)
        weight = weight.astype(np.float32, copy=False)
        form = signed(self.bits)
        found = by(weight, form, None)
        grid = NestedGrid.of(form, found.numbers)
        if hessian is None or not self.compensate:
            return Coded(found.codes, grid)
        return gptq.compensate(weight, hessian, grid)

    def packed(
        self,
        coded: Coded,
        bias: np.ndarray | None = None,
        site: Site | None = None,
        allocate: Allocate = np.empty,
    ) -> PackedCodes:
        """Pack what `quantize` returned; there is no `site`."""
        form = signed(self.bits)
        assert isinstance(coded.grid, NestedGrid)
        assert site is None
        data = pack_panels(form.layout, coded.codes, coded.grid.numbers, allocate)
        return self.packed_as(form, data, coded.codes.shape, bias)

    def shared_levels(self, parts: Iterable[tuple[np.ndarray, np.ndarray]]) -> None:
        """Return None: all weights have the same levels."""

    def site(self, inputs: np.ndarray, gradients: np.ndarray | None = None) -> None:
        """Return None, whatever the inputs [T, K]: sites have no codebooks."""


@dataclass(frozen=True)
class FourBit:
    """Weights of 4 to 6 bits by the kind of matrix, and inputs of `act_bits` bits, 16 or 8, at
    `sites`, such as `qkv+down`, and of 16 elsewhere."""

    dtype: ClassVar[None] = None
    calibrates: ClassVar[bool] = True
    needs_text: ClassVar[bool] = False
    hadamard: ClassVar[bool] = False
    fisher: ClassVar[bool] = False
    weighs_inputs: ClassVar[bool] = False

    act_bits: int = 16
    compensate: bool = True
    sites: str = STEADY

    def __post_init__(self) -> None:
        if self.act_bits not in INPUT_LEVELS:
            raise InputError(f"4bit: act_bits={self.act_bits}; allowed: 8, 16")
        input_bits("4bit", self.act_bits, self.sites, "")  # refuses unknown sites

    @property
    def coded_bits(self) -> None:
        """Bits of codes whose choice without a text loses much quality: none."""

    def for_matrix(self, matrix: str) -> Nested:
        """Return the method for a matrix, by its name."""
        kind = in_dense_layer(matrix)
        bits = BITS.get(kind, 4) if kind in SITE_OF else MORE_BITS
        act_bits = input_bits("4bit", self.act_bits, self.sites, matrix)
        return Nested(bits, act_bits, self.compensate)

    def pack(
        self, weight: np.ndarray, bias: np.ndarray | None = None, allocate: Allocate = np.empty
    ) -> PackedCodes:
        """Round a dense weight [N, K] to 4 bits and pack it.

        Raises:
            InputError: A weight that is not a matrix of finite numbers.
        """
        return self.plain.pack(weight, bias, allocate)

    def quantize(
        self, weight: np.ndarray, hessian: np.ndarray | None = None, by: RoundGroups = round_groups
    ) -> Coded:
        """Return a weight [N, K] as codes of 4 bits; see `Nested.quantize`.

        Raises:
            InputError: A weight that is not a matrix of finite numbers.
        """
        return self.plain.quantize(weight, hessian, by)

    def packed(
        self, coded: Coded, bias: np.ndarray | None = None, site: Site | None = None
    ) -> PackedCodes:
        """Pack what `quantize` returned; there is no `site`."""
        return self.plain.packed(coded, bias, site)

    def shared_levels(self, parts: Iterable[tuple[np.ndarray, np.ndarray]]) -> None:
        """Return None: all weights have the same levels."""

    def site(self, inputs: np.ndarray, gradients: np.ndarray | None = None) -> None:
        """Return None, whatever the inputs [T, K]: sites have no codebooks."""

    @property
    def plain(self) -> Nested:
        """The method for a matrix whose kind is not known."""
        return Nested(4, self.act_bits, self.compensate)


@cache
def signed(bits: int) -> Rounding:
    """Return codes of 4 to 6 bits around zero, with a scale for 16 columns."""
    top = 2 ** (bits - 1)
    if bits == 4:
        levels = np.array(TABLE, np.float32)
        shares = [127 * share for share in (0.8, 0.85, 0.9, 0.95, 1, 1.05, 1.1)]
        shares += [-127 * share for share in (0.8, 0.9, 1, 1.1)]
    else:
        levels = np.arange(-top, top, dtype=np.float32)
        shares = [top - 1, top - 0.5, top, -top, 0.5 - top, 1 - top, -0.75 - top]
    return Rounding(CodeLayout(bits, 16, "nested"), levels, 1 / np.array(shares, np.float32))


@cache
def with_minima(bits: int) -> Rounding:
    """Return codes of 4 or 5 bits from a minimum on, with scale and minimum for 32 columns."""
    levels = np.arange(2**bits, dtype=np.float32)
    shares = levels[-1] + np.arange(-10, 11, 2, dtype=np.float32) / 10
    return Rounding(CodeLayout(bits, 32, "nested", "nested"), levels, shares)
