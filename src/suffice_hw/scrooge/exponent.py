"""Arithmetic of the exponential unit: FP16, range reduction, a Taylor series of fifth order.

e^x = 2^k e^r with k = round(x / ln 2), from a product in FP16, so |r| is at most about 0.35. The
series alone is useless: at r = -2 its error is 50 %. ln 2 is subtracted in two parts. The first
part has few enough bits that its product with k is exact. Each of the five Horner steps is rounded
to FP16.

Native   the unit `exponent` of suffice_hw/rtl, bit for bit, but subnormal numbers are 0 there.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Half = npt.NDArray[np.float16]
HIGH = np.float16(0.6875)  # 11/16
LOW = np.float16(math.log(2) - 0.6875)
INVERSE = np.float16(1 / math.log(2))
ORDER = 5
LARGEST = 11.09  # above it FP16 overflows


def exp_fp16(x: Half) -> Half:
    """Return e^x for FP16 numbers [n]; x is at most 11.09, and 2^k must be an FP16 number."""
    k = np.rint(x * INVERSE)
    r = (x - k * HIGH) - k * LOW
    e = np.float16(1 / math.factorial(ORDER))
    for order in range(ORDER - 1, -1, -1):
        e = (r * e + np.float16(1 / math.factorial(order))).astype(np.float16)
    scaled: Half = np.ldexp(e, k.astype(np.int32)).astype(np.float16)
    return scaled
