"""Checks of models: a published or derived figure, ours, and whether they agree."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

PARTS = ("dram", "scrooge", "exaq", "cost", "kllm", "rtl")


@dataclass(frozen=True)
class Check:
    """A reference figure and ours.

    `group` names what is checked; checks of one group are counted together. `expected` states the
    reason of a known miss, which is printed and is no failure.
    """

    group: str
    what: str
    published: str
    ours: str
    holds: bool
    source: str
    expected: str = ""  # why it cannot be reproduced, or how the paper contradicts itself
    ran: bool = True  # false if a required tool is not installed; `expected` names it

    @property
    def status(self) -> str:
        """Return `hit`, `miss`, `known miss` if a reason is stated, or `not run`."""
        if not self.ran:
            return "not run"
        return "hit" if self.holds else "known miss" if self.expected else "miss"


def within(ours: float, published: float, tolerance: float) -> bool:
    """Whether two figures differ by at most a share of the published one."""
    return abs(ours - published) <= tolerance * abs(published)


def of(part: str) -> list[Callable[[], list[Check]]]:
    """Return the groups of checks of a part; each group takes seconds."""
    groups: list[Callable[[], list[Check]]]
    groups = importlib.import_module(f"suffice_hw.{part}.checks").GROUPS
    return groups
