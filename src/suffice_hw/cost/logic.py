"""Logic in gate equivalents: blocks of a unit, its area, its power while busy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from suffice.errors import InputError, unknown
from suffice_hw import settings
from suffice_hw.settings import Settings, limited

GATES = Path(__file__).parent / "gates.toml"


@dataclass(frozen=True)
class Technology(Settings):
    """Area and energy of a gate equivalent (GE), and the size of each block in GE."""

    blocks: dict[str, float]  # in GE
    um2_per_ge: float = limited(0.001, 100)
    fj_per_ge_cycle: float = limited(0, 1000)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, size in self.blocks.items():
            number = isinstance(size, int | float) and not isinstance(size, bool)
            if not number or not 0 < size < math.inf:
                raise InputError(f"Technology: {name}={size!r}: must be a number above 0, in GE")

    @classmethod
    @cache
    def load(cls, path: Path = GATES) -> Technology:
        """Read a technology.

        Raises:
            InputError: The file cannot be read, or has an invalid key or value.
        """
        return settings.read(cls, path)

    def gates(self, unit: Mapping[str, float]) -> float:
        """Return the size of a unit in GE; `unit` has the number of each of its blocks.

        Raises:
            InputError: A block is unknown.
        """
        for name in unit:
            if name not in self.blocks:
                raise unknown("block", name, self.blocks)
        return sum(self.blocks[name] * count for name, count in unit.items())

    def area_um2(self, unit: Mapping[str, float]) -> float:
        """Return the area of a unit, without registers and wires between its blocks."""
        return self.gates(unit) * self.um2_per_ge

    def power_mw(self, unit: Mapping[str, float], ghz: float, busy: float = 1.0) -> float:
        """Return the power of a unit that is busy in a fraction `busy` of the cycles.

        Raises:
            InputError: `busy` is not in [0, 1].
        """
        if not 0 <= busy <= 1:
            raise InputError(f"busy={busy}: must be in [0, 1]")
        return self.gates(unit) * self.fj_per_ge_cycle * ghz * busy / 1e3


# Blocks of the units: those of the papers' tables, and the control of Scrooge's top level.
SCROOGE: dict[str, dict[str, float]] = {
    "multiplier": {"multiplier_lane_16": 1 / 16},  # one of 1024, with its adder and registers
    "adder tree": {"adder_tree_16": 1},
    "exponent": {"exponent": 1},  # one of 16
    "max and sum": {"max_and_sum_16": 1},
    "etu and vsu": {"etu": 1, "vsu": 1},
    "softmax": {"fp16_divide": 1},  # one of 16 dividers
    "control": {"top_level_control_16x64": 1},
}
SCROOGE_WHOLE = {  # Table II: how many of each make the logic of the whole accelerator
    "multiplier": 1024,
    "adder tree": 1,
    "exponent": 16,
    "max and sum": 1,
    "etu and vsu": 1,
    "softmax": 16,
    "control": 1,
}
KLLM: dict[str, dict[str, float]] = {
    "concat": {"concat": 1},
    "orizuru": {"orizuru_16": 1},
    "mac": {"fp16_multiply": 1, "fp16_add": 1},
    "index counter": {"index_counter_256": 1},
}
