"""FP16 as gates: the arithmetic of `fp16_model` in one cycle, without registers.

Functions add gates to a module and return the signal of the result. As in the model, there are no
subnormals and no NaN. Each signal is driven in a submodule of its own, because the simulator
recomputes a whole module when any of its inputs changes.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed

FRACTION = 10
INFINITY = 0x7C00


def named(module: Module, value: Any, width: int | None = None) -> Signal:
    """Return a new signal driven by a value."""
    signal = Signal(len(value) if width is None else width)
    _drive(module, signal, value)
    return signal


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
    """Return a / b, by 14 steps of long division."""
    (sa, ea, ma), (sb, eb, mb) = _fields(a), _fields(b)
    rest: Any = ma
    digits: list[Any] = []
    for _ in range(14):
        less = named(module, rest - mb, 13)
        fits = ~less[12]
        digits.insert(0, fits)
        rest = named(module, Mux(fits, less, rest) << 1, 12)
    quotient = named(module, Cat(*digits))
    shifted = named(module, Mux(quotient[13], quotient, quotient << 1), 14)
    field = _signed(module, ea - eb + 14 + quotient[13], 8)
    sign = named(module, sa ^ sb)
    sticky = shifted[:2].any() | rest.any()
    number = _packed(module, sign, field, shifted[3:], shifted[2], sticky)
    nothing, large = ~ma[10] | _large(b), _large(a) | ~mb[10]
    size = Mux(nothing, 0, Mux(large, INFINITY, number[:15]))
    return named(module, Cat(size, sign), 16)


def key(bits: Value) -> Value:
    """Return an unsigned number with the order of the FP16 numbers."""
    return bits ^ Cat(bits[15].replicate(15), Const(1, 1))
