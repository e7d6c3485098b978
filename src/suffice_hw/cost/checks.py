"""Checks of areas and powers in both papers, against gate counts and the memory fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from suffice_hw import settings
from suffice_hw.checks import Check, within
from suffice_hw.cost import sram
from suffice_hw.cost.logic import KLLM, SCROOGE, SCROOGE_WHOLE, Technology
from suffice_hw.cost.sram import Sram

PUBLISHED = Path(__file__).parent / "published.toml"
TABLE = "Scrooge, Table III"


# The parts of a top level of 2 lanes of 2, as rtl.top_level_parts has them, which needs Amaranth.
SMALL_TOP_LEVEL: dict[str, float] = {
    "multiplier_lane_2": 2,
    "adder_tree_2": 1,
    "exponent": 2,
    "fp16_divide": 2,
    "max_and_sum_2": 1,
    "etu": 1,
    "vsu": 1,
    "top_level_control_2x2": 1,
}


class _Unit(NamedTuple):
    what: str
    parts: dict[str, float]
    um2: float  # published
    source: str
    why: str = ""  # reason of a known miss


UNITS = [
    _Unit("KLLM Concat", KLLM["concat"], 0.0868e6 / 4096, "KLLM, Table I"),
    _Unit("KLLM Orizuru, 16 inputs", KLLM["orizuru"], 0.739e6 / 273, "KLLM, Table I"),
    _Unit("Scrooge multiplier array, each", SCROOGE["multiplier"], 1.138e6 / 1024, TABLE),
    _Unit("Scrooge ETU and VSU", SCROOGE["etu and vsu"], 5000, TABLE),
    _Unit("Scrooge Max & Sum", SCROOGE["max and sum"], 9000, TABLE),
    _Unit("Scrooge exponent, each", SCROOGE["exponent"], 0.116e6 / 16, TABLE),
    _Unit(
        "Scrooge adder tree",
        SCROOGE["adder tree"],
        24000,
        TABLE,
        "15 adders and 16 multipliers by 1 / sqrt(d), which no row of the table names; wires "
        "across 16 lanes are not counted",
    ),
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
POWERS = [  # unit, published mW at 1 GHz, reason of a known miss; ours: always busy
    ("adder tree", 21.36, ""),
    ("exponent", 79.78, "the paper does not say how often it is busy: here in every cycle"),
    ("max and sum", 10.98, ""),
    ("etu and vsu", 3.67, "the ETU decides once per wave, so its divider is idle most of the time"),
    (
        "softmax",
        134.79,
        "16 dividers are all that softmax needs; the paper does not describe the unit",
    ),
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
    """Table III's softmax unit: 16 dividers, which take a word of weights per cycle."""
    technology = Technology.load()
    ours = 16 * technology.area_um2(SCROOGE["softmax"])
    published = 1e6 * _printed("softmax", 0)
    shown = f"{ours:.0f} ({100 * (ours / published - 1):+.0f} %)"
    why = (
        f"16 dividers of {technology.gates(SCROOGE['softmax']):.0f} GE are all that softmax needs, "
        "as exponents and sum have rows of their own; the paper does not describe the unit"
    )
    holds = within(ours, published, 0.25)
    what = "Scrooge softmax, 16 dividers (um2)"
    group, stated = "areas and powers", f"{published:.0f}"
    return [Check(group, what, stated, shown, holds, TABLE, "" if holds else why)]


def _printed(row: str, column: int) -> float:
    papers: dict[str, Any] = settings.table(PUBLISHED)
    return float(papers["scrooge"]["rows"][row][column])


def powers() -> list[Check]:
    """Powers within 25 %; the energy per gate comes from the multiplier array."""
    found = []
    for unit, published, why in POWERS:
        ours, count = _spent(unit)[1], SCROOGE_WHOLE[unit]
        holds = within(ours, published, 0.25)
        shown = f"{ours:.1f} ({100 * (ours / published - 1):+.0f} %)"
        found.append(
            Check(
                "areas and powers",
                f"Scrooge {unit} ({count}), power if always busy (mW)",
                f"{published:g}",
                shown,
                holds,
                TABLE,
                "" if holds else why,
            )
        )
    return found


def whole() -> list[Check]:
    """The logic of Table II's whole accelerator, compared with the sum of Table III's rows."""
    rows: dict[str, Any] = settings.table(PUBLISHED)["scrooge"]["rows"]
    logic = {name: row for name, row in rows.items() if name != "sram buffer"}
    why = "the softmax row, 2.18 mm2, for which 16 dividers take 0.03; the other rows agree"
    found = []
    for without, unit in (("SRAM and softmax", "softmax"), ("SRAM", "")):
        units = [name for name in SCROOGE_WHOLE if name != unit]
        kept = [row for name, row in logic.items() if not (unit and name == "softmax")]
        for k, what in enumerate(("area (mm2)", "power if always busy (mW)")):
            published = sum(row[k] for row in kept)
            ours = sum(_spent(name)[k] for name in units)
            holds = within(ours, published, 0.25)
            shown = f"{ours:.4g} ({100 * (ours / published - 1):+.0f} %)"
            what = f"Scrooge without {without}, control included: {what}"
            note = "" if holds else why
            stated = f"{published:.4g}"
            found.append(Check("areas and powers", what, stated, shown, holds, TABLE, note))
    return found


def _spent(unit: str) -> tuple[float, float]:
    """Return the area in mm2 and the power in mW of all units of a kind."""
    technology, count = Technology.load(), SCROOGE_WHOLE[unit]
    area = technology.area_um2(SCROOGE[unit]) / 1e6
    return count * area, count * technology.power_mw(SCROOGE[unit], 1.0)


def pieces() -> list[Check]:
    """A small top level in one piece: what synthesis gains across the borders of its parts."""
    sizes = Technology.load()
    ours = sizes.gates(SMALL_TOP_LEVEL)
    piece = sizes.gates({"top_level_2x2": 1})
    what = "Scrooge top level of 2 lanes of 2: sum of its parts, and in one piece (GE)"
    shown = f"{ours:.0f} ({100 * (ours / piece - 1):+.0f} %)"
    holds = within(ours, piece, 0.1)
    return [Check("areas and powers", what, f"{piece:.0f}", shown, holds, "derived")]


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


GROUPS = [tables, areas, softmax, powers, whole, pieces, memories]
