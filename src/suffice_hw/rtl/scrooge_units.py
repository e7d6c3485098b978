"""Scrooge's units: FP16 arithmetic, Max & Sum, ETU, VSU.

The paper does not say where registers are. Here each operation in FP16 takes a cycle, and a
division eight; units accept new inputs every cycle.

Source   Byeon et al., "Scrooge: Accelerating Attention Inference in LLMs via Early Termination
         Mechanism", Algorithm 1, section V and Table III. The ETU has two adders, two multipliers,
         a comparator and a divider; the VSU has an adder, a comparator and a multiplier.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

from amaranth.hdl import Module, Mux, Signal

from suffice_hw.rtl import fp16, fp16_model
from suffice_hw.rtl.unit import Lanes, Pipelined, Registered, Unit, Vector, joined

PLACE_BITS = 11  # up to 2047 tokens, which FP16 counts exactly
ETU_CYCLES = 1 + fp16.DIVIDE_CYCLES + 3  # subtract; divide; multiply, add, multiply and compare
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


def fp16_divide() -> Unit:
    """One of the softmax unit's dividers."""

    def build(module: Any, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        module.d.comb += outputs["y"].eq(fp16.divide(module, inputs["a"], inputs["b"]))

    fill = fp16.DIVIDE_CYCLES - 1
    return Unit(
        "fp16_divide",
        f"a / b, FP16, in {fp16.DIVIDE_CYCLES} cycles",
        {"a": 16, "b": 16},
        {"y": 16},
        build,
        lambda: Pipelined(lambda a, b: {"y": fp16_model.divide(a, b)}, fill),
        lambda: _halves(3, 20000, ("a", "b")),
        fill=fill,
    )


def add_max_and_sum(module: Any, logits: list[Any], weights: list[Any]) -> tuple[Any, Any]:
    """Add both trees to a module: the largest of some logits, the sum of as many weights."""

    def larger(a: Any, b: Any) -> Any:
        return fp16.named(module, Mux(fp16.key(a) >= fp16.key(b), a, b))

    largest = fp16.tree(module, larger, logits)[-1]
    total = fp16.tree(module, lambda a, b: fp16.add(module, a, b), weights)[-1]
    return largest[0], total[0]


def max_and_sum(tokens: int = 16) -> Unit:
    """The largest of some logits and the sum of as many weights, by trees, a level per cycle.

    Algorithm 1 has the largest weight (line 5). A weight is e^(logit - m) here, with the largest
    logit of the important tokens as m, because e^logit does not fit FP16 beyond a logit of 11. So
    the comparators find m, and the largest weight is 1.
    """
    port, fill = Lanes(tokens, 16), tokens.bit_length() - 2

    def build(module: Any, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        ports = (port.signals(inputs[name]) for name in ("logits", "weights"))
        largest, total = add_max_and_sum(module, *ports)
        module.d.comb += [outputs["max"].eq(largest), outputs["sum"].eq(total)]

    def model(logits: int, weights: int) -> Vector:
        largest = max(port.split(logits), key=fp16_model.key)
        return {"max": largest, "sum": joined(fp16_model.add, port.split(weights))}

    def vectors() -> Iterator[Vector]:
        source = random.Random(5)
        for turn in range(1500):
            most = 0x10000 if turn % 3 == 0 else 0x7C00 if turn % 3 == 1 else 0x3C01
            yield {
                name: port.join([source.randrange(most) for _ in range(tokens)])
                for name in ("logits", "weights")
            }

    return Unit(
        f"max_and_sum_{tokens}",
        f"largest of {tokens} FP16 logits, sum of {tokens} weights",
        {"logits": tokens * 16, "weights": tokens * 16},
        {"max": 16, "sum": 16},
        build,
        lambda: Pipelined(model, fill),
        vectors,
        fill=fill,
    )


def add_etu(
    module: Any, known: Any, greatest: Any, others: Any, unknown: Any, threshold: Any
) -> tuple[Any, Any]:
    """Add an ETU to a module; return its decision and the known sum that it is about."""
    less = fp16.registered(module, fp16.subtract(module, known, greatest))
    average = fp16.divide(module, less, fp16.registered(module, others))  # line 12
    before = fp16.registered(module, unknown, 1 + fp16.DIVIDE_CYCLES)
    rest = fp16.registered(module, fp16.multiply(module, average, before))  # line 13
    known = fp16.registered(module, known, ETU_CYCLES - 2)
    total = fp16.registered(module, fp16.add(module, known, rest))
    known = fp16.registered(module, known)
    share = fp16.multiply(module, total, threshold)
    stop = fp16.named(module, fp16.key(share) <= fp16.key(known))  # line 14
    return fp16.registered(module, stop), fp16.registered(module, known)


def expected_total(known: int, greatest: int, others: int, unknown: int) -> int:
    """Return what the ETU expects the sum of all weights to be (lines 12 and 13)."""
    average = fp16_model.divide(fp16_model.subtract(known, greatest), others)
    return fp16_model.add(known, fp16_model.multiply(average, unknown))


def stops(known: int, total: int, threshold: int) -> int:
    """Return the ETU's decision (line 14)."""
    share = fp16_model.multiply(total, threshold)
    return int(fp16_model.key(share) <= fp16_model.key(known))


class _Etu:
    """The threshold is that of the last stage: it stays the same while a head is computed."""

    def __init__(self) -> None:
        self.held: deque[tuple[int, int]] = deque([(0, 0)] * (ETU_CYCLES - 1))

    def step(self, inputs: Vector) -> Vector:
        names = ("known", "greatest", "others", "unknown")
        self.held.append((inputs["known"], expected_total(*(inputs[name] for name in names))))
        known, total = self.held.popleft()
        return {"stop": stops(known, total, inputs["threshold"]), "sum": known}


def etu() -> Unit:
    """Whether the known weights suffice: lines 12 to 14 of Algorithm 1, n - 1 and L - n in FP16."""
    ports = ("known", "greatest", "others", "unknown", "threshold")

    def build(module: Any, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        stop, known = add_etu(module, *(inputs[name] for name in ports))
        module.d.comb += [outputs["stop"].eq(stop), outputs["sum"].eq(known)]

    return Unit(
        "etu",
        f"early termination: whether the known weights suffice, in {ETU_CYCLES} cycles",
        dict.fromkeys(ports, 16),
        {"stop": 1, "sum": 16},
        build,
        _Etu,
        _etu_vectors,
        fill=ETU_CYCLES - 1,
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
        self.place = (self.place + (keep and not inputs["clear"])) % (1 << PLACE_BITS)
        return {"keep": keep, "place": self.place}


def add_vsu(module: Any, weight: Any, greatest: Any, threshold: Any, clear: Any) -> tuple[Any, Any]:
    """Add a VSU to a module; return whether it keeps the value, and the number kept so far."""
    limit = fp16.multiply(module, greatest, threshold)
    keep = fp16.named(module, fp16.key(weight) >= fp16.key(limit))
    place, own = Signal(PLACE_BITS), Module()
    own.d.sync += place.eq(Mux(clear, 0, place + keep))
    module.submodules += own
    return fp16.registered(module, keep), place


def vsu() -> Unit:
    """Whether a token's value is read (line 10), and the number of values kept so far."""

    def build(module: Any, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        ports = (inputs[name] for name in ("weight", "greatest", "threshold", "clear"))
        keep, place = add_vsu(module, *ports)
        module.d.comb += [outputs["keep"].eq(keep), outputs["place"].eq(place)]

    def vectors() -> Iterator[Vector]:
        source = random.Random(8)
        for each in _halves(9, 8000, ("weight", "greatest", "threshold")):
            yield each | {"clear": int(source.random() < 0.01)}

    return Unit(
        "vsu",
        "value selection: whether a weight reaches a share of the greatest",
        {"weight": 16, "greatest": 16, "threshold": 16, "clear": 1},
        {"keep": 1, "place": PLACE_BITS},
        build,
        _Vsu,
        vectors,
    )


UNITS = (fp16_multiply, fp16_add, fp16_divide, fp16_compare, max_and_sum, etu, vsu)
