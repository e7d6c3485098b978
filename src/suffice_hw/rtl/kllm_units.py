"""KLLM's units: Concat, the index distribution counter, Orizuru with 16 inputs.

Source   "KLLM: Fast LLM Inference with K-Means Quantization", sections IV-B, IV-C.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from operator import add
from typing import Any

from amaranth.hdl import Array, Cat, Module, Mux, Signal

from suffice_hw.rtl import fp16
from suffice_hw.rtl.fp16_model import key
from suffice_hw.rtl.unit import Lanes, Registered, Unit, Vector, joined

INPUTS, COUNT_BITS = 16, 12
_HALVES = Lanes(INPUTS, 16)
_PAIRS = Lanes(INPUTS, 8)
LEVELS = 4


def concat() -> Unit:
    """The indices of a weight and an activation, concatenated in a register."""

    def build(module: Any, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        module.d.sync += outputs["pair"].eq(Cat(inputs["weight"], inputs["activation"]))

    def model(weight: int, activation: int) -> Vector:
        return {"pair": activation << 4 | weight}

    def vectors() -> Iterator[Vector]:
        for pair in range(256):
            yield {"weight": pair & 15, "activation": pair >> 4}

    return Unit(
        "concat",
        "two 4-bit indices into an 8-bit register",
        {"weight": 4, "activation": 4},
        {"pair": 8},
        build,
        lambda: Registered(model),
        vectors,
        exhaustive=True,
    )


class _Counts:
    def __init__(self, bins: int) -> None:
        self.counts = [0] * bins

    def step(self, inputs: Vector) -> Vector:
        if inputs["clear"]:
            self.counts = [0] * len(self.counts)
        elif inputs["enable"]:
            for pair in _PAIRS.split(inputs["pairs"]):
                if pair < len(self.counts):
                    self.counts[pair] = (self.counts[pair] + 1) % (1 << COUNT_BITS)
        return {"counts": Lanes(len(self.counts), COUNT_BITS).join(self.counts)}


def index_counter(bins: int = 256) -> Unit:
    """Counts how often each pair of indices occurs; 16 pairs arrive per cycle."""

    def build(module: Any, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        pairs = _PAIRS.signals(inputs["pairs"])
        counts = [Signal(COUNT_BITS, name=f"count{i}") for i in range(bins)]
        module.d.comb += outputs["counts"].eq(Cat(*counts))
        for i, held in enumerate(counts):
            own = Module()
            with own.If(inputs["clear"]):
                own.d.sync += held.eq(0)
            with own.Elif(inputs["enable"]):
                own.d.sync += held.eq(held + joined(add, [pair == i for pair in pairs]))
            module.submodules += own

    def vectors() -> Iterator[Vector]:
        source = random.Random(1)
        for turn in range(300):
            most = source.choice((1, bins, 256))
            pairs = [source.randrange(most) for _ in range(INPUTS)]
            clear = turn == 0 or source.random() < 0.02
            enable = source.random() < 0.9
            yield {"pairs": _PAIRS.join(pairs), "clear": int(clear), "enable": int(enable)}
        for _ in range(1 << COUNT_BITS - 4):  # one counter overflows once
            yield {"pairs": 0, "clear": 0, "enable": 1}

    return Unit(
        f"index_counter_{bins}",
        f"16 pairs per cycle into {bins} bins of {COUNT_BITS} bits",
        {"pairs": INPUTS * 8, "clear": 1, "enable": 1},
        {"counts": bins * COUNT_BITS},
        build,
        lambda: _Counts(bins),
        vectors,
    )


class _Orizuru:
    """Two trees over 16 leaves; node i has the children 2 i and 2 i + 1 and a bit: which one wins.

    In each cycle a node compares its children's previous states, so a load or a pop takes four
    cycles to reach the root.
    """

    def __init__(self) -> None:
        self.values = [0] * INPUTS
        self.gone = [[1] * INPUTS, [1] * INPUTS]
        self.bits = [[0] * INPUTS, [0] * INPUTS]  # by node; index 0 is unused

    def winner(self, tree: int, node: int) -> int:
        """Return the leaf to which the bits from a node on lead."""
        while node < INPUTS:
            node = 2 * node + self.bits[tree][node]
        return node - INPUTS

    def step(self, inputs: Vector) -> Vector:
        roots = [self.winner(tree, 1) for tree in (0, 1)]
        made = [self._bits(tree) for tree in (0, 1)]
        for tree, pop in enumerate((inputs["pop_max"], inputs["pop_min"])):
            if pop:
                self.gone[tree][roots[tree]] = 1
        self.bits = made
        if inputs["load"]:
            self.values = _HALVES.split(inputs["values"])
            self.gone = [[0] * INPUTS, [0] * INPUTS]
        top, low = (self.winner(tree, 1) for tree in (0, 1))
        return {
            "max_value": self.values[top],
            "max_place": top,
            "min_value": self.values[low],
            "min_place": low,
            "max_none": self.gone[0][top],
            "min_none": self.gone[1][low],
        }

    def _bits(self, tree: int) -> list[int]:
        bits = [0] * INPUTS
        for node in range(1, INPUTS):
            left, right = (self.winner(tree, child) for child in (2 * node, 2 * node + 1))
            first = key(self.values[left]) >= key(self.values[right])
            if tree and node >= INPUTS // 2:
                first = not first  # the lowest level reuses the other tree's comparison, reversed
            elif tree:
                first = key(self.values[left]) <= key(self.values[right])
            if self.gone[tree][left]:
                bits[node] = 1
            elif not self.gone[tree][right]:
                bits[node] = int(not first)
        return bits


def orizuru() -> Unit:
    """Pops the largest and the smallest of 16 numbers, one after the other."""

    def build(module: Any, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        keys = [Signal(16, name=f"key{i}") for i in range(INPUTS)]
        with module.If(inputs["load"]):
            for held, value in zip(keys, _HALVES.signals(inputs["values"]), strict=True):
                module.d.sync += held.eq(fp16.key(value))
        shared = [fp16.named(module, keys[i] >= keys[i + 1]) for i in range(0, INPUTS, 2)]
        for tree, name in enumerate(("max", "min")):
            number, place, none = _add_tree(module, keys, shared, tree, inputs, f"pop_{name}")
            module.d.comb += [
                outputs[f"{name}_value"].eq(fp16.named(module, _unkeyed(number))),
                outputs[f"{name}_place"].eq(place),
                outputs[f"{name}_none"].eq(none),
            ]

    return Unit(
        "orizuru_16",
        "largest and smallest of 16 FP16 numbers, by two trees",
        {"values": INPUTS * 16, "load": 1, "pop_max": 1, "pop_min": 1},
        {f"{t}_{k}": w for t in ("max", "min") for k, w in _OUT.items()},
        build,
        _Orizuru,
        _orizuru_vectors,
    )


_OUT = {"value": 16, "place": 4, "none": 1}


def _unkeyed(number: Any) -> Any:
    return Mux(number[15], number ^ 0x8000, ~number)


def _add_tree(
    module: Any, keys: list[Any], shared: list[Any], tree: int, inputs: dict[str, Any], pop: str
) -> tuple[Any, Any, Any]:
    """Add a tree to a module; return number and place of its root, and whether it is empty."""
    gone = Signal(INPUTS, name=f"gone_{pop}", init=0xFFFF)
    nodes: list[tuple[Any, Any, Any]] = [(keys[i], None, gone[i]) for i in range(INPUTS)]
    for level in range(LEVELS):
        above = []
        for i in range(0, len(nodes), 2):
            (a, a_place, a_gone), (b, b_place, b_gone) = nodes[i], nodes[i + 1]
            if level == 0:
                first = ~shared[i // 2] if tree else shared[i // 2]
            else:
                first = (a <= b) if tree else (a >= b)
            bit = Signal(name=f"bit_{pop}_{level}_{i // 2}")
            module.d.sync += bit.eq(a_gone | ~b_gone & ~first)
            place = Cat(Mux(bit, b_place, a_place), bit) if level else bit
            above.append(
                tuple(
                    fp16.named(module, each)
                    for each in (Mux(bit, b, a), place, Mux(bit, b_gone, a_gone))
                )
            )
        nodes = above
    number, place, none = nodes[0]
    with module.If(inputs["load"]):
        module.d.sync += gone.eq(0)
    with module.Elif(inputs[pop]):
        module.d.sync += Array(gone)[place].eq(1)
    return number, place, none


def _orizuru_vectors() -> Iterator[Vector]:
    source = random.Random(2)
    for turn in range(120):
        if turn % 3:
            values = [source.randrange(0x10000) for _ in range(INPUTS)]
        else:  # many of them equal
            values = [source.choice((0x3C00, 0x4000, 0xBC00)) for _ in range(INPUTS)]
        port = _HALVES.join(values)
        yield {"values": port, "load": 1, "pop_max": 0, "pop_min": 0}
        for _ in range(source.randrange(1, 18)):
            for _ in range(source.choice((LEVELS, LEVELS, 1))):
                yield {"values": 0, "load": 0, "pop_max": 0, "pop_min": 0}
            both = source.randrange(1, 4)
            yield {"values": 0, "load": 0, "pop_max": both & 1, "pop_min": both >> 1}


UNITS = (concat, orizuru, index_counter, lambda: index_counter(64))
