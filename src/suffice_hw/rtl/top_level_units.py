"""Sizes and ports of Scrooge's top level, and the units in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Module

from suffice_hw.rtl import fp16, lane_units, scrooge_units
from suffice_hw.rtl.scrooge_units import PLACE_BITS


@dataclass(frozen=True)
class Size:
    """Lanes, multipliers of a lane, and parts of a lane's width in the query buffer; powers of two.

    The defaults are those of Table II: 512 B for the query.
    """

    lanes: int = 16
    width: int = 64
    parts: int = 4

    @property
    def levels(self) -> int:
        """Levels of the tree across lanes."""
        return self.lanes.bit_length() - 1

    @property
    def lane_levels(self) -> int:
        """Levels of the tree in a lane."""
        return self.width.bit_length() - 1

    @property
    def inputs(self) -> dict[str, int]:
        """Ports; all but `start`, `rows` and `valid` stay the same while a head is computed."""
        word = self.lanes * 16
        return {
            "start": 1,
            "length": PLACE_BITS,
            "important": PLACE_BITS,
            "spread": 3,  # a token takes 2^spread lanes
            "scale": 16,  # 1 / sqrt(d)
            "key_share": 16,
            "value_share": 16,
            "query": self.parts * self.width * 16,
            "rows": word * self.width,
            "valid": 1,
            "logits_data": word,
            "weights_data": word,
            "scores_data": word,
        }

    @property
    def outputs(self) -> dict[str, int]:
        """Ports: `take` accepts `rows`; `phase` has a bit for each phase; `keep` adds the token at
        `position` to the important ones, whose values are read.
        """
        ports = {"take": 1, "keep": 1, "position": PLACE_BITS, "known": PLACE_BITS}
        ports |= {"kept": PLACE_BITS, "phase": 4}
        ports |= {"y": self.width * 16, "y_valid": 1, "done": 1}
        for name in ("logits", "weights", "scores"):
            ports |= {f"{name}_from": PLACE_BITS, f"{name}_to": PLACE_BITS}
            ports |= {f"{name}_write": self.lanes, f"{name}_word": self.lanes * 16}
        return ports


class Units:
    """The units of a top level; `place` numbers the units of a kind."""

    def __init__(self, module: Module) -> None:
        self.module = module

    def lane(self, place: int, *ports: Any) -> tuple[Any, list[Any]]:
        """Add a lane."""
        return lane_units.add_lane(self.module, *ports)

    def tree(self, totals: list[Any], spread: Any, scale: Any) -> list[Any]:
        """Add the tree across lanes."""
        return lane_units.add_tree(self.module, totals, spread, scale)

    def exponent(self, place: int, x: Any, offset: Any) -> Any:
        """Add an exponent unit."""
        return lane_units.add_exponent(self.module, x, offset)

    def max_and_sum(self, logits: list[Any], weights: list[Any]) -> tuple[Any, Any]:
        """Add the trees of Max & Sum."""
        return scrooge_units.add_max_and_sum(self.module, logits, weights)

    def etu(self, *ports: Any) -> tuple[Any, Any]:
        """Add the ETU."""
        return scrooge_units.add_etu(self.module, *ports)

    def vsu(self, *ports: Any) -> tuple[Any, Any]:
        """Add the VSU."""
        return scrooge_units.add_vsu(self.module, *ports)

    def divide(self, place: int, a: Any, b: Any) -> Any:
        """Add a divider of the softmax unit."""
        return fp16.divide(self.module, a, b)
