"""EXAQ's look-up unit: codes of four logits, their exponentials, and the sum of all four at once.

The tables are constants, for one clip. The quantizer compares x with the limits between codes. A
limit is the smallest FP16 number that has the higher code, so the quantizer equals
`suffice_hw.exaq.unit.quantize` for every FP16 number.

Source   Shkolnik et al., "EXAQ: Exponent Aware Quantization For LLMs Acceleration", section 4.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
from amaranth.hdl import Array, Cat, Const

from suffice_hw.exaq.unit import quantize, tables
from suffice_hw.rtl import fp16
from suffice_hw.rtl.fp16_model import key
from suffice_hw.rtl.unit import Lanes, Registered, Unit, Vector

CLIP, BITS, GROUP = -4.0, 2, 4
_LOGITS = Lanes(GROUP, 16)
_CODES = Lanes(GROUP, BITS)


def limits() -> list[int]:
    """Return, for each code above 0, the `key` of the smallest FP16 number with this code."""
    finite = np.arange(0x10000).astype(np.uint16)
    numbers = finite.view(np.float16).astype(np.float32)
    at_most_zero = finite[numbers <= 0]
    codes = quantize(numbers[numbers <= 0], CLIP, BITS)
    return [
        min(key(int(bits)) for bits in at_most_zero[codes == code]) for code in range(1, 2**BITS)
    ]


def exaq_lut() -> Unit:
    """Codes, exponentials and their sum, in registers."""
    exponents, sums = (table.view(np.uint16).tolist() for table in tables(CLIP, BITS, GROUP))
    edges = limits()

    def build(module: Any, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        codes = []
        for x in _LOGITS.signals(inputs["x"]):
            above = [fp16.key(x) >= Const(edge, 16) for edge in edges]
            codes.append(fp16.named(module, sum(above[1:], above[0]), BITS))
        looked_up = [Array(Const(e, 16) for e in exponents)[code] for code in codes]
        joined = fp16.named(module, Cat(*codes))
        module.d.sync += [
            outputs["codes"].eq(joined),
            outputs["exponents"].eq(Cat(*(fp16.named(module, e, 16) for e in looked_up))),
            outputs["sum"].eq(Array(Const(s, 16) for s in sums)[joined]),
        ]

    def model(x: int) -> Vector:
        numbers = np.array(_LOGITS.split(x), np.uint16).view(np.float16).astype(np.float32)
        codes = quantize(numbers, CLIP, BITS).tolist()
        place = _CODES.join(codes)
        held = _LOGITS.join([exponents[code] for code in codes])
        return {"codes": place, "exponents": held, "sum": sums[place]}

    return Unit(
        "exaq_lut",
        f"{BITS}-bit codes of {GROUP} logits, exponentials and their sum; clip {CLIP:g}",
        {"x": GROUP * 16},
        {"codes": GROUP * BITS, "exponents": GROUP * 16, "sum": 16},
        build,
        lambda: Registered(model),
        _vectors,
        exhaustive=True,
    )


def _vectors() -> Iterator[Vector]:
    """Yield every FP16 number from -65504 to 0 in every lane, then all 256 groups of codes."""
    numbers = [0, *range(0x8000, 0xFC00)]
    source = random.Random(10)
    source.shuffle(numbers)
    count = len(numbers)
    for start in range(count):
        lanes = [numbers[(start + lane * count // GROUP) % count] for lane in range(GROUP)]
        yield {"x": _LOGITS.join(lanes)}
    steps = 2**BITS - 1
    level = [int(np.float16(CLIP * (1 - i / steps)).view(np.uint16)) for i in range(steps + 1)]
    for place in range(1 << BITS * GROUP):
        yield {"x": _LOGITS.join([level[code] for code in _CODES.split(place)])}


UNITS = (exaq_lut,)
