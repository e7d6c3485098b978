"""Checks of the softmax unit against EXAQ's Table 3, and of its gain in Scrooge."""

from __future__ import annotations

import dataclasses

from suffice_hw.checks import Check
from suffice_hw.exaq.unit import Unit, saving
from suffice_hw.scrooge import simulate
from suffice_hw.scrooge.design import Design, Shape
from suffice_hw.scrooge.logits import Synthetic

PAPER = "EXAQ"
ELEMENTS = 4096
RUNTIMES_MS = (3.274, 2.066)  # Table 3


def unit() -> list[Check]:
    """Time saved by two bits, for several latencies of the exponential; sizes of tables."""
    published = 1 - RUNTIMES_MS[1] / RUNTIMES_MS[0]
    found, usual = [], Unit.load()
    for cycles in (8, 5, 12):
        quantized = dataclasses.replace(usual, exp_cycles=cycles)
        ours = saving(dataclasses.replace(quantized, bits=0), quantized, ELEMENTS)
        holds = abs(ours - published) <= 0.03
        why = "" if holds else "shows that Table 3 implies an exponential of about 8 cycles"
        found.append(
            Check(
                "exaq exponent",
                f"time saved by 2 bits, exponent in {cycles} cycles (%)",
                f"{100 * published:.1f} +- 3",
                f"{100 * ours:.1f}",
                holds,
                f"{PAPER}, Table 3",
                why,
            )
        )
    for bits, group, published_bytes in ((2, 4, 512), (3, 2, 128)):
        table = dataclasses.replace(usual, bits=bits, group=group).table_bytes - 2 * 2**bits
        what = f"LUT_sum of {group} codes of {bits} bits (B)"
        holds = table == published_bytes
        found.append(
            Check("exaq exponent", what, f"{published_bytes}", f"{table}", holds, f"{PAPER}, 4")
        )
    return found


def in_scrooge() -> list[Check]:
    """Cycles saved by the look-up in Scrooge, where the exponential is a pipeline stage."""
    shape = Shape("4 layers of LLaMA-2-7B", 4, 32, 32, 128)
    source, design = Synthetic.load("s"), Design.load()
    shares = (source.key_share, source.value_share)
    cycles = [
        simulate.run(each, shape, source, shares, sampled_lengths=6).serial_cycles.sum()
        for each in (design, dataclasses.replace(design, softmax_bits=2))
    ]
    saved = 1 - float(cycles[1] / cycles[0])
    return [
        Check(
            "exaq exponent",
            f"{shape.name}: Scrooge's cycles saved by 2 bits, the memory being the bound (%)",
            "0 to 2",
            f"{100 * saved:.2f}",
            0 <= saved <= 0.02,
            "derived",
        )
    ]


GROUPS = [unit, in_scrooge]
