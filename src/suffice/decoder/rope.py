"""Rotary position embeddings as tables of cosines and sines.

Source   Su et al. 2021, RoFormer (default); Chen et al. 2023, Position Interpolation (linear);
         Peng et al. 2023, YaRN, sections 3.2 and 3.4 (yarn) and 3.3 (dynamic NTK); Ding et al.
         2024, LongRoPE (longrope); the code released with Llama 3.1 (llama3).
Exact    Frequencies equal those of transformers to a relative 1e-6. (Near the edge of llama3's
         band, its formula magnifies a rounding by the factor: above 16, up to 1e-7 times it.)
Differs  For the same frequencies, tables have the bits of PyTorch's on x86-64 up to 10,000 radians;
         beyond that, 1 entry in 100 is off by a rounding. Powers are the nearest float32, while 1
         in 150 of PyTorch's vector code is the second nearest, depending on the instruction set:
         one frequency of heads of 128 and 256 entries with a base of 10^6 is such a case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from suffice.decoder.rotation import Rope

Array = npt.NDArray[np.float32]

_PI = (3.1415926534682512, 1.2154201018028943e-10)  # 32 bits, and the rest
_SINE = (-0.16666659550427218, 0.008333066246181527, -0.00019809602913598487, 2.605780669333813e-6)
_FAR = 1e4  # radians
_TOGETHER = 128  # positions of a table that are computed at a time: their angles stay in a cache


def rope_table(
    rope: Rope, head_size: int, trained: int, rows: int, first: int = 0
) -> tuple[Array, Array]:
    """Return cosines and sines [rows, R/2] float32 for the positions from `first` on.

    R are the entries of a head that are rotated.

    The kind's attention factor is folded in. The model was trained on `trained` positions.
    """
    turns, factor = frequencies(rope, head_size, trained)
    cosines, sines = (np.empty((rows, turns.size), np.float32) for _ in range(2))
    scale = np.float32(factor)
    for begin in range(0, rows, _TOGETHER):
        part = slice(begin, min(begin + _TOGETHER, rows))
        positions = np.arange(first + part.start, first + part.stop)[:, None]
        angles = (positions.astype(np.float32) * turns).astype(np.float64)  # float32 products
        cosines[part] = _sines(angles, 0.5) * scale
        sines[part] = _sines(angles, 0.0) * (-scale if rope.backward else scale)
    return cosines, sines


def frequencies(rope: Rope, head_size: int, trained: int) -> tuple[Array, float]:
    """Return frequencies [R/2] float32 in radians per position, and the factor of the table.

    R are the entries of a head that are rotated.
    """
    with np.errstate(over="ignore", under="ignore"):  # a vast theta: no rotation
        found, factor = _KINDS[rope.kind](rope, rope.rotated(head_size), trained)
        if rope.divisors:
            found = found / np.array(rope.divisors, np.float32)
    return found, factor


def _sines(angles: npt.NDArray[np.float64], shift: float) -> Array:
    """Return sin(angles + shift pi) for angles of at least 0 and a shift of 0 or 1/2.

    A polynomial of degree 9 in float64 is within 0.1 units of float32's last place, so the rounded
    result is within 0.6. Its numbers are the only ones with which 25 million sines have PyTorch's
    bits, on which the tokens of earlier versions depend.
    """
    halves = np.rint(angles / np.pi + shift)
    half = halves - shift
    rest = (angles - half * _PI[0]) - half * _PI[1]
    rest *= 1 - 2 * (halves.astype(np.int64) & 1)
    square = rest * rest
    a, b, c, d = _SINE
    found = rest + rest * square * (a + square * (b + square * (c + square * d)))
    far = angles > _FAR
    if far.any():
        found[far] = (np.cos if shift else np.sin)(angles[far])
    return found.astype(np.float32)


def _power(base: Any, exponent: Any) -> Any:
    """Return base ** exponent, both rounded to float32, as the nearest float32."""
    return np.power(np.float64(np.float32(base)), np.float64(np.float32(exponent))).astype(
        np.float32
    )


def _wavelengths(theta: Any, head_size: int) -> Any:
    """Return theta^(2i / D), the positions per radian, for the pairs i of a head's entries."""
    return _power(theta, np.arange(0, head_size, 2, dtype=np.float32) / np.float32(head_size))


def _default(rope: Rope, size: int, trained: int) -> tuple[Any, float]:
    return np.float32(1) / _wavelengths(rope.theta, size), 1.0


def _linear(rope: Rope, size: int, trained: int) -> tuple[Any, float]:
    factor = np.float32(dict(rope.parameters)["factor"])
    return np.float32(1) / _wavelengths(rope.theta, size) / factor, 1.0


def _dynamic(rope: Rope, size: int, trained: int) -> tuple[Any, float]:
    """YaRN, section 3.3: the base of "NTK-aware" interpolation by the length of the text.

    The stretch of a text of n tokens is s n / L - (s - 1), as transformers has it: 1 at L tokens.
    """
    factor = float(dict(rope.parameters)["factor"])
    text = np.float32(max(rope.text or 0, trained))
    stretch = np.float32(factor) * text / np.float32(trained) - np.float32(factor - 1)
    theta = np.float32(rope.theta) * _power(stretch, size / (size - 2))
    return np.float32(1) / _wavelengths(theta, size), 1.0


def _yarn(rope: Rope, size: int, trained: int) -> tuple[Any, float]:
    """YaRN, sections 3.2 ("NTK-by-parts") and 3.4 (temperature).

    Pairs that turn more than beta_fast times in the original length keep their frequency, those
    that turn less than beta_slow times are interpolated; in between the share grows linearly with
    the pair's number, as in the paper's code.
    """
    given = dict(rope.parameters)
    factor, original = given["factor"], given["original_max_position_embeddings"]

    def pair(turns: float) -> float:  # that turns so often in the original length
        return size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair(given.get("beta_fast", 32)), pair(given.get("beta_slow", 1))
    if given.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    high += 0.001 if low == high else 0  # as in the code, against a division by zero
    pairs = np.arange(size // 2, dtype=np.float32)
    interpolated = np.clip((pairs - np.float32(low)) / np.float32(high - low), 0, 1)
    waves, one = _wavelengths(rope.theta, size), np.float32(1)
    kept = one / waves * (one - interpolated)
    return one / (np.float32(factor) * waves) * interpolated + kept, _yarn_scale(given)


def _yarn_scale(given: Mapping[str, Any]) -> float:
    """YaRN, section 3.4: sqrt(1 / t) = 0.1 ln(s) + 1; mscale and mscale_all_dim as in DeepSeek."""
    if "attention_factor" in given:
        return float(given["attention_factor"])

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(max(given["factor"], 1)) + 1

    if "mscale" in given and "mscale_all_dim" in given:
        return scale(given["mscale"]) / scale(given["mscale_all_dim"])
    return scale(1)


def _longrope(rope: Rope, size: int, trained: int) -> tuple[Any, float]:
    """LongRoPE: a divisor for each pair, from one list up to the original length, then another.

    The factor of the table is sqrt(1 + ln(s) / ln(L)), of L tokens stretched to s L.
    """
    given = dict(rope.parameters)
    factor, original = given["factor"], given["original_max_position_embeddings"]
    scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    name = "short_factor" if rope.text is None or rope.text <= original else "long_factor"
    divisors = np.array(given[name], np.float32)
    turns = np.float32(1) / (divisors * _wavelengths(rope.theta, size))
    return turns, float(given.get("attention_factor", scale))


def _proportional(rope: Rope, size: int, trained: int) -> tuple[Any, float]:
    """Gemma 4: the frequencies of a rotation of a whole head, those of the last pairs 0."""
    turns = np.float32(1) / _wavelengths(rope.theta, size)
    turns[int(rope.partial * size // 2) :] = 0
    return turns / np.float32(dict(rope.parameters).get("factor", 1)), 1.0


def _llama3(rope: Rope, size: int, trained: int) -> tuple[Any, float]:
    """Llama 3.1: long waves are divided by the factor, short ones kept, those between mixed."""
    given = dict(rope.parameters)
    turns = np.float32(1) / _wavelengths(rope.theta, size)
    low, high = given["low_freq_factor"], given["high_freq_factor"]
    length, one = np.float32(given["original_max_position_embeddings"]), np.float32(1)
    waves = length / (np.float32(2 * np.pi) / turns)  # in the original length
    kept = (waves >= np.float32(low)).astype(np.float32)
    if high > low:
        kept = np.clip((waves - np.float32(low)) / np.float32(high - low), 0, 1)
    return (one - kept) * turns / np.float32(given["factor"]) + kept * turns, 1.0


_KINDS: Mapping[str, Callable[[Rope, int, int], tuple[Any, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "longrope": _longrope,
    "proportional": _proportional,
    "yarn": _yarn,
}
