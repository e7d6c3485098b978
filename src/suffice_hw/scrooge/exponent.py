"""The exponent unit's arithmetic: FP16, range reduction, a Taylor series of fifth order.

e^x = 2^k e^r with k = round(x / ln 2), so |r| <= 0.347; without that the series is of no use: at
r = -2 it is half off. ln 2 is subtracted in two parts, the first of which has few enough bits for
the product with k to be exact. Five Horner steps, each rounded to FP16.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Half = npt.NDArray[np.float16]
HIGH = np.float16(0.6875)  # 11/16
LOW = np.float16(math.log(2) - 0.6875)
ORDER = 5
LARGEST = 11.09  # above it FP16 overflows


def exp_fp16(x: Half) -> Half:
    """Return e^x of FP16 numbers [n], at most 11.09 and not so low that 2^k has no FP16."""
    k = np.rint(x.astype(np.float32) / math.log(2)).astype(np.float16)
    r = (x - k * HIGH) - k * LOW
    e = np.float16(1 / math.factorial(ORDER))
    for order in range(ORDER - 1, -1, -1):
        e = (r * e + np.float16(1 / math.factorial(order))).astype(np.float16)
    scaled: Half = np.ldexp(e, k.astype(np.int32)).astype(np.float16)
    return scaled
