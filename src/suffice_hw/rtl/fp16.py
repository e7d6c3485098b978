"""FP16 as gates: the arithmetic of `fp16_model`, each operation in one cycle but for division.

Functions add gates to a module and return the signal of the result. Only `divide` has registers of
its own. As in the model, there are no subnormals and no NaN. Each signal is driven in a submodule
of its own, because the simulator recomputes a whole module when any of its inputs changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed

FRACTION = 10
INFINITY = 0x7C00
DIGITS, DIGITS_A_CYCLE = 14, 2  # of a quotient; two steps take about as long as an addition
DIVIDE_CYCLES = DIGITS // DIGITS_A_CYCLE + 1  # the last one rounds


def named(module: Module, value: Any, width: int | None = None) -> Signal:
    """Return a new signal driven by a value."""
    signal = Signal(len(value) if width is None else width)
    _drive(module, signal, value)
    return signal


def registered(module: Module, value: Any, cycles: int = 1) -> Signal:
    """Return a value as it was some cycles ago."""
    for _ in range(cycles):
        signal, own = Signal(len(value)), Module()
        own.d.sync += signal.eq(value)
        module.submodules += own
        value = signal
    return value


def tree(module: Module, join: Callable[[Any, Any], Any], values: list[Any]) -> list[list[Any]]:
    """Reduce values by a balanced tree with registers after each level; return all its levels."""
    levels = [values]
    while len(values) > 1:
        pairs = zip(values[::2], values[1::2], strict=True)
        values = [registered(module, join(a, b)) for a, b in pairs]
        levels.append(values)
    return levels


def _drive(module: Module, signal: Signal, value: Any) -> None:
    own = Module()
    own.d.comb += signal.eq(value)
    module.submodules += own


def _signed(module: Module, value: Any, width: int) -> Signal:
    signal = Signal(signed(width))
    _drive(module, signal, value)
    return signal


def _fields(bits: Any) -> tuple[Any, Any, Any]:
    """Return sign, exponent field, and mantissa [11] with its leading one; zero has mantissa 0."""
    field = bits[FRACTION:15]
    some = field.any()
    return bits[15], field, Cat(bits[:FRACTION] & some.replicate(FRACTION), some)


def _packed(module: Module, sign: Any, field: Any, mantissa: Any, guard: Any, sticky: Any) -> Any:
    """Return the FP16 number of a mantissa [11] with a leading one, rounded.

    `field` is the exponent field, signed and possibly out of range.
    """
    up = guard & (sticky | mantissa[0])
    # a carry out of the fraction increments the exponent
    number = _signed(module, Cat(mantissa[:FRACTION], field).as_signed() + up, 19)
    flushed, over = number < 1 << FRACTION, number >= INFINITY
    size = Mux(flushed, 0, Mux(over, INFINITY, number[:15]))
    return named(module, Cat(size, sign), 16)


def multiply(module: Module, a: Value, b: Value) -> Signal:
    """Return a * b."""
    (sa, ea, ma), (sb, eb, mb) = _fields(a), _fields(b)
    product = named(module, ma * mb)
    carry = product[21]
    shifted = named(module, Mux(carry, product, product << 1), 22)
    field = _signed(module, ea + eb - 15 + carry, 8)
    sign = named(module, sa ^ sb)
    number = _packed(module, sign, field, shifted[11:], shifted[10], shifted[:10].any())
    zero = ~ma[10] | ~mb[10]
    large = ea.all() | eb.all()
    size = Mux(zero, 0, Mux(large, INFINITY, number[:15]))
    return named(module, Cat(size, sign), 16)


def add(module: Module, a: Value, b: Value) -> Signal:
    """Return a + b."""
    swap = named(module, a[:15] < b[:15])
    (sl, el, ml), (ss, es, ms) = (
        _fields(named(module, Mux(swap, x, y))) for x, y in ((b, a), (a, b))
    )
    distance = named(module, el - es, 5)
    # guard and round bit below the last one, and a sticky bit for all lower ones
    far = named(module, Cat(Const(0, 13), ms) >> distance, 24)
    small = named(module, Cat(far[:11].any() | (distance > 13) & ms[10], far[11:]))
    large = Cat(Const(0, 3), ml)
    total = named(module, Mux(sl ^ ss, large - small, large + small), 15)
    leading: Any = Const(15, 4)
    for place in range(15):
        leading = Mux(total[place], 14 - place, leading)
    zeros = named(module, leading, 4)
    shifted = named(module, total << zeros, 15)
    field = _signed(module, el + 1 - zeros, 8)
    rest = shifted[:3].any()
    number = _packed(module, sl, field, shifted[4:], shifted[3], rest)
    nothing = ~total.any()
    finite = Mux(nothing, Cat(Const(0, 15), a[15] & b[15]), number)
    infinities = Mux(_large(b), Cat(Const(INFINITY, 15), b[15]), finite)
    return named(module, Mux(_large(a), Cat(Const(INFINITY, 15), a[15]), infinities), 16)


def _large(bits: Value) -> Value:
    return bits[FRACTION:15].all()


def subtract(module: Module, a: Value, b: Value) -> Signal:
    """Return a - b."""
    return add(module, a, Cat(b[:15], ~b[15]))


def divide(module: Module, a: Value, b: Value) -> Signal:
    """Return a / b after DIVIDE_CYCLES cycles, by long division; it accepts a pair every cycle."""
    (sa, ea, ma), (sb, eb, mb) = _fields(a), _fields(b)
    nothing, large = ~ma[10] | _large(b), _large(a) | ~mb[10]
    aside: Any = Cat(sa ^ sb, nothing, large, named(module, ea - eb, 7))
    rest, quotient = ma, Const(0, 0)
    for _ in range(DIGITS // DIGITS_A_CYCLE):
        for _ in range(DIGITS_A_CYCLE):
            less = named(module, rest - mb, 13)
            fits = ~less[12]
            quotient = Cat(fits, quotient)
            rest = named(module, Mux(fits, less, rest) << 1, 12)
        rest, quotient, mb, aside = (
            registered(module, each) for each in (rest, quotient, mb, aside)
        )
    sign, nothing, large, field = aside[0], aside[1], aside[2], aside[3:].as_signed()
    shifted = named(module, Mux(quotient[13], quotient, quotient << 1), 14)
    field = _signed(module, field + 14 + quotient[13], 8)
    sticky = shifted[:2].any() | rest.any()
    number = _packed(module, sign, field, shifted[3:], shifted[2], sticky)
    size = Mux(nothing, 0, Mux(large, INFINITY, number[:15]))
    return registered(module, named(module, Cat(size, sign), 16))


def whole(module: Module, number: Value) -> Signal:
    """Return a whole number below 2048 as FP16, exactly."""
    bits = named(module, number, FRACTION + 1)
    found: Any = Const(0, 16)
    for place in range(FRACTION + 1):
        fraction = (bits << FRACTION - place)[:FRACTION]
        found = Mux(bits[place], Cat(fraction, Const(15 + place, 5), Const(0, 1)), found)
    return named(module, found, 16)


def key(bits: Value) -> Value:
    """Return an unsigned number with the order of the FP16 numbers."""
    return bits ^ Cat(bits[15].replicate(15), Const(1, 1))
