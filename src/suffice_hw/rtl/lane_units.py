"""Units of Scrooge's lanes: multipliers with their adders, the tree across lanes, exponents.

Source   Byeon et al., "Scrooge: Accelerating Attention Inference in LLMs via Early Termination
         Mechanism", section V, Fig. 4 and 5, Table II: 16 lanes of 64 multipliers, whose sums an
         adder tree joins for tokens that are wider than a lane; a Taylor series of fifth order.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal

from suffice_hw.rtl import fp16, fp16_model
from suffice_hw.rtl.unit import Lanes, Pipelined, Unit, Vector
from suffice_hw.scrooge.exponent import HIGH, INVERSE, LOW, ORDER

EXPONENT_CYCLES = 5 + 2 * ORDER + 1  # range reduction, Horner steps, scaling by 2^k
MINUS_INFINITY = 0xFC00
_FAR = 19  # exponent field of 16: e^16 is infinite in FP16 and e^-16 is 0
_STEPS = 25  # k is at most 16 / ln 2 + 1


def bits_of(number: Any) -> int:
    """Return a number, rounded to FP16, as its bits."""
    return int(np.float16(number).view(np.uint16))


SERIES = [bits_of(1 / math.factorial(order)) for order in range(ORDER + 1)]
HIGHS = [bits_of(k * HIGH) for k in range(_STEPS)]
LOWS = [bits_of(np.float16(k) * LOW) for k in range(_STEPS)]


def exponent_of(x: int) -> int:
    """Return e^x, both in FP16, in integers; see `suffice_hw.scrooge.exponent`."""
    sign, field = x >> 15, x >> 10 & 31
    if field >= _FAR:
        return 0 if sign else fp16_model.INFINITY
    k = _nearest(fp16_model.multiply(x & 0x7FFF, bits_of(INVERSE)))
    r = fp16_model.subtract(x, HIGHS[k] | sign << 15)
    r = fp16_model.subtract(r, LOWS[k] | sign << 15)
    found = SERIES[ORDER]
    for order in range(ORDER - 1, -1, -1):
        found = fp16_model.add(fp16_model.multiply(r, found), SERIES[order])
    field = (found >> 10) + (-k if sign else k)
    if field < 1:
        return 0
    return fp16_model.INFINITY if field > 30 else field << 10 | found & 0x3FF


def _nearest(number: int) -> int:
    """Return the whole number nearest to a positive FP16 number, ties to even."""
    _, mantissa, exponent = fp16_model.parts(number)
    return round(mantissa * 2.0**exponent)


def add_exponent(module: Any, x: Any, offset: Any) -> Any:
    """Add an exponent unit to a module; return e^(x - offset) after EXPONENT_CYCLES cycles.

    The paper gives the order of the series and no range reduction; without one it diverges.
    """
    x = fp16.registered(module, fp16.subtract(module, x, offset))
    size = Cat(x[:15], Const(0, 1))
    quotient = fp16.multiply(module, size, Const(bits_of(INVERSE), 16))
    quotient, x = fp16.registered(module, quotient), fp16.registered(module, x)
    k = _add_nearest(module, quotient)
    high, low = (Array(Const(each, 15) for each in table)[k] for table in (HIGHS, LOWS))
    high, low = (fp16.registered(module, Cat(each, x[15])) for each in (high, low))
    # 2^k as a change of the exponent field, and whether x is out of range
    aside: Any = fp16.registered(module, Cat(k, x[15], x[10:15] >= _FAR))
    x = fp16.registered(module, x)
    r = fp16.registered(module, fp16.subtract(module, x, high))
    low, aside = fp16.registered(module, low), fp16.registered(module, aside)
    r, aside = (
        fp16.registered(module, fp16.subtract(module, r, low)),
        fp16.registered(module, aside),
    )
    found: Any = Const(SERIES[ORDER], 16)
    for order in range(ORDER - 1, -1, -1):
        found = fp16.registered(module, fp16.multiply(module, r, found))
        found = fp16.add(module, found, Const(SERIES[order], 16))
        found = fp16.registered(module, found)
        r = fp16.registered(module, r, 2)
    return _add_scaled(module, found, fp16.registered(module, aside, 2 * ORDER))


def _add_nearest(module: Any, number: Any) -> Any:
    """Add the rounding of a positive FP16 number below 32 to a whole one."""
    field, mantissa = number[10:15], Cat(number[:10], Const(1, 1))
    # 11 bits of fraction: all that a number of at least 1/2 has
    fixed = fp16.named(module, (Cat(Const(0, 5), mantissa) >> (19 - field)[:3])[:16])
    low, half, rest = fixed[11], fixed[10], fixed[:10].any()
    rounded = fixed[11:] + (half & (rest | low))
    return fp16.named(module, Mux((field >= 14) & (field < _FAR + 1), rounded, 0), 5)


def _add_scaled(module: Any, number: Any, aside: Any) -> Any:
    k, sign, far = aside[:5], aside[5], aside[6]
    field = fp16.named(module, Mux(sign, number[10:15] - k, number[10:15] + k), 7).as_signed()
    size = Mux(field < 1, 0, Mux(field > 30, fp16.INFINITY, Cat(number[:10], field[:5])))
    size = Mux(far, Mux(sign, 0, fp16.INFINITY), size)
    return fp16.registered(module, fp16.named(module, size, 16))


def exponent() -> Unit:
    """e^(x - offset), with range reduction and a Taylor series of fifth order."""

    def build(module: Any, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        module.d.comb += outputs["y"].eq(add_exponent(module, inputs["x"], inputs["offset"]))

    def model(x: int, offset: int) -> Vector:
        return {"y": exponent_of(fp16_model.subtract(x, offset))}

    def vectors() -> Iterator[Vector]:
        yield from ({"x": 0x8000 | x, "offset": 0} for x in range(0, 0x4D00, 3))  # 0 to -20
        source = random.Random(11)
        for _ in range(6000):
            x, offset = (source.randrange(0x4D00) | source.randrange(2) << 15 for _ in range(2))
            yield {"x": x, "offset": offset}
        yield from ({"x": x, "offset": 0} for x in (0x7C00, MINUS_INFINITY, 0x4CFF, 0xCCFF))

    return Unit(
        "exponent",
        f"e^(x - offset), FP16, in {EXPONENT_CYCLES} cycles",
        {"x": 16, "offset": 16},
        {"y": 16},
        build,
        lambda: Pipelined(model, EXPONENT_CYCLES - 1),
        vectors,
        fill=EXPONENT_CYCLES - 1,
    )


def add_lane(
    module: Any,
    row: list[Any],
    query: list[Any],
    score: Any,
    values: Any,
    clear: Any,
    other: list[Any],
    fold: Any,
) -> tuple[Any, list[Any]]:
    """Add a lane to a module: a multiplier and an adder with a register for each element of a row.

    The adders form a tree while keys are read: `row` times `query`, summed. While values are read,
    each adder sums `row` times `score` in its register, and then adds another lane's, so no further
    adders are needed. The paper leaves open how values are summed; its multiplier array has the
    area of a multiplier, an adder and both registers for each product.

    Args:
        module: The module.
        row: Elements of a key or value, FP16.
        query: Elements of the query.
        score: The score of the value's token; 0 leaves the registers as they are.
        values: Whether values are read.
        clear: Sets the registers to the products, while values are read.
        other: The registers of another lane.
        fold: Whether they are added, while values are read.

    Returns:
        The sum of the tree, and the registers.
    """
    width = len(row)
    factors = [fp16.named(module, Mux(values, score, each)) for each in query]
    pairs = zip(row, factors, strict=True)
    products = [fp16.registered(module, fp16.multiply(module, a, b)) for a, b in pairs]
    sums = [Signal(16, name=f"sum{i}") for i in range(width)]
    for i, (left, right) in enumerate(_children(products, sums)):
        a = fp16.named(module, Mux(values, Mux(fold, other[i], products[i]), left), 16)
        b = fp16.named(module, Mux(values, Mux(clear, 0, sums[i]), right), 16)
        own = Module()
        own.d.sync += sums[i].eq(fp16.add(module, a, b))
        module.submodules += own
    return sums[width - 2], sums


def _children(products: list[Any], sums: list[Any]) -> list[tuple[Any, Any]]:
    """Return what each adder adds in the tree: products, then sums of lower levels; the last one
    has no place in the tree.
    """
    below = [*products, *sums[: len(products) - 2]]
    return [*zip(below[::2], below[1::2], strict=True), (0, 0)]


class _Lane:
    def __init__(self, width: int) -> None:
        self.products, self.sums = [0] * width, [0] * width
        self.port = Lanes(width, 16)

    def step(self, inputs: Vector) -> Vector:
        row, query, other = (self.port.split(inputs[name]) for name in ("row", "query", "other"))
        if inputs["values"]:
            held = [0] * len(row) if inputs["clear"] else self.sums
            pairs = list(zip(other if inputs["fold"] else self.products, held, strict=True))
            query = [inputs["score"]] * len(row)
        else:
            pairs = _children(self.products, self.sums)
        self.sums = [fp16_model.add(a, b) for a, b in pairs]
        self.products = [fp16_model.multiply(a, b) for a, b in zip(row, query, strict=True)]
        return {"total": self.sums[-2], "sums": self.port.join(self.sums)}


def multiplier_lane(width: int = 16) -> Unit:
    """A lane of multipliers with its adders, for keys and for values."""
    port = Lanes(width, 16)

    def build(module: Any, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        row, query, other = (port.signals(inputs[name]) for name in ("row", "query", "other"))
        score, values, clear = (inputs[name] for name in ("score", "values", "clear"))
        ports = (row, query, score, values, clear, other, inputs["fold"])
        total, sums = add_lane(module, *ports)
        module.d.comb += [outputs["total"].eq(total), outputs["sums"].eq(Cat(*sums))]

    def vectors() -> Iterator[Vector]:
        source = random.Random(12)
        values = 0
        for turn in range(400):
            values ^= int(source.random() < 0.1)
            size = 0x7C00 if turn % 8 == 0 else 0x4200
            numbers = [
                source.randrange(size) | source.randrange(2) << 15 for _ in range(3 * width + 1)
            ]
            yield {
                "row": port.join(numbers[:width]),
                "query": port.join(numbers[width : 2 * width]),
                "other": port.join(numbers[2 * width : -1]),
                "score": numbers[-1] if source.random() < 0.7 else 0,
                "values": values,
                "clear": int(source.random() < 0.1),
                "fold": int(source.random() < 0.2),
            }

    wide = dict.fromkeys(("row", "query", "other"), width * 16)
    return Unit(
        f"multiplier_lane_{width}",
        f"{width} FP16 multipliers with their adders: a tree for keys, sums for values",
        wide | {"score": 16, "values": 1, "clear": 1, "fold": 1},
        {"total": 16, "sums": width * 16},
        build,
        lambda: _Lane(width),
        vectors,
    )


def add_tree(module: Any, totals: list[Any], spread: Any, scale: Any) -> list[Any]:
    """Add the tree across lanes to a module, with registers after each level; return the logits.

    A token takes 2^spread lanes, so its sum is in that level. Its logit, a cycle later, is the sum
    times `scale`, 1 / sqrt(d), as in Eq. 2; Algorithm 1 omits it and Table III has no row for it.
    """
    levels = fp16.tree(module, lambda a, b: fp16.add(module, a, b), totals)
    logits = []
    for token in range(len(totals)):
        found: Any = levels[0][token]
        for place, level in enumerate(levels[1:], 1):
            if token < len(level):
                found = Mux(spread == place, level[token], found)
        product = fp16.multiply(module, fp16.named(module, found), scale)
        logits.append(fp16.registered(module, product))
    return logits


class _Tree:
    def __init__(self, lanes: int) -> None:
        self.port = Lanes(lanes, 16)
        self.levels = [[0] * (lanes >> level) for level in range(1, lanes.bit_length())]

    def step(self, inputs: Vector) -> Vector:
        levels = [self.port.split(inputs["totals"]), *self.levels]
        level = levels[inputs["spread"]]
        totals = [*level, *levels[0][len(level) :]]
        logits = [fp16_model.multiply(total, inputs["scale"]) for total in totals]
        self.levels = [
            [fp16_model.add(a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
            for level in levels[:-1]
        ]
        return {"logits": self.port.join(logits)}


def adder_tree(lanes: int = 16) -> Unit:
    """The tree across lanes, which also scales the logits."""
    port, bits = Lanes(lanes, 16), (lanes.bit_length() - 1).bit_length()

    def build(module: Any, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        totals = port.signals(inputs["totals"])
        logits = add_tree(module, totals, inputs["spread"], inputs["scale"])
        module.d.comb += outputs["logits"].eq(Cat(*logits))

    def vectors() -> Iterator[Vector]:
        source = random.Random(13)
        for turn in range(1500):
            totals = [source.randrange(0x4B00) | source.randrange(2) << 15 for _ in range(lanes)]
            spread, scale = turn // 50 % lanes.bit_length(), source.randrange(0x3C01)
            yield {"totals": port.join(totals), "spread": spread, "scale": scale}

    return Unit(
        f"adder_tree_{lanes}",
        f"{lanes} sums joined by 1, 2, 4 ... lanes of a token, times 1 / sqrt(d)",
        {"totals": lanes * 16, "spread": bits, "scale": 16},
        {"logits": lanes * 16},
        build,
        lambda: _Tree(lanes),
        vectors,
    )


UNITS = (multiplier_lane, adder_tree, exponent)
