"""The packed layout of weights in codes of 4 bits: panels of 16 output rows, scales first.

    panel   float16 scale[K/group][16], filled up to whole lines of 64 bytes
            uint8 code[K/8][16][4]: byte j of row r has the code of column 8q + ORDER[j] in its low
            half and that of column 8q + 4 + ORDER[j] in its high half

A panel is one sequential stream. Rows are padded to 16 and columns to 8, by codes 0: padded inputs
are 0, and padded outputs are not looked at. Inputs are int16 or int8, times a scale for each token.
With int8 and levels of at most 63 products of pairs fit 16 bits, and take half the instructions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from suffice.errors import InputError
from suffice.native import core
from suffice.quant.activations import Site
from suffice.quant.coded import Coded, Grid
from suffice.quant.hadamard import rotate
from suffice.quant.outliers import count_of
from suffice.quant.panels import ROWS, PackedLinear

__all__ = ["INPUT_LEVELS", "PackedCodes", "pack_codes", "unpack_codes"]

ORDER = (0, 2, 1, 3)  # of columns within 4 bytes: neighbours end up as pairs of int16
LEVELS, OFFSET, COLUMNS, LINE = 16, 128, 8, 64
INPUT_LEVELS = {16: 32767, 8: 127}


@dataclass(frozen=True)
class PackedCodes(PackedLinear):
    """A linear layer's weight in codes, as the native core reads it; `data` is [N/16, bytes].

    `levels` uint8 [16] are the centroids, 128 added; `group` columns share a scale; inputs are
    rotated in blocks of `rotation` (0: not), brought to the levels of a `site` if there is one, and
    have whole codes of at most `most`.
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

    @cached_property
    def native(self) -> core.Linear:
        """The layer as the native core holds it; it points into `data`."""
        linear = core.Linear(
            self.data.reshape(-1),
            self.rows,
            self.columns,
            "codes",
            bias=self.bias,
            levels=self.levels,
            group=self.group,
            rotation=self.rotation,
            most=self.most,
        )
        if self.site is not None:
            linear.set_inputs(self.site.levels, count_of(self.columns, self.site.share))
        return linear

    def taken(self, x: torch.Tensor) -> torch.Tensor:
        """Return inputs [T, K] by the levels of the site, outliers as they are."""
        if self.site is None:
            return x
        turned = rotate(x, self.rotation) if self.rotation else x
        rounded = self.site.rounded(turned)
        return rotate(rounded, self.rotation) if self.rotation else rounded

    def unpack(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the dense weight [N, K] in `dtype`, for inputs that are not rotated."""
        weight = super().unpack()
        return (rotate(weight, self.rotation) if self.rotation else weight).to(dtype)


def pack_codes(
    coded: Coded,
    bias: torch.Tensor | None = None,
    *,
    rotation: int = 0,
    a: int = 16,
    site: Site | None = None,
) -> PackedCodes:
    """Pack codes of at most 4 bits with int8 levels and no zero points.

    Inputs have `a` bits, or are brought to the levels of a `site`.

    Raises:
        InputError: Codes of more bits, levels that are no whole numbers up to 127, or a site
            with thresholds.
    """
    grid = coded.grid
    levels = grid.levels
    if len(levels) > LEVELS:
        raise InputError(f"{len(levels)} levels cannot be packed; allowed: up to {LEVELS}")
    if grid.zero is not None or not torch.equal(levels, levels.round().clamp(-127, 127)):
        raise InputError("only codes of int8 levels without zero points can be packed")
    if site is not None and site.thresholds is not None:
        raise InputError("the kernel finds outliers of each token; thresholds cannot be packed")
    table = torch.cat((levels, levels[-1:].expand(LEVELS - len(levels)))) + OFFSET
    rows, columns = coded.codes.shape
    group = min(grid.group, -(-columns // COLUMNS) * COLUMNS)  # one scale for a row: K or more
    data = torch.cat((_scale_bytes(grid.scale), _code_bytes(coded.codes)), dim=1)
    return PackedCodes(
        data.contiguous(),
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
    """Return what `pack_codes` was given, with 16 levels."""
    assert packed.levels is not None
    groups = -(-packed.columns // packed.group)
    start = -(-groups * ROWS * 2 // LINE) * LINE
    scales = packed.data[:, : groups * ROWS * 2].contiguous().view(torch.float16)
    scale = scales.view(-1, groups, ROWS).transpose(1, 2).reshape(-1, groups)[: packed.rows].float()
    lines = packed.data[:, start:].reshape(len(packed.data), -1, ROWS, 4)
    pairs = torch.stack((lines & 15, lines >> 4), dim=3)  # [N/16, K/8, 16, 2, 4]
    codes = pairs[..., list(ORDER)].flatten(3).transpose(1, 2).reshape(len(lines) * ROWS, -1)
    levels = packed.levels.float() - OFFSET
    return Coded(
        codes[: packed.rows, : packed.columns].contiguous(), Grid(levels, scale, packed.group)
    )


def _scale_bytes(scale: torch.Tensor) -> torch.Tensor:
    """Return float16 scales [N, G] by panel and group, as bytes [N/16, whole lines]."""
    padded = torch.nn.functional.pad(scale, (0, 0, 0, -len(scale) % ROWS)).half()
    groups = padded.shape[1]
    panels = padded.view(-1, ROWS, groups).transpose(1, 2).reshape(-1, groups * ROWS).contiguous()
    stored = panels.view(torch.uint8)
    return torch.nn.functional.pad(stored, (0, -stored.shape[1] % LINE))


def _code_bytes(codes: torch.Tensor) -> torch.Tensor:
    """Return codes [N, K] by panel, 8 columns and row, as bytes [N/16, K/8 * 64]."""
    rows, columns = codes.shape
    padded = torch.nn.functional.pad(codes, (0, -columns % COLUMNS, 0, -rows % ROWS))
    lines = padded.view(len(padded) // ROWS, ROWS, -1, 2, 4).transpose(1, 2)[..., list(ORDER)]
    return (lines[..., 0, :] | lines[..., 1, :] << 4).reshape(len(padded) // ROWS, -1)
