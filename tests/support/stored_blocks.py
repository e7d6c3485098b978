"""Rows of random blocks of GGUF types, with chosen float16 numbers."""

from __future__ import annotations

import gguf
import numpy as np

# where in a block its float16 numbers are
WORDS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(["Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"], (0,)),
    **dict.fromkeys(["Q4_1", "Q5_1", "Q4_K", "Q5_K"], (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    **dict.fromkeys(["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_S", "IQ3_XXS", "IQ3_S"], (0,)),
    "IQ1_M": (48,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    **dict.fromkeys(["MXFP4", "NVFP4"], ()),
}
# float16 numbers as they are stored: largest, least, subnormal, zeros, and ordinary ones
EXTREMES = np.array(
    [0x7BFF, 0xFBFF, 0x0001, 0x8001, 0x03FF, 0x0400, 0x0000, 0x8000, 0x2E66, 0xB155], np.uint16
)
POWERS = np.array([0, 1, 2, 127, 128, 252], np.uint8)  # exponents of MXFP4, least and greatest too
DEVIATION = 0.06  # of ordinary weights


def sizes(kind: str) -> tuple[int, int]:
    """Return the values and bytes of a block."""
    found: tuple[int, int] = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    return found


def dequantized(kind: str, stored: np.ndarray) -> np.ndarray:
    """Return the values of stored rows, float32 [N, K]."""
    found: np.ndarray = gguf.dequantize(stored, gguf.GGMLQuantizationType[kind])
    return found


def blocks(
    kind: str, rows: int, columns: int, words: np.ndarray = EXTREMES, powers: np.ndarray = POWERS
) -> np.ndarray:
    """Return stored rows of random bytes whose float16 numbers or powers are of the given ones."""
    values, size = sizes(kind)
    random = np.random.default_rng(len(kind) + rows + columns)
    found = random.integers(0, 256, (rows, columns // values, size), np.uint8)
    for at in WORDS[kind]:
        put_word(kind, found, at, random.choice(words, found.shape[:2]).astype("<u2"))
    if kind == "MXFP4":
        found[..., 0] = random.choice(powers, found.shape[:2])
    return found.reshape(rows, -1)


def put_word(kind: str, found: np.ndarray, at: int, words: np.ndarray) -> None:
    """Write float16 numbers, as they are stored, to byte `at` of blocks [..., bytes]."""
    if kind != "IQ1_M":
        found[..., at : at + 2] = words[..., None].view(np.uint8)
        return
    for i in range(4):  # the highest four bits of each of four numbers
        own = found[..., at + 2 * i + 1] & 15
        found[..., at + 2 * i + 1] = own | (words >> 4 * i & 15) << 4


def ordinary(kind: str, rows: int, columns: int) -> np.ndarray:
    """Return stored rows whose values are those of a model's weights, about 0.06 in size."""
    if kind == "MXFP4":
        return blocks(kind, rows, columns, powers=np.array([121, 122], np.uint8))
    if kind == "NVFP4":
        found = blocks(kind, rows, columns).reshape(rows, -1, sizes(kind)[1])
        found[..., :4] = 16 + found[..., :4] % 8  # 2^-7 to 2^-6
        return found.reshape(rows, -1)
    one = np.array([1], np.float16).view(np.uint16)
    size = dequantized(kind, blocks(kind, rows, columns, one)).std()
    factors = np.linspace(0.5, 1.5, 16) * DEVIATION / size
    return blocks(kind, rows, columns, factors.astype(np.float16).view(np.uint16))
