"""FP16 arithmetic of the units, in integers: the exact result, rounded once.

Numbers are bit patterns 0..65535. Rounding is to nearest, ties to even. Differences from IEEE 754,
as in many accelerators: subnormal operands and results become zeros of the same sign, and there is
no NaN. An exponent field of 31 means infinity with any fraction. Infinity minus infinity keeps the
sign of the first operand. 0 * infinity, 0 / 0 and infinity / infinity are 0.
"""

from __future__ import annotations

INFINITY = 0x7C00
BIAS, FRACTION = 15, 10


def parts(bits: int) -> tuple[int, int, int]:
    """Return sign, mantissa and exponent of a finite number (-1)^sign mantissa 2^exponent."""
    sign, field, fraction = bits >> 15, bits >> FRACTION & 31, bits & 0x3FF
    return sign, (fraction | 1 << FRACTION) if field else 0, field - BIAS - FRACTION


def infinite(bits: int) -> bool:
    """Whether a number counts as infinity."""
    return bits >> FRACTION & 31 == 31


def rounded(sign: int, mantissa: int, exponent: int) -> int:
    """Return the FP16 number nearest to (-1)^sign mantissa 2^exponent."""
    if not mantissa:
        return sign << 15
    shift = mantissa.bit_length() - 1 - FRACTION
    if shift > 0:
        kept, rest = divmod(mantissa, 1 << shift)
        half = 1 << shift - 1
        kept += rest > half or (rest == half and kept & 1 == 1)
    else:
        kept = mantissa << -shift
    field = exponent + shift + BIAS + FRACTION
    if kept >> FRACTION + 1:
        kept, field = kept >> 1, field + 1
    if field < 1:
        return sign << 15
    return sign << 15 | (INFINITY if field > 30 else field << FRACTION | kept & 0x3FF)


def multiply(a: int, b: int) -> int:
    """Return a * b."""
    (sa, ma, ea), (sb, mb, eb) = parts(a), parts(b)
    if ma and mb and (infinite(a) or infinite(b)):
        return (sa ^ sb) << 15 | INFINITY
    return rounded(sa ^ sb, ma * mb, ea + eb)


def add(a: int, b: int) -> int:
    """Return a + b."""
    for each in (a, b):
        if infinite(each):
            return each & 0x8000 | INFINITY
    (sa, ma, ea), (sb, mb, eb) = parts(a), parts(b)
    low = min(ea, eb)
    total = (-ma if sa else ma) * (1 << ea - low) + (-mb if sb else mb) * (1 << eb - low)
    negative = int(total < 0) if total else sa & sb & int(not ma and not mb)
    return rounded(negative, abs(total), low)


def subtract(a: int, b: int) -> int:
    """Return a - b."""
    return add(a, b ^ 0x8000)


def divide(a: int, b: int) -> int:
    """Return a / b."""
    (sa, ma, ea), (sb, mb, eb) = parts(a), parts(b)
    sign = sa ^ sb
    if not ma or infinite(b):
        return sign << 15
    if infinite(a) or not mb:
        return sign << 15 | INFINITY
    quotient, rest = divmod(ma << 24, mb)
    return rounded(sign, quotient << 1 | (rest > 0), ea - eb - 25)


def key(bits: int) -> int:
    """Return an integer with the order of the FP16 numbers; -0 comes before 0."""
    return bits ^ (0xFFFF if bits >> 15 else 0x8000)
