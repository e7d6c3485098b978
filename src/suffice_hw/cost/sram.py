"""On-chip memories: area, read energy and leakage, by a fit to CACTI's figures.

A bank of b bits with a port of w bits has the area

    a = b (c + e^f),  f a polynomial in ln w (second degree) and ln b (first)

where c is the area of a bit with a narrow port. Published areas imply ports of thousands of bits,
where wires take far more area than cells. The logarithm of the read energy is such a polynomial
with the term ln banks added. Leakage is proportional to a power of the bytes. `worst_error` returns
the largest error of the fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from suffice.errors import InputError
from suffice_hw import settings
from suffice_hw.settings import Settings, limited

FIGURES = Path(__file__).parent / "sram.toml"
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sram(Settings):
    """A memory of equal banks with one port each."""

    size_bytes: int = limited(512, 2**26)
    port_bits: int = limited(8, 16384)
    banks: int = limited(1, 256, default=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size_bytes * 8 < self.port_bits * self.banks:
            raise InputError(
                f"Sram: port_bits={self.port_bits}: must be at most "
                f"{self.size_bytes * 8 // self.banks}, the bits of a bank"
            )

    @property
    def area_mm2(self) -> float:
        """Area of all banks."""
        bits = self.size_bytes * 8
        extra = _fit().area @ _terms(self)[:4]
        return float(bits * (_fit().cell_um2 + np.exp(extra)) / 1e6)

    @property
    def read_pj(self) -> float:
        """Energy of reading one port width."""
        return float(np.exp(_fit().read @ _terms(self)))

    @property
    def leakage_mw(self) -> float:
        """Leakage power of all banks."""
        slope, start = _fit().leakage
        return float(np.exp(start + slope * np.log(self.size_bytes)))


@dataclass(frozen=True)
class _Fit:
    area: Floats
    read: Floats
    leakage: Floats
    cell_um2: float


def _terms(sram: Sram) -> Floats:
    width, bits = np.log(sram.port_bits), np.log(sram.size_bytes * 8 / sram.banks)
    return np.array([1.0, width, width**2, bits, np.log(sram.banks)])


def figures() -> list[tuple[Sram, float, float, float]]:
    """Return the memories of the table, each with its read pJ, leakage mW and mm2."""
    rows: list[Any] = settings.table(FIGURES)["rows"]
    return [(Sram(row[0], row[1], row[2]), row[3], row[4], row[5]) for row in rows]


@cache
def _fit() -> _Fit:
    rows = figures()
    terms = np.array([_terms(sram) for sram, *_ in rows])
    reads, leaks, areas = (np.array([row[k] for row in rows]) for k in (1, 2, 3))
    bits = np.array([sram.size_bytes * 8 for sram, *_ in rows])
    sizes = np.log(bits / 8)
    cell_um2 = float(settings.table(FIGURES)["cell_um2"])
    return _Fit(
        area=_solved(terms[:, :4], np.log(areas * 1e6 / bits - cell_um2)),
        cell_um2=cell_um2,
        read=_solved(terms, np.log(reads)),
        leakage=_solved(np.stack([sizes, np.ones(len(rows))], 1), np.log(leaks)),
    )


def _solved(terms: Floats, values: Floats) -> Floats:
    found = np.linalg.lstsq(terms, values, rcond=None)[0]
    return found.astype(np.float64)


def worst_error() -> dict[str, float]:
    """Return the largest relative errors of the fit over the memories of the table."""
    rows = figures()
    pairs = {
        "read": [(sram.read_pj, read) for sram, read, _, _ in rows],
        "leakage": [(sram.leakage_mw, leak) for sram, _, leak, _ in rows],
        "area": [(sram.area_mm2, area) for sram, _, _, area in rows],
    }
    return {name: max(abs(a / b - 1) for a, b in each) for name, each in pairs.items()}


def port_for(size_bytes: int, banks: int, area_mm2: float) -> int:
    """Return the narrowest port in bits, a multiple of 64, with at least an area of `area_mm2`.

    Raises:
        InputError: The area is larger than with the widest port.
    """
    widest = min(16384, size_bytes * 8 // banks)
    for port in range(64, widest + 1, 64):
        if Sram(size_bytes, port, banks).area_mm2 >= area_mm2:
            return port
    raise InputError(f"area_mm2={area_mm2}: larger than with a port of {widest} bits")
