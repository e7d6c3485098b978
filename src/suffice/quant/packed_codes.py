"""The packed layout of weights in codes of 2 to 6 bits: panels of 16 output rows, one stream each.

    panel   for every two groups of columns
            float16 scale[2][16]
            units of columns: 8 where codes have 4 bits, else 32
    unit    uint8 low[C L/32][16][4], uint8 high[bits - L][16][4], C columns

Byte j of a row belongs to column ORDER[j] of four columns. The low L bits of their codes (L = 4, or
2 for codes of fewer than 4 bits) fill the bytes of `low` from the low end, four columns after four
columns. Bit i of a byte of high[e] is bit L + e of the codes of four i. Rows are padded to 16 and
columns to whole units, by codes 0: padded inputs are 0, and padded outputs are ignored. Inputs are
int16 or int8, times a scale for each token. With int8 inputs and centroids of at most 63, products
of pairs fit 16 bits and take half the instructions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from suffice.errors import InputError
from suffice.quant.activations import Site
from suffice.quant.coded import Coded, Grid, check_group, unit_of
from suffice.quant.hadamard import rotate
from suffice.quant.panels import ROWS, Allocate, PackedLinear, float32

__all__ = ["INPUT_LEVELS", "SCALE_BYTES", "PackedCodes", "pack_codes", "unpack_codes"]

ORDER = (0, 2, 1, 3)  # of columns within 4 bytes: neighbours end up as pairs of int16
LEAST_BITS, MOST_BITS = 2, 6
OFFSET = 128
SCALE_BYTES = 2 * 16 * 2  # of the scales of two groups
INPUT_LEVELS = {16: 32767, 8: 127}
PANELS = 16  # laid out at a time, so that their parts stay in the cache


@dataclass(frozen=True, eq=False)
class PackedCodes(PackedLinear):
    """A linear layer's codebook weight as a backend reads it; `data` is [N/16, bytes].

    `levels` uint8 [2^bits] are the centroids plus 128; `group` columns share a scale. Inputs are
    rotated in blocks of `rotation` (0: not), mapped to the codebook of a `site` if there is one,
    and quantized to integers of at most `most`.
    """

    levels: np.ndarray | None = None
    group: int = 0
    rotation: int = 0
    most: int = INPUT_LEVELS[16]
    site: Site | None = None

    @property
    def dtype(self) -> str:
        """Name of the storage type."""
        return "codes"

    @property
    def bits(self) -> int:
        """Bits of a code."""
        assert self.levels is not None
        return len(self.levels).bit_length() - 1

    @property
    def pair_bytes(self) -> int:
        """Bytes of two groups in a panel, their scales first."""
        return SCALE_BYTES + 4 * self.group * self.bits

    @property
    def scales(self) -> np.ndarray:
        """The scales stored with the codes, float16 [N/16, 16 G], group by group."""
        pairs = _cut(self.data, self.pair_bytes)
        return np.concatenate([pair[:, :SCALE_BYTES] for pair in pairs], 1).view(np.float16)

    def quantize_inputs(self, x: np.ndarray) -> np.ndarray:
        """Return inputs [T, K] rounded to the codebook of the site, outliers exact."""
        if self.site is None:
            return x
        rotated = rotate(x, self.rotation) if self.rotation else x
        rounded = self.site.rounded(rotated)
        return rotate(rounded, self.rotation) if self.rotation else rounded

    def unpack(self) -> np.ndarray:
        """Return the dense weight [N, K] in float32, for inputs that are not rotated."""
        weight = unpack_codes(self).decode()
        return rotate(weight, self.rotation) if self.rotation else weight


def pack_codes(
    coded: Coded,
    bias: np.ndarray | None = None,
    *,
    rotation: int = 0,
    a: int = 16,
    site: Site | None = None,
    allocate: Allocate = np.empty,
) -> PackedCodes:
    """Pack codes of at most 6 bits with int8 centroids and no zero points.

    Inputs have `a` bits, or are mapped to the codebook of a `site`.

    Raises:
        InputError: Codes of more bits, centroids that are not integers up to 127, or groups that
            are not whole units.
    """
    grid = coded.grid
    levels = grid.levels
    bits = max((len(levels) - 1).bit_length(), LEAST_BITS)
    if bits > MOST_BITS:
        raise InputError(f"codes of {bits} bits cannot be packed; allowed: up to {MOST_BITS}")
    if grid.zero is not None or not np.array_equal(levels, np.rint(levels).clip(-127, 127)):
        raise InputError(
            "only codes of int8 levels without zero points can be packed: give levels=int8, or "
            "symmetric=true"
        )
    rows, columns = coded.codes.shape
    unit = unit_of(bits)
    group = grid.group if grid.group < columns else -(-columns // unit) * unit
    check_group("codes", bits, group)
    table = np.pad(levels, (0, 2**bits - len(levels)), "edge") + OFFSET
    return PackedCodes(
        _panels(grid.scale, coded.codes, bits, group, allocate),
        rows,
        columns,
        bias=float32(bias),
        levels=table.astype(np.uint8),
        group=group,
        rotation=rotation,
        most=INPUT_LEVELS[16 if site else a],
        site=site,
    )


def unpack_codes(packed: PackedCodes) -> Coded:
    """Return the input of `pack_codes`, with 2^bits centroids."""
    assert packed.levels is not None
    bits = packed.bits
    pairs = _cut(packed.data, packed.pair_bytes)
    panels = packed.scales.reshape(len(packed.data), -1, ROWS).transpose(0, 2, 1)
    scale = panels.reshape(len(packed.data) * ROWS, -1).astype(np.float32)
    groups = -(-packed.columns // packed.group)
    codes = _codes_of(np.concatenate([pair[:, SCALE_BYTES:] for pair in pairs], 1), bits)
    return Coded(
        np.ascontiguousarray(codes[: packed.rows, : packed.columns]),
        Grid(
            packed.levels.astype(np.float32) - OFFSET,
            scale[: packed.rows, :groups],
            packed.group,
        ),
    )


def _panels(
    scale: np.ndarray, codes: np.ndarray, bits: int, group: int, allocate: Allocate
) -> np.ndarray:
    """Return panels [N/16, bytes]: the scales of two groups before their codes."""
    rows, columns = codes.shape
    panels, pair_bytes = -(-rows // ROWS), 4 * group * bits
    pairs = -(-scale.shape[1] // 2)
    whole = -(-columns // unit_of(bits)) * unit_of(bits)
    data = allocate((panels, pairs * SCALE_BYTES + 2 * whole * bits), np.dtype(np.uint8))
    for first in range(0, panels, PANELS):
        own = slice(first * ROWS, (first + PANELS) * ROWS)
        scales, bytes_ = _scale_bytes(scale[own]), _code_bytes(codes[own], bits)
        to, at = data[first : first + PANELS], 0
        for i, part in enumerate(_cut(bytes_, pair_bytes)):
            to[:, at : at + SCALE_BYTES] = scales[:, i]
            to[:, at + SCALE_BYTES : at + SCALE_BYTES + part.shape[1]] = part
            at += SCALE_BYTES + part.shape[1]
    return data


def _scale_bytes(scale: np.ndarray) -> np.ndarray:
    """Return float16 scales [N, G] by panel and two groups, as bytes [N/16, G/2, SCALE_BYTES]."""
    padded = np.pad(scale, ((0, -len(scale) % ROWS), (0, scale.shape[1] % 2))).astype(np.float16)
    panels = padded.reshape(len(padded) // ROWS, ROWS, -1).transpose(0, 2, 1)
    return np.ascontiguousarray(panels).view(np.uint8).reshape(len(panels), -1, SCALE_BYTES)


def _cut(values: np.ndarray, size: int) -> list[np.ndarray]:
    """Return parts [N, size] of values [N, L]; the last one has the remainder."""
    return [values[:, begin : begin + size] for begin in range(0, values.shape[1], size)]


def _code_bytes(codes: np.ndarray, bits: int) -> np.ndarray:
    """Return codes [N, K] by panel and unit, as bytes [N/16, 2 bits K]."""
    rows, columns = codes.shape
    unit, low = unit_of(bits), _low_bits(bits)
    if columns % unit or rows % ROWS:
        codes = np.pad(codes, ((0, -rows % ROWS), (0, -columns % unit)))
    fours = codes.reshape(len(codes) // ROWS, ROWS, -1, unit // 4, 4)
    fours = np.ascontiguousarray(fours.transpose(0, 2, 3, 1, 4))[..., list(ORDER)]
    # [panels, units, unit / 4, 16, 4]
    each = 8 // low
    shifted = [(fours[:, :, i::each] & (1 << low) - 1) << low * i for i in range(each)]
    lines = [reduce(np.bitwise_or, shifted)]
    for bit in range(low, bits):
        planes = [(fours[:, :, i : i + 1] >> bit & 1) << i for i in range(unit // 4)]
        lines.append(reduce(np.bitwise_or, planes))
    return np.concatenate(lines, 2).reshape(len(fours), -1)


def _codes_of(stored: np.ndarray, bits: int) -> np.ndarray:
    """Return the codes [N, K], padded, from the bytes of `_code_bytes`."""
    low, fours = _low_bits(bits), unit_of(bits) // 4
    each = 8 // low
    units = stored.reshape(len(stored), -1, fours // each + bits - low, ROWS, 4)
    found = []
    for i in range(fours):
        code = units[:, :, i // each] >> low * (i % each) & (1 << low) - 1
        for bit in range(low, bits):
            code = code | (units[:, :, fours // each + bit - low] >> i & 1) << bit
        found.append(code)
    codes = np.stack(found, 2)[..., list(ORDER)]  # the order is its own inverse
    rows: np.ndarray = codes.transpose(0, 3, 1, 2, 4).reshape(len(stored) * ROWS, -1)
    return rows


def _low_bits(bits: int) -> int:
    return 4 if bits >= 4 else 2
