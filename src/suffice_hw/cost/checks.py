"""Checks of areas and powers in both papers, against gate counts and the memory fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from suffice_hw import settings
from suffice_hw.checks import Check, within
from suffice_hw.cost import sram
from suffice_hw.cost.logic import KLLM, SCROOGE, Technology
from suffice_hw.cost.sram import Sram

PUBLISHED = Path(__file__).parent / "published.toml"
REGISTERS = "registers and wires between blocks are not counted"


class _Unit(NamedTuple):
    what: str
    parts: dict[str, float]
    um2: float  # published
    source: str
    why: str = ""  # reason of a known miss


UNITS = [
    _Unit("KLLM Concat", KLLM["concat"], 0.0868e6 / 4096, "KLLM, Table I"),
    _Unit("KLLM Orizuru, 16 inputs", KLLM["orizuru"], 0.739e6 / 273, "KLLM, Table I"),
    _Unit(
        "Scrooge multiplier + adder",
        SCROOGE["multiplier"],
        1.138e6 / 1024,
        "Scrooge, Table III",
    ),
    _Unit(
        "Scrooge ETU and VSU",
        SCROOGE["etu and vsu"],
        5000,
        "Scrooge, Table III",
        "pipeline registers of a divider are not counted; 0.005 mm2 is one digit, so 4500 to 5500",
    ),
    _Unit("Scrooge Max & Sum", SCROOGE["max and sum"], 9000, "Scrooge, Table III"),
    _Unit(
        "Scrooge exponent, each",
        SCROOGE["exponent"],
        0.116e6 / 16,
        "Scrooge, Table III",
        "range reduction and registers are not counted",
    ),
    _Unit("Scrooge adder tree", SCROOGE["adder tree"], 24000, "Scrooge, Table III", REGISTERS),
    _Unit(
        "KLLM MAC",
        KLLM["mac"],
        0.0905e6 / 32,
        "KLLM, Table I",
        "it may accumulate in FP32, and registers are not counted",
    ),
    _Unit(
        "KLLM index counter, 256 bins",
        KLLM["index counter"],
        0.271e6 / 32,
        "KLLM, Table I",
        "64 bins would fit (8477 um2); then 256 need four passes, or are under-counted",
    ),
]
POWERS = [  # unit, count, published mW at 1 GHz, reason of a known miss; ours: always busy
    ("adder tree", SCROOGE["adder tree"], 1, 21.36, REGISTERS),
    ("exponents", SCROOGE["exponent"], 16, 79.78, "not busy in every cycle"),
    ("Max & Sum", SCROOGE["max and sum"], 1, 10.98, ""),
    ("ETU and VSU", SCROOGE["etu and vsu"], 1, 3.67, "the ETU's divider is busy once per wave"),
]
MEMORIES = [  # bytes, banks, published mm2; only 128 KB in two banks is stated in the paper
    ("Scrooge buffer", 128 * 1024, 2, 4.071, "Scrooge, Table III"),
    ("KLLM out buffer", 136 * 1024, 1, 4.61, "KLLM, Table I"),
    ("KLLM act idx buffer", 32 * 1024, 1, 2.16, "KLLM, Table I"),
]


def tables() -> list[Check]:
    """The printed rows must add up to the printed totals."""
    found = []
    papers: dict[str, Any] = settings.table(PUBLISHED)
    units = {"scrooge": ("Scrooge, Table III", "mW"), "kllm": ("KLLM, Table I", "W")}
    for paper, (source, watts) in units.items():
        for k, (what, unit) in enumerate((("area", "mm2"), ("power", watts))):
            total = papers[paper]["total"][k]
            ours = sum(row[k] for row in papers[paper]["rows"].values())
            holds = within(ours, total, 0.001)
            why = (
                "" if holds else "the paper contradicts itself: the out buffer seems counted twice"
            )
            group = "kllm printed totals" if paper == "kllm" else "areas and powers"
            what = f"{what}, sum of the rows ({unit})"
            found.append(Check(group, what, f"{total:g}", f"{ours:.4g}", holds, source, why))
    return found


def areas() -> list[Check]:
    """Areas within 25 % of the printed ones, with the reasons of known misses."""
    technology = Technology.load()
    found = []
    for unit in UNITS:
        ours = technology.area_um2(unit.parts)
        holds = within(ours, unit.um2, 0.25)
        shown = f"{ours:.0f} ({100 * (ours / unit.um2 - 1):+.0f} %)"
        what = f"{unit.what} (um2)"
        why = "" if holds else unit.why
        found.append(
            Check("areas and powers", what, f"{unit.um2:.0f}", shown, holds, unit.source, why)
        )
    return found


def softmax() -> list[Check]:
    """Table III's softmax unit, modelled as 16 of the ETU's dividers."""
    technology = Technology.load()
    others = {"fp16_add": 2, "fp16_multiply": 2, "fp16_compare": 1}
    divider = technology.gates({"etu": 1}) - technology.gates(others)
    ours = 16 * divider * technology.um2_per_ge
    papers: dict[str, Any] = settings.table(PUBLISHED)
    published = 1e6 * papers["scrooge"]["rows"]["softmax"][0]
    shown = f"{ours:.0f} ({100 * (ours / published - 1):+.0f} %)"
    why = f"16 dividers of {divider:.0f} GE; the paper does not describe the unit"
    what = "Scrooge softmax, as 16 of the ETU's dividers (um2)"
    holds = within(ours, published, 0.25)
    source = "Scrooge, Table III"
    return [
        Check(
            "areas and powers", what, f"{published:.0f}", shown, holds, source, "" if holds else why
        )
    ]


def powers() -> list[Check]:
    """Powers within 25 %; the energy per gate comes from the multiplier array."""
    technology = Technology.load()
    found = []
    for what, parts, count, published, why in POWERS:
        ours = count * technology.power_mw(parts, 1.0)
        holds = within(ours, published, 0.25)
        shown = f"{ours:.1f} ({100 * (ours / published - 1):+.0f} %)"
        found.append(
            Check(
                "areas and powers",
                f"Scrooge {what}, power if always busy (mW)",
                f"{published:g}",
                shown,
                holds,
                "Scrooge, Table III",
                "" if holds else why,
            )
        )
    return found


def memories() -> list[Check]:
    """The port width that published areas imply, compared with banks of 512 bits."""
    found = []
    for what, size, banks, published, source in MEMORIES:
        port = sram.port_for(size, banks, published)
        usual = Sram(size, 512, banks).area_mm2
        shown = f"{port} bits ({published / usual:.0f} times the area with 512)"
        what = f"{what}: port that makes it {published} mm2"
        found.append(
            Check("areas and powers", what, "none given", shown, 4096 <= port <= 6144, source)
        )
    return found


GROUPS = [tables, areas, softmax, powers, memories]
