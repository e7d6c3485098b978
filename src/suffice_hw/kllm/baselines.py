"""Baselines of KLLM as rooflines: arrays of the same area with the same memory, and GPUs.

The time of a step is that of its bytes or of its products, whichever is longer. Nothing else is
modelled, so a GPU's time is the lower bound of its data sheet, not the time of real software.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from suffice.errors import InputError, unknown
from suffice_hw import settings
from suffice_hw.kllm.design import Shape, lengths
from suffice_hw.settings import Settings, limited

BASELINES = Path(__file__).parent / "baselines.toml"


@dataclass(frozen=True)
class Roofline:
    """The limits of a machine, in bytes and products per nanosecond, and its energy."""

    name: str
    kind: str  # array or gpu
    bytes_per_ns: float
    products_per_ns: float
    weight_bytes: float  # fetched per weight
    kv_bytes: float  # fetched per number in a key or value
    watts: float  # constant power; 0 if energies are given
    product_pj: float
    byte_pj: float

    def step(self, shape: Shape, length: int, batch: int = 1) -> tuple[float, float]:
        """Return the nanoseconds and picojoules of a decode step."""
        weights = shape.layers * sum(n * k for n, k in shape.linears)
        weights += shape.vocabulary * shape.width
        held = 2 * shape.layers * length * shape.kv_heads * shape.head_size
        read = weights * self.weight_bytes + batch * held * self.kv_bytes
        attention = 2 * shape.layers * length * shape.heads * shape.head_size
        products = batch * (weights + attention)
        ns = max(read / self.bytes_per_ns, products / self.products_per_ns)
        return ns, self.watts * 1e3 * ns + products * self.product_pj + read * self.byte_pj

    def mean(self, shape: Shape, tokens: int, batch: int = 1) -> tuple[float, float]:
        """Return mean milliseconds and joules of a step, over an output of `tokens` tokens."""
        found = [self.step(shape, length, batch) for length in lengths(tokens)]
        ns, pj = (sum(each) / len(found) for each in zip(*found, strict=True))
        return ns / 1e6, pj / 1e12


@dataclass(frozen=True)
class Array(Settings):
    """An array of multipliers; baselines.toml explains the keys."""

    pe_um2: float = limited(1, 1e6)
    pe_pj: float = limited(0, 1e3)
    products_per_cycle: float = limited(0.01, 1e3)
    weight_bits: int = limited(1, 32)
    kv_bits: int = limited(1, 32)
    weight_share: float = limited(0.01, 1)
    kv_share: float = limited(0.01, 1)


@dataclass(frozen=True)
class Chip(Settings):
    """Settings that all arrays share."""

    area_mm2: float = limited(0.01, 1e4)
    pe_area_share: float = limited(0.01, 1)
    clock_ghz: float = limited(0.01, 10)
    hbm_gb_per_s: float = limited(1, 1e5)
    hbm_pj_per_bit: float = limited(0, 1e3)

    def roofline(self, name: str, array: Array) -> Roofline:
        """Return the roofline of an array with this area and memory."""
        count = self.area_mm2 * 1e6 * self.pe_area_share / array.pe_um2
        return Roofline(
            name,
            "array",
            self.hbm_gb_per_s,
            count * array.products_per_cycle * self.clock_ghz,
            array.weight_bits / 8 * array.weight_share,
            array.kv_bits / 8 * array.kv_share,
            0.0,
            array.pe_pj,
            self.hbm_pj_per_bit * 8,
        )


@dataclass(frozen=True)
class Gpu(Settings):
    """A GPU's data sheet, and the bits of weights, keys and values in its software."""

    gb_per_s: float = limited(1, 1e5)
    tera_ops: float = limited(0.1, 1e6)
    watts: float = limited(1, 1e5)
    weight_bits: int = limited(1, 32)
    kv_bits: int = limited(1, 32)

    def roofline(self, name: str) -> Roofline:
        """Return the GPU's roofline; a product counts as two operations."""
        return Roofline(
            name,
            "gpu",
            self.gb_per_s,
            self.tera_ops * 1e3 / 2,
            self.weight_bits / 8,
            self.kv_bits / 8,
            self.watts,
            0.0,
            0.0,
        )


@dataclass(frozen=True)
class Baselines:
    """All rooflines, and the published ratios: {a4, a3: {speed, energy: {name: ratio}}}."""

    rooflines: dict[str, Roofline]
    published: dict[str, dict[str, dict[str, float]]]

    @classmethod
    @cache
    def load(cls, path: Path = BASELINES) -> Baselines:
        """Read baselines.

        Raises:
            InputError: The file cannot be read, or has an invalid key or value.
        """
        values = settings.table(path)
        tables: dict[str, dict[str, Any]] = {}
        for key in ("arrays", "gpus", "published"):
            if not isinstance(values.get(key), dict):
                raise InputError(f"{path.name}: the table '{key}' is missing")
            tables[key] = values.pop(key)
        chip = settings.build(Chip, values, path.name)
        found = {
            name: chip.roofline(name, settings.build(Array, each, f"{path.name}, {name}"))
            for name, each in tables["arrays"].items()
        }
        found |= {
            name: settings.build(Gpu, each, f"{path.name}, {name}").roofline(name)
            for name, each in tables["gpus"].items()
        }
        for figures in tables["published"].values():
            for name in {name for each in figures.values() for name in each}:
                if name not in found:
                    raise unknown(f"baseline of {path.name}", name, found)
        return cls(found, tables["published"])
