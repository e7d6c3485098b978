"""The softmax unit, with exponentials computed or looked up for codes of a few bits.

Each element takes these steps in sequence:

    original   max + exponential + accumulation + division                       (Algorithm 1)
    EXAQ       max + quantization + look-up + division                           (Algorithm 2)

EXAQ looks up the sum of `group` codes at once, in parallel with their exponentials (section 4), so
the sum takes no extra cycles. A pipelined unit takes the same steps but accepts a new element every
cycle in each pass. There the tables save latency and area, not throughput.

Source   Shkolnik et al., "EXAQ: Exponent Aware Quantization For LLMs Acceleration", section 4,
         Algorithms 1 and 2, Table 3. Cycles of quantization and look-up, and 5 to 12 cycles for an
         exponential, are from the paper. Cycles of max and division are assumptions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from suffice.errors import InputError
from suffice_hw import settings
from suffice_hw.settings import Settings, limited

DESIGNS = Path(__file__).parent / "designs"
ENTRY_BYTES = 2  # FP16
Halves = npt.NDArray[np.float16]


@dataclass(frozen=True)
class Unit(Settings):
    """A softmax unit; designs/exaq.toml explains the keys. Cycles are per element."""

    bits: int = limited(choices=(0, 2, 3, 4))
    group: int = limited(1, 8)
    width: int = limited(1, 256)
    pipelined: bool = limited()
    max_cycles: int = limited(0, 100)
    exp_cycles: int = limited(1, 100)
    accumulate_cycles: int = limited(0, 100)
    quantize_cycles: int = limited(0, 100)
    lookup_cycles: int = limited(0, 100)
    divide_cycles: int = limited(0, 100)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits * self.group > 12:
            most = 12 // self.bits
            raise InputError(
                f"Unit: group={self.group}: must be in [1, {most}] for bits={self.bits}, "
                "a table of at most 4096 sums"
            )

    @classmethod
    @cache
    def load(cls, name: str = "exaq") -> Unit:
        """Return a unit: a built-in one by its name, or that of a TOML file.

        Raises:
            InputError: The name is unknown, or the file has an invalid key or value.
        """
        return settings.read(cls, settings.named(DESIGNS, "design", name))

    @property
    def exponent_cycles(self) -> int:
        """Cycles from x = logit - max to its exponential."""
        return self.quantize_cycles + self.lookup_cycles if self.bits else self.exp_cycles

    @property
    def table_bytes(self) -> int:
        """Bytes of both tables."""
        entries = 2**self.bits + 2 ** (self.bits * self.group)
        return ENTRY_BYTES * entries if self.bits else 0

    def cycles(self, elements: int) -> int:
        """Return the cycles of a softmax over `elements` elements.

        Raises:
            InputError: There are no elements.
        """
        if elements < 1:
            raise InputError(f"elements={elements}: must be at least 1")
        turns = -(-elements // self.width)
        summed = 0 if self.bits else self.accumulate_cycles
        steps = self.max_cycles + self.exponent_cycles + summed + self.divide_cycles
        if not self.pipelined:
            return turns * steps
        passes = 3  # maximum; exponentials and sum; division: each needs the previous one
        return passes * turns + steps - passes


def saving(original: Unit, quantized: Unit, elements: int) -> float:
    """Return the share of the original unit's cycles that the quantized one saves."""
    return 1 - quantized.cycles(elements) / original.cycles(elements)


def tables(clip: float, bits: int, group: int) -> tuple[Halves, Halves]:
    """Return LUT_exp [2^bits] and LUT_sum [2^(bits group)], FP16, for x in [clip, 0].

    Raises:
        InputError: The clip is not below 0.
    """
    if not clip < 0:
        raise InputError(f"clip={clip}: must be below 0")
    levels = clip * (1 - np.arange(2**bits) / (2**bits - 1))
    exponents = np.exp(levels).astype(np.float16)
    codes = np.arange(2 ** (bits * group))
    digits = codes[:, None] >> (bits * np.arange(group)) & (2**bits - 1)
    return exponents, exponents[digits].astype(np.float32).sum(1).astype(np.float16)


def quantize(x: npt.NDArray[np.float32], clip: float, bits: int) -> npt.NDArray[np.int64]:
    """Return the codes of x = logit - max [n], all at most 0; ties go to the even code."""
    steps = 2**bits - 1
    codes: npt.NDArray[np.int64] = np.rint((np.maximum(x, clip) - clip) * (steps / -clip)).astype(
        int
    )
    return codes


def softmax(logits: npt.NDArray[np.float32], clip: float, unit: Unit) -> npt.NDArray[np.float32]:
    """Return the unit's softmax of logits [n]: with FP16 tables, summed in FP32.

    Elements of an incomplete group are summed one by one.

    Raises:
        InputError: The unit has no tables, or the clip is not below 0.
    """
    if not unit.bits:
        raise InputError("bits=0: the unit has no tables")
    exponents, sums = tables(clip, unit.bits, unit.group)
    codes = quantize(logits - logits.max(), clip, unit.bits)
    whole = len(codes) // unit.group * unit.group
    places = codes[:whole].reshape(-1, unit.group) << (unit.bits * np.arange(unit.group))
    total = sums[places.sum(1)].astype(np.float32).sum()
    total += exponents[codes[whole:]].astype(np.float32).sum()
    scores: npt.NDArray[np.float32] = exponents[codes].astype(np.float32) / total
    return scores
