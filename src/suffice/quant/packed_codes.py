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

import torch

from suffice.errors import InputError
from suffice.quant.activations import Site
from suffice.quant.coded import Coded, Grid, check_group, unit_of
from suffice.quant.hadamard import rotate
from suffice.quant.panels import ROWS, PackedLinear

__all__ = ["INPUT_LEVELS", "SCALE_BYTES", "PackedCodes", "pack_codes", "unpack_codes"]

ORDER = (0, 2, 1, 3)  # of columns within 4 bytes: neighbours end up as pairs of int16
LEAST_BITS, MOST_BITS = 2, 6
OFFSET = 128
SCALE_BYTES = 2 * 16 * 2  # of the scales of two groups
INPUT_LEVELS = {16: 32767, 8: 127}


@dataclass(frozen=True, eq=False)
class PackedCodes(PackedLinear):
    """A linear layer's codebook weight as a backend reads it; `data` is [N/16, bytes].

    `levels` uint8 [2^bits] are the centroids plus 128; `group` columns share a scale. Inputs are
    rotated in blocks of `rotation` (0: not), mapped to the codebook of a `site` if there is one,
    and quantized to integers of at most `most`.
    """

    levels: torch.Tensor | None = None
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
    def scales(self) -> torch.Tensor:
        """The scales stored with the codes, float16 [N/16, 16 G], group by group."""
        pairs = _cut(self.data, self.pair_bytes)
        return torch.cat([pair[:, :SCALE_BYTES] for pair in pairs], dim=1).view(torch.float16)

    def quantize_inputs(self, x: torch.Tensor) -> torch.Tensor:
        """Return inputs [T, K] rounded to the codebook of the site, outliers exact."""
        if self.site is None:
            return x
        rotated = rotate(x, self.rotation) if self.rotation else x
        rounded = self.site.rounded(rotated)
        return rotate(rounded, self.rotation) if self.rotation else rounded

    def unpack(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the dense weight [N, K] in `dtype`, for inputs that are not rotated."""
        weight = unpack_codes(self).decode()
        return (rotate(weight, self.rotation) if self.rotation else weight).to(dtype)


def pack_codes(
    coded: Coded,
    bias: torch.Tensor | None = None,
    *,
    rotation: int = 0,
    a: int = 16,
    site: Site | None = None,
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
    if grid.zero is not None or not torch.equal(levels, levels.round().clamp(-127, 127)):
        raise InputError(
            "only codes of int8 levels without zero points can be packed: give levels=int8, or "
            "symmetric=true"
        )
    rows, columns = coded.codes.shape
    unit = unit_of(bits)
    group = grid.group if grid.group < columns else -(-columns // unit) * unit
    check_group("codes", bits, group)
    table = torch.cat((levels, levels[-1:].expand(2**bits - len(levels)))) + OFFSET
    return PackedCodes(
        _interleaved(_scale_bytes(grid.scale), _code_bytes(coded.codes, bits), 2 * group * bits),
        rows,
        columns,
        bias=None if bias is None else bias.float(),
        levels=table.to(torch.uint8),
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
    scale = packed.scales.view(len(packed.data), -1, ROWS).transpose(1, 2).flatten(0, 1).float()
    groups = -(-packed.columns // packed.group)
    codes = _codes_of(torch.cat([pair[:, SCALE_BYTES:] for pair in pairs], dim=1), bits)
    return Coded(
        codes[: packed.rows, : packed.columns].contiguous(),
        Grid(packed.levels.float() - OFFSET, scale[: packed.rows, :groups], packed.group),
    )


def _scale_bytes(scale: torch.Tensor) -> torch.Tensor:
    """Return float16 scales [N, G] by panel and two groups, as bytes [N/16, G/2, SCALE_BYTES]."""
    padded = torch.nn.functional.pad(scale, (0, scale.shape[1] % 2, 0, -len(scale) % ROWS)).half()
    panels = padded.view(len(padded) // ROWS, ROWS, -1).transpose(1, 2).contiguous()
    return panels.view(torch.uint8).view(len(panels), -1, SCALE_BYTES)


def _interleaved(scales: torch.Tensor, codes: torch.Tensor, group_bytes: int) -> torch.Tensor:
    """Return panels [N/16, bytes]: the scales of two groups before their codes."""
    pairs = enumerate(_cut(codes, 2 * group_bytes))
    return torch.cat([part for i, pair in pairs for part in (scales[:, i], pair)], dim=1)


def _cut(values: torch.Tensor, size: int) -> list[torch.Tensor]:
    """Return parts [N, size] of values [N, L]; the last one has the remainder."""
    return [values[:, begin : begin + size] for begin in range(0, values.shape[1], size)]


def _code_bytes(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Return codes [N, K] by panel and unit, as bytes [N/16, 2 bits K]."""
    rows, columns = codes.shape
    unit, low = unit_of(bits), _low_bits(bits)
    padded = torch.nn.functional.pad(codes, (0, -columns % unit, 0, -rows % ROWS))
    fours = padded.view(len(padded) // ROWS, ROWS, -1, unit // 4, 4)[..., list(ORDER)]
    fours = fours.permute(0, 2, 3, 1, 4)  # [panels, units, unit / 4, 16, 4]
    each = 8 // low
    shifted = [(fours[:, :, i::each] & (1 << low) - 1) << low * i for i in range(each)]
    lines = [reduce(torch.bitwise_or, shifted)]
    for bit in range(low, bits):
        planes = [(fours[:, :, i : i + 1] >> bit & 1) << i for i in range(unit // 4)]
        lines.append(reduce(torch.bitwise_or, planes))
    return torch.cat(lines, dim=2).flatten(1)


def _codes_of(stored: torch.Tensor, bits: int) -> torch.Tensor:
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
    codes = torch.stack(found, dim=2)[..., list(ORDER)]  # the order is its own inverse
    return codes.permute(0, 3, 1, 2, 4).reshape(len(stored) * ROWS, -1)


def _low_bits(bits: int) -> int:
    return 4 if bits >= 4 else 2
