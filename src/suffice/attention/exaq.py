"""Softmax of few bits: its input is clipped and quantised so that e^x, not x, is hit best.

    x <- x - max(x),  C = C*(sigma) < 0,  Delta = -C / (2^M - 1)
    code(x) = round((clip(x, C, 0) - C) / Delta)             half to even
    e^x ~ LUT_exp[code] = e^(C + Delta code)                 (Algorithm 2, line 6)
    sum e^x ~ sum of LUT_sum[4 codes in a byte]              (line 11; 2 bits)

C* minimises the mean square error of e^x for x of a normal density with standard deviation sigma:

    MSE(C) = C^2 / (12 (2^M - 1)^2) int_C^0 e^(2x) f + int_-inf^C (e^C - e^x)^2 f     (Eq. 5)

which `clip=table` takes from a line (Table 1) and `clip=solve` solves. (In print Eq. 5 has a minus
sign before its first term, which Eq. 4 does not give, and the mean of f is not said: that of x, a
thousand normal numbers minus their largest, is -3.24 sigma, which comes near the line up to
sigma = 2.) sigma is one number per layer, calibrated over x of all its heads; masked entries have
no code. `clip=minmax` clips nothing that the calibration saw: the baseline that the paper calls A3.
`clip=fit`, ours, takes for each head the C that made the error of its output least, on the text of
the calibration (see `suffice.attention.output_error`).

Every key below the first border has the same weight e^C, and many keys are: at long context the
tail outweighs the rest. `tail=flush` gives it no weight.

Source   Shkolnik et al., "EXAQ: Exponent Aware Quantization For LLMs Acceleration", section 3,
         Algorithm 2, Table 1; the line for 4 bits is that of its reference implementation.
Bound    a weight in [C, 0] is within a factor e^(Delta / 2); one below C is less than e^C off.
Cost     compares in place of e^x. Since all keys of code 0 weigh the same, L0,

             sum_s L(s) v_s = L0 sum_s v_s + sum over codes above 0 of (L(s) - L0) v_s

         and with the first sum kept from token to token, V is read only where a code is above 0.
         Rows that leave a window, or the cache, leave the sum.
Native   csrc/kernels/exaq.inl, csrc/attention/coded_traversal.cpp, csrc/kernels/traverse.inl
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from suffice.attention.softmax import Levels
from suffice.errors import InputError, unknown

if TYPE_CHECKING:
    import torch

    from suffice.attention.calibration import Calibration
    from suffice.attention.output_error import OutputError

# C* = slope sigma + intercept, by bits (Table 1)
TABLE = {2: (-1.66, -1.85), 3: (-1.75, -2.06), 4: (-1.83, -2.27)}
CLIPS = ("table", "solve", "minmax", "fit")
TAILS = ("clip", "flush")
_MEAN = -3.24  # of f, in sigma
_STEP = 0.01  # of C, in nats, when Eq. 5 is solved
_FITS = [-0.25 * i for i in range(4, 65)]  # C of which one is fitted
PACKED = 4  # codes of 2 bits in a byte


@dataclass(frozen=True)
class EXAQ:
    """Codes of `bits` bits; see the module for `clip` and `tail`; `prefill`: prompts too."""

    alone = "bits"

    bits: int = 2
    clip: str = "table"
    tail: str = "clip"
    prefill: bool = False

    def __post_init__(self) -> None:
        check_bits("exaq", self.bits)
        if self.clip not in CLIPS:
            raise unknown("clip of exaq", self.clip, CLIPS)
        check_tail("exaq", self.tail)

    @property
    def coded(self) -> bool:
        """Return that it has levels."""
        return True

    @classmethod
    def exact_limit(cls) -> None:
        """Return nothing: there is a bound."""

    def clipping(self, sigma: float, least: float) -> float:
        """Return C for a layer: its sigma, and the least x that the calibration saw."""
        assert self.clip != "fit", "which is of a head, not of a layer"
        if self.clip == "minmax":
            return min(least, -_STEP)
        if self.clip == "solve":
            best = solved(self.bits, sigma)
        else:
            slope, intercept = TABLE[self.bits]
            best = slope * sigma + intercept
        return min(max(best, least), -_STEP)

    def layer_levels(self, sigma: float, least: float) -> Levels:
        """Return the levels of all heads of a layer, unless they are fitted."""
        return self.levels_of_clip(self.clipping(sigma, least))

    def levels_of_clip(self, clip: float) -> Levels:
        """Return the levels of a C.

        A code's lower border is half a step below its level; one that lies between an even code
        below and an odd one above belongs to the even one.
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
    """Return the C at which the output of a head is off least, to a quarter of a nat."""
    import numpy as np

    from suffice.attention.output_error import nearest_edges

    exaq = EXAQ(bits, tail=tail)

    def off(clip: float) -> float:
        levels = exaq.levels_of_clip(clip)
        return error.of(nearest_edges(levels.borders), np.array(levels.weights))

    return min(_FITS, key=off)


def check_bits(owner: str, bits: int) -> None:
    """Refuse a number of bits that has no kernel.

    Raises:
        InputError: Not 2, 3 or 4.
    """
    if bits not in TABLE:
        raise InputError(f"{owner}: bits={bits}: must be 2, 3 or 4")


def check_tail(owner: str, tail: str) -> None:
    """Refuse a tail that is not known.

    Raises:
        InputError: Not in `TAILS`.
    """
    if tail not in TAILS:
        raise unknown(f"tail of {owner}", tail, TAILS)


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


def solved(bits: int, sigma: float) -> float:
    """Return the C at which Eq. 5 is least, to a hundredth of a nat."""
    lowest = 6 * max(sigma, 1.0) + 6
    clips = (-_STEP * i for i in range(1, round(lowest / _STEP)))
    return min(clips, key=lambda clip: error_of_clip(bits, sigma, clip))


def _moment(power: int, sigma: float, low: float, high: float) -> float:
    """Return the integral of e^(power x) f(x) from `low` to `high`."""
    mean = _MEAN * sigma

    def below(x: float) -> float:
        return 0.5 * math.erfc(-((x - mean) / sigma - power * sigma) / math.sqrt(2))

    return math.exp(power * mean + power * power * sigma * sigma / 2) * (below(high) - below(low))


def quantise(x: torch.Tensor, clip: float, bits: int) -> torch.Tensor:
    """Return the codes of x = score - max, int64 (Algorithm 2, line 4); masked entries get -1."""
    import torch

    steps = 2**bits - 1
    codes = torch.round((x.clamp(clip, 0.0) - clip) * steps / -clip).long()  # half to even
    return codes.masked_fill(x == float("-inf"), -1)


def softmax(scores: torch.Tensor, clip: float, bits: int) -> torch.Tensor:
    """Return the softmax of one row [S] as Algorithm 2 computes it.

    Four codes of 2 bits make a byte, whose sum of exponentials `LUT_sum` has; what is left, and
    other numbers of bits, is summed one by one.
    """
    import torch

    x = scores - scores.max()  # line 3
    codes = quantise(x, clip, bits)
    lut_exp = torch.exp(clip * (1 - torch.arange(2.0**bits, dtype=x.dtype) / (2**bits - 1)))
    e = lut_exp[codes].masked_fill(codes < 0, 0.0)  # line 6
    seen = codes[codes >= 0]
    packed = len(seen) // PACKED * PACKED if bits == 2 else 0
    total = lut_exp[seen[packed:]].sum()
    if packed:
        places = 4 ** torch.arange(PACKED)
        digits = torch.arange(4**PACKED)[:, None] // places % 4
        lut_sum = lut_exp[digits].sum(-1)
        total += lut_sum[(seen[:packed].reshape(-1, PACKED) * places).sum(-1)].sum()  # line 11
    return e / total  # line 15
