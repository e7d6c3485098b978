"""What the numbers in GGUF files stand for: types of tensors, and of files as a whole.

The `gguf` package decodes the types that are places in grids, and the extension all others. The
package is imported only for them, because its import takes as long as a small model.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np

from suffice.native import core
from suffice.quant.code_layout import CodeLayout, MinimumForm, ScaleForm
from suffice.quant.grids import GridName


class Block(NamedTuple):
    """A type of tensors: its ggml name, and the values and bytes of a block."""

    name: str
    values: int
    bytes: int


class Codes(NamedTuple):
    """What the codes of a type stand for: their layout in panels, and their levels plus 128."""

    layout: CodeLayout
    levels: np.ndarray


TYPES = {  # that can be read, by ggml number
    number: Block(name, values, size) for name, number, values, size, _ in core.block_types()
}
DECODED = {number for _, number, _, _, decoded in core.block_types() if decoded}  # by the extension
CODES = {  # types that become panels of codes, by name
    name: Codes(
        CodeLayout(
            bits,
            group,
            cast("ScaleForm", scales),
            cast("MinimumForm", minima),
            cast("GridName", grid),
        ),
        np.array(levels, np.uint8),
    )
    for name, bits, group, scales, minima, grid, levels in core.code_layouts()
}
_UNREAD = {
    9: "Q8_1",
    15: "Q8_K",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    41: "Q1_0",
}
KNOWN = _UNREAD | {number: block.name for number, block in TYPES.items()}

_FILES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4_MOE",
    39: "NVFP4",
    40: "Q1_0",
}


def file_type(number: object) -> str | None:
    """Return the name of a file's type, such as Q4_K_M; None if llama.cpp has no such number."""
    return _FILES.get(number) if isinstance(number, int) else None
