"""Energy of a decode step on KLLM, by component."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from suffice.errors import InputError
from suffice_hw import settings
from suffice_hw.kllm.design import Design, Shape
from suffice_hw.settings import Settings, limited

ENERGIES = Path(__file__).parent / "energies.toml"
OPERATIONS = (
    "concat",
    "counting",
    "reduction",
    "orizuru",
    "dequantization",
    "quantization",
    "outliers",
)
_OUTSIDE_LANES = ("orizuru", "quantization")
_SIZE = 4096  # of the product in Fig. 10(b)
Counts = dict[str, float]


@dataclass(frozen=True)
class Energies(Settings):
    """Published powers and shares of energy; energies.toml explains the keys."""

    shares: Mapping[str, float]
    lane_watts: float = limited(0, 1000)
    buffer_watts: float = limited(0, 1000)
    functional_watts: float = limited(0, 1000)
    hbm_pj_per_bit: float = limited(0, 1000)

    def __post_init__(self) -> None:
        super().__post_init__()
        if sorted(self.shares) != sorted(OPERATIONS):
            raise InputError(f"Energies: shares: must have each of {', '.join(OPERATIONS)} once")
        for name, share in self.shares.items():
            number = isinstance(share, int | float) and not isinstance(share, bool)
            if not number or not 0 <= share <= 1:
                raise InputError(f"Energies: {name}={share!r}: must be a number in [0, 1]")
        total = sum(self.shares.values())
        if abs(total - 1) > 0.005:
            raise InputError(f"Energies: shares: add up to {total:g}: must be 1")

    @classmethod
    @cache
    def load(cls, path: Path = ENERGIES) -> Energies:
        """Read energies.

        Raises:
            InputError: The file cannot be read, or has an invalid key or value.
        """
        return settings.read(cls, path)

    @cached_property
    def product_pj(self) -> float:
        """On-chip energy of the product of Fig. 10(b), from the lanes' power."""
        design = Design.load()
        ns = design.product_cycles(_SIZE, _SIZE) / design.clock_ghz
        lanes = 1 - sum(self.shares[name] for name in _OUTSIDE_LANES)
        return self.lane_watts * 1e3 * ns / lanes

    @cached_property
    def operation_pj(self) -> dict[str, float]:
        """Energy per operation, by name."""
        design = Design.load()
        counts = product_counts(design, _SIZE, _SIZE) | found_counts(design, _SIZE)
        return {k: self.shares[k] * self.product_pj / counts[k] for k in OPERATIONS}


def product_counts(design: Design, outputs: int, inputs: int) -> Counts:
    """Return the operation counts of a vector times a weight [outputs, inputs]."""
    bins = outputs * design.bins(inputs)
    return {
        "concat": float(outputs * inputs),
        "counting": float(outputs * inputs),
        "reduction": bins,
        "dequantization": bins,
        "outliers": float(outputs * design.outliers(inputs)),
    }


def found_counts(design: Design, inputs: int) -> Counts:
    """Return the operation counts of quantizing a vector: comparisons in trees, and values."""
    compared = 0.0
    if design.online_outliers:
        leaves = min(inputs, design.tree_leaves)
        once = 1.5 * leaves + 2 * design.pops(inputs) * math.log2(leaves)  # section IV-C
        compared = once * math.ceil(inputs / design.tree_leaves)
    return {"orizuru": compared, "quantization": float(inputs)}


def step_counts(design: Design, shape: Shape, length: int, batch: int = 1) -> Counts:
    """Return all operation counts of a decode step, its bits from memory and its exponentials."""
    linears = [*shape.linears * shape.layers, (shape.vocabulary, shape.width)]
    counts = dict.fromkeys(OPERATIONS, 0.0)

    def add(found: Counts, times: float) -> None:
        for name, count in found.items():
            counts[name] += batch * times * count

    for outputs, inputs in linears:
        add(product_counts(design, outputs, inputs), 1)
    for run in range(design.tree_runs):
        inputs = shape.hidden if run == design.tree_runs - 1 else shape.width
        add(found_counts(design, inputs), shape.layers)
    heads, size = shape.layers * shape.heads, shape.head_size
    add(product_counts(design, length, size) | {"outliers": 0.0}, heads)  # scores
    bins = float(size << design.activation_bits)
    values = {"counting": float(size * length), "reduction": bins, "dequantization": bins}
    add(values, heads)
    weights = sum(outputs * inputs for outputs, inputs in linears) * design.weight_bits
    kv = 2 * length * shape.layers * shape.kv_heads * size * design.kv_bits
    return counts | {"hbm bits": weights + batch * kv, "exponents": float(batch * heads * length)}


def step_pj(design: Design, shape: Shape, length: int, batch: int = 1) -> dict[str, float]:
    """Return the picojoules of a decode step, by component."""
    table = Energies.load()
    counts = step_counts(design, shape, length, batch)
    ns = design.token_cycles(shape, length, batch) / design.clock_ghz
    exp_ns = counts["exponents"] / design.exp_units / design.clock_ghz
    spent = {name: table.operation_pj[name] * counts[name] for name in OPERATIONS}
    return spent | {
        "buffers": table.buffer_watts * 1e3 * ns,
        "functional unit": table.functional_watts * 1e3 * exp_ns,
        "hbm": table.hbm_pj_per_bit * counts["hbm bits"],
    }
