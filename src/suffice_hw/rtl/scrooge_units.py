"""Scrooge's units: FP16 multiplier and adder, Max & Sum, ETU, VSU.

Source   Byeon et al., "Scrooge: Accelerating Attention Inference in LLMs via Early Termination
         Mechanism", Algorithm 1, section V and Table III. The ETU has two adders, two multipliers,
         a comparator and a divider; the VSU has an adder, a comparator and a multiplier.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

from amaranth.hdl import Mux

from suffice_hw.rtl import fp16, fp16_model
from suffice_hw.rtl.unit import Lanes, Registered, Unit, Vector, joined

TOKENS = 16
_WEIGHTS = Lanes(TOKENS, 16)
_SPECIAL = (0, 1, 0x3FF, 0x400, 0x3BFF, 0x3C00, 0x3C01, 0x7BFF, 0x7C00, 0x7E00)


def _halves(seed: int, count: int, names: tuple[str, ...]) -> Iterator[Vector]:
    """Yield special numbers, then alternately numbers with close exponents and random bits."""
    source = random.Random(seed)
    for a in _SPECIAL:
        for b in _SPECIAL:
            for signs in range(4):
                pair = (a | (signs & 1) << 15, b | (signs >> 1) << 15)
                yield {name: pair[i % 2] for i, name in enumerate(names)}
    for turn in range(count):
        if turn % 2:
            yield {name: source.randrange(0x10000) for name in names}
        else:
            first = source.randrange(1, 30)
            near = [min(max(first + source.randrange(-2, 3), 1), 30) for _ in names]
            yield {
                name: source.randrange(2) << 15 | field << 10 | source.randrange(1024)
                for name, field in zip(names, near, strict=True)
            }


def _two(
    name: str, what: str, gates: Callable[..., Any], model: Callable[[int, int], int]
) -> Callable[[], Unit]:
    def unit() -> Unit:
        def build(module: Any, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
            module.d.comb += outputs["y"].eq(gates(module, inputs["a"], inputs["b"]))

        return Unit(
            name,
            what,
            {"a": 16, "b": 16},
            {"y": 16},
            build,
            lambda: Registered(lambda a, b: {"y": model(a, b)}),
            lambda: _halves(3, 20000, ("a", "b")),
        )

    return unit


fp16_multiply = _two("fp16_multiply", "a b, FP16", fp16.multiply, fp16_model.multiply)
fp16_add = _two("fp16_add", "a + b, FP16", fp16.add, fp16_model.add)
fp16_divide = _two("fp16_divide", "a / b, FP16", fp16.divide, fp16_model.divide)


def fp16_compare() -> Unit:
    """Whether a >= b."""

    def build(module: Any, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        module.d.comb += outputs["y"].eq(fp16.key(inputs["a"]) >= fp16.key(inputs["b"]))

    def model(a: int, b: int) -> Vector:
        return {"y": int(fp16_model.key(a) >= fp16_model.key(b))}

    return Unit(
        "fp16_compare",
        "whether a >= b, FP16",
        {"a": 16, "b": 16},
        {"y": 1},
        build,
        lambda: Registered(model),
        lambda: _halves(4, 20000, ("a", "b")),
    )


def max_and_sum() -> Unit:
    """The largest of 16 weights and their sum, by trees, with registers at the outputs."""

    def build(module: Any, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        weights = _WEIGHTS.signals(inputs["weights"])

        def larger(a: Any, b: Any) -> Any:
            return fp16.named(module, Mux(fp16.key(a) >= fp16.key(b), a, b))

        def both(a: Any, b: Any) -> Any:
            return fp16.add(module, a, b)

        module.d.sync += outputs["max"].eq(joined(larger, weights))
        module.d.sync += outputs["sum"].eq(joined(both, weights))

    def model(weights: int) -> Vector:
        held = _WEIGHTS.split(weights)
        largest = joined(lambda a, b: a if fp16_model.key(a) >= fp16_model.key(b) else b, held)
        return {"max": largest, "sum": joined(fp16_model.add, held)}

    def vectors() -> Iterator[Vector]:
        source = random.Random(5)
        for turn in range(1500):
            most = 0x10000 if turn % 3 == 0 else 0x7C00 if turn % 3 == 1 else 0x3C01
            yield {"weights": _WEIGHTS.join([source.randrange(most) for _ in range(TOKENS)])}

    return Unit(
        "max_and_sum",
        "largest and sum of 16 FP16 weights",
        {"weights": TOKENS * 16},
        {"max": 16, "sum": 16},
        build,
        lambda: Registered(model),
        vectors,
    )


def etu() -> Unit:
    """Whether the known weights suffice: lines 12 to 14 of Algorithm 1, n - 1 and L - n in FP16."""

    def build(module: Any, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        known = inputs["known"]
        others = fp16.subtract(module, known, inputs["greatest"])
        average = fp16.divide(module, others, inputs["others"])
        unknown = fp16.multiply(module, average, inputs["unknown"])
        total = fp16.add(module, known, unknown)
        share = fp16.multiply(module, total, inputs["threshold"])
        module.d.sync += outputs["stop"].eq(fp16.key(share) <= fp16.key(known))

    def model(known: int, greatest: int, others: int, unknown: int, threshold: int) -> Vector:
        average = fp16_model.divide(fp16_model.subtract(known, greatest), others)  # line 12
        rest = fp16_model.multiply(average, unknown)  # line 13
        share = fp16_model.multiply(fp16_model.add(known, rest), threshold)
        return {"stop": int(fp16_model.key(share) <= fp16_model.key(known))}  # line 14

    return Unit(
        "etu",
        "early termination: whether the known weights suffice",
        {"known": 16, "greatest": 16, "others": 16, "unknown": 16, "threshold": 16},
        {"stop": 1},
        build,
        lambda: Registered(model),
        _etu_vectors,
    )


def half(value: float) -> int:
    """Return the FP16 number nearest to a positive number."""
    mantissa, exponent = reduce(lambda x, _: (x[0] * 2, x[1] - 1), range(40), (value, 0))
    return fp16_model.rounded(0, round(mantissa), exponent)


def _etu_vectors() -> Iterator[Vector]:
    names = ("known", "greatest", "others", "unknown", "threshold")
    example = (0.6, 3, 0.9)  # Fig. 3: 0.6, 0.3, 0.1 known of 6; then 0.05 and 0.03 more
    for known, others, unknown in ((1.0, 2, 3), (1.08, 4, 1)):
        values = (known, example[0], others, unknown, example[2])
        yield {name: half(value) for name, value in zip(names, values, strict=True)}
    source = random.Random(6)
    for _ in range(3000):
        length = source.randrange(3, 2048)
        count = source.randrange(2, length + 1)
        greatest = source.random() * 8
        known = greatest + source.random() * 2 ** source.randrange(-8, 4)
        values = (known, greatest, count - 1, length - count, source.uniform(0.5, 1))
        yield {name: half(value) for name, value in zip(names, values, strict=True)}
    yield from _halves(7, 500, names)


class _Vsu:
    def __init__(self) -> None:
        self.place = 0

    def step(self, inputs: Vector) -> Vector:
        if inputs["clear"]:
            self.place = 0
        limit = fp16_model.multiply(inputs["greatest"], inputs["threshold"])
        keep = int(fp16_model.key(inputs["weight"]) >= fp16_model.key(limit))
        self.place = (self.place + (keep and not inputs["clear"])) % 2048
        return {"keep": keep, "place": self.place}


def vsu() -> Unit:
    """Whether a token's value is read (line 10), and the number of values kept so far."""

    def build(module: Any, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        limit = fp16.multiply(module, inputs["greatest"], inputs["threshold"])
        keep = fp16.named(module, fp16.key(inputs["weight"]) >= fp16.key(limit))
        module.d.sync += outputs["keep"].eq(keep)
        place = outputs["place"]
        module.d.sync += place.eq(Mux(inputs["clear"], 0, place + keep))

    def vectors() -> Iterator[Vector]:
        source = random.Random(8)
        for each in _halves(9, 8000, ("weight", "greatest", "threshold")):
            yield each | {"clear": int(source.random() < 0.01)}

    return Unit(
        "vsu",
        "value selection: whether a weight reaches a share of the greatest",
        {"weight": 16, "greatest": 16, "threshold": 16, "clear": 1},
        {"keep": 1, "place": 11},
        build,
        _Vsu,
        vectors,
    )


UNITS = (fp16_multiply, fp16_add, fp16_divide, fp16_compare, max_and_sum, etu, vsu)
