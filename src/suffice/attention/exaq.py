"""Softmax of few bits: scores are clipped and rounded so that the error of e^x is least.

    x <- x - max(x),  C = C*(sigma) < 0,  Delta = -C / (2^M - 1)
    code(x) = round((clip(x, C, 0) - C) / Delta)             half to even
    e^x ~ LUT_exp[code] = e^(C + Delta code)                 (Algorithm 2, line 6)
    sum e^x ~ sum of LUT_sum[4 codes in a byte]              (line 11; 2 bits)

C* minimises the mean square error of e^x for normal x with standard deviation sigma:

    MSE(C) = C^2 / (12 (2^M - 1)^2) int_C^0 e^(2x) f + int_-inf^C (e^C - e^x)^2 f     (Eq. 5)

`clip=table` takes C* from a line (Table 1). `clip=solve` finds the C with the least error of the
sum of e^x over `keys` keys. Eq. 5 is the case of one key; below C all errors are positive, so over
N keys they add up to

    N MSE(C) + N (N - 1) b(C)^2,  b(C) = int_-inf^C (e^C - e^x) f

With one key, C stays near -6 however broad x is, and a thousand keys of code 0 outweigh the
heaviest key.

sigma is one number per layer, calibrated over x of all its heads; masked keys have no code.
`clip=minmax` clips nothing that the calibration saw; the paper calls this baseline A3. `clip=fit`
takes for each head the C with the smallest error of the head's output on the calibration text
(`suffice.attention.output_error`).

All keys below the first border weigh e^C. At long context there are many, and together they may
outweigh the rest; `tail=flush` gives them no weight.

Source   Shkolnik et al., "EXAQ: Exponent Aware Quantization For LLMs Acceleration", section 3,
         Algorithm 2, Table 1; the line for 4 bits is from the authors' code.
Differs  Eq. 5 is printed with a minus before its first term, which contradicts Eq. 4; here it is a
         plus. The paper does not give the mean of f; here it is -3.24 sigma, that of a thousand
         normal numbers minus their largest. Natively a code comes from comparing with borders, and
         sums from counting codes; packed codes with a table of sums are timed next to them
         (`benchmarks/attention/exaq.py`), and attention does not use them. `keys` above 1,
         `clip=fit` and `tail=flush` are ours.
Bound    a weight in [C, 0] is within a factor e^(Delta / 2); below C the error is less than e^C.
Cost     comparisons instead of e^x. All keys of code 0 have the same weight L0, so

             sum_s L(s) v_s = L0 sum_s v_s + sum over codes above 0 of (L(s) - L0) v_s

         The first sum is kept from token to token, and V is read only for codes above 0. Rows that
         leave a window or the cache are subtracted from the sum.
Native   csrc/kernels/coded_attention.inl, csrc/attention/coded_traversal.cpp,
         csrc/kernels/traverse.inl; packed codes: csrc/kernels/packed_softmax.inl
Example  exaq:bits=2
Options
    bits     bits of a code: 2, 3 or 4
    clip     where scores are clipped: table (Table 1), solve (by `keys`), minmax (nowhere), fit
             (by head)
    keys     with clip=solve: keys whose sum of e^x has the least error; 1: Eq. 5 as printed
    tail     clip: keys below the first border weigh e^C; flush: they weigh nothing
    prefill  true: prompts use it too; false: prompts use the exact softmax
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from suffice.attention.levels import Levels, check_tail
from suffice.errors import InputError, unknown
from suffice.registry import spelling

if TYPE_CHECKING:
    from suffice.attention.calibration import Calibration
    from suffice.attention.output_error import OutputError

# C* = slope sigma + intercept, by bits (Table 1)
TABLE = {2: (-1.66, -1.85), 3: (-1.75, -2.06), 4: (-1.83, -2.27)}
CLIPS = ("table", "solve", "minmax", "fit")
_MEAN = -3.24  # mean of f, in sigma
KEYS = 1000  # normal numbers with this mean, below the largest of them
_STEP = 0.01  # step of C when Eq. 5 is solved, in nats
_FITS = [-0.25 * i for i in range(4, 65)]  # candidates for C with clip=fit
PACKED = 4  # codes of 2 bits in a byte


@dataclass(frozen=True)
class EXAQ:
    """Codes of `bits` bits; see the module for `clip` and `tail`; `prefill`: prompts too."""

    bits: int = field(default=2, metadata=spelling(alone=True))
    clip: str = "table"
    tail: str = "clip"
    prefill: bool = False
    keys: int = KEYS

    def __post_init__(self) -> None:
        check_bits("exaq", self.bits)
        if self.keys < 1:
            raise InputError(f"exaq: keys={self.keys}: must be at least 1 key")
        if self.keys != KEYS and self.clip != "solve":
            raise InputError(f"exaq: keys={self.keys} with clip={self.clip}: needs clip=solve")
        if self.clip not in CLIPS:
            raise unknown("clip of exaq", self.clip, CLIPS)
        check_tail("exaq", self.tail)

    @property
    def coded(self) -> bool:
        """Return True: it has levels."""
        return True

    @classmethod
    def exact_limit(cls) -> None:
        """Return None: there is a bound instead."""

    def clipping(self, sigma: float, least: float) -> float:
        """Return C for a layer: its sigma, and the least x that the calibration saw."""
        assert self.clip != "fit", "clip=fit has a C for each head, not for a layer"
        if self.clip == "minmax":
            return min(least, -_STEP)
        if self.clip == "solve":
            best = solved(self.bits, sigma, self.keys)
        else:
            slope, intercept = TABLE[self.bits]
            best = slope * sigma + intercept
        return min(max(best, least), -_STEP)

    def layer_levels(self, sigma: float, least: float) -> Levels:
        """Return the levels of all heads of a layer, unless they are fitted."""
        return self.levels_of_clip(self.clipping(sigma, least))

    def levels_of_clip(self, clip: float) -> Levels:
        """Return the levels of a C.

        A code's lower border is half a step below its level. A value on the border between an even
        code and the odd code above it gets the even code.
        """
        steps = 2**self.bits - 1
        borders = []
        for code in range(steps):
            border = clip * (1 - (code + 0.5) / steps)
            borders.append(border if code % 2 else math.nextafter(border, 0.0))
        weights = [math.exp(clip * (1 - code / steps)) for code in range(steps + 1)]
        if self.tail == "flush":
            weights[0] = 0.0
        return Levels(tuple(borders), tuple(weights))

    def levels(self, calibration: Calibration) -> list[list[Levels]]:
        """Return the levels of each layer and query head, [L][H]."""
        if self.clip == "fit":
            clips = calibration.clips[self.tail][self.bits]
            return [[self.levels_of_clip(clip) for clip in layer] for layer in clips]
        return [
            [self.layer_levels(layer.sigma, layer.least)] * calibration.heads
            for layer in calibration.layers
        ]


def fitted_clip(bits: int, tail: str, error: OutputError) -> float:
    """Return the C with the smallest error of a head's output, to a quarter of a nat."""
    from suffice.attention.output_error import nearest_edges

    exaq = EXAQ(bits, tail=tail)

    def off(clip: float) -> float:
        levels = exaq.levels_of_clip(clip)
        return error.of(nearest_edges(levels.borders), np.array(levels.weights))

    return min(_FITS, key=off)


def check_bits(owner: str, bits: int) -> None:
    """Refuse a number of bits that has no kernel.

    Raises:
        InputError: `bits` is not 2, 3 or 4.
    """
    if bits not in TABLE:
        raise InputError(f"{owner}: bits={bits}: must be 2, 3 or 4")


def error_of_clip(bits: int, sigma: float, clip: float) -> float:
    """Return the mean square error of e^x when x is clipped at `clip` (Eq. 5)."""
    rounding = clip * clip / (12 * (2**bits - 1) ** 2) * _moment(2, sigma, clip, 0.0)
    low = -math.inf
    clipping = (
        math.exp(2 * clip) * _moment(0, sigma, low, clip)
        - 2 * math.exp(clip) * _moment(1, sigma, low, clip)
        + _moment(2, sigma, low, clip)
    )
    return float(rounding + clipping)


def bias_of_clip(sigma: float, clip: float) -> float:
    """Return the mean error of e^x of the keys that are clipped, over all keys."""
    low = -math.inf
    return math.exp(clip) * _moment(0, sigma, low, clip) - _moment(1, sigma, low, clip)


def solved(bits: int, sigma: float, keys: int) -> float:
    """Return the C with the least error of a sum of e^x over `keys` keys, to a hundredth of a nat.

    It is the mean square error; for one key it is Eq. 5.
    """

    def error(clip: float) -> float:
        return error_of_clip(bits, sigma, clip) + (keys - 1) * bias_of_clip(sigma, clip) ** 2

    lowest = 6 * max(sigma, 1.0) + 6
    return min((-_STEP * i for i in range(1, round(lowest / _STEP))), key=error)


def _moment(power: int, sigma: float, low: float, high: float) -> float:
    """Return the integral of e^(power x) f(x) from `low` to `high`."""
    mean = _MEAN * sigma

    def below(x: float) -> float:
        return 0.5 * math.erfc(-((x - mean) / sigma - power * sigma) / math.sqrt(2))

    return math.exp(power * mean + power * power * sigma * sigma / 2) * (below(high) - below(low))


def quantize(x: np.ndarray, clip: float, bits: int) -> np.ndarray:
    """Return the codes of x = score - max, int64 (Algorithm 2, line 4); masked entries get -1."""
    steps = 2**bits - 1
    codes = np.rint((np.clip(x, clip, 0.0) - clip) * steps / -clip).astype(np.int64)  # half to even
    return np.where(x == -np.inf, -1, codes)


def softmax(scores: np.ndarray, clip: float, bits: int) -> np.ndarray:
    """Return the softmax of one row [S] as Algorithm 2 computes it.

    Four codes of 2 bits make a byte, and `LUT_sum` has the sum of its four exponentials. Remaining
    codes, and codes of 3 or 4 bits, are summed one by one.
    """
    x = scores - scores.max()  # line 3
    codes = quantize(x, clip, bits)
    lut_exp = np.exp(clip * (1 - np.arange(2**bits, dtype=x.dtype) / (2**bits - 1)))
    e = np.where(codes < 0, 0.0, lut_exp[codes])  # line 6
    seen = codes[codes >= 0]
    packed = len(seen) // PACKED * PACKED if bits == 2 else 0
    total = lut_exp[seen[packed:]].sum()
    if packed:
        places = 4 ** np.arange(PACKED)
        digits = np.arange(4**PACKED)[:, None] // places % 4
        lut_sum = lut_exp[digits].sum(-1)
        total += lut_sum[(seen[:packed].reshape(-1, PACKED) * places).sum(-1)].sum()  # line 11
    weights: np.ndarray = e / total  # line 15
    return weights
