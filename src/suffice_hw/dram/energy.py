"""Energy of a memory from its event counts, by tables that name their sources."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from suffice.errors import unknown
from suffice_hw import settings
from suffice_hw.dram.model import Outcome
from suffice_hw.dram.part import Part
from suffice_hw.settings import Settings, limited

TABLES = Path(__file__).parent / "energy_tables"


@dataclass(frozen=True)
class Energy:
    """Picojoules by cause."""

    activate_pj: float
    transfer_pj: float
    refresh_pj: float
    background_pj: float
    bits: int

    @property
    def total_pj(self) -> float:
        """Energy of all causes."""
        return self.activate_pj + self.transfer_pj + self.refresh_pj + self.background_pj

    @property
    def pj_per_bit(self) -> float:
        """Total energy per bit read or written."""
        return self.total_pj / self.bits if self.bits else 0.0


@dataclass(frozen=True)
class EventTable(Settings):
    """Energy per event: per activated KiB of a row, per bit, per refresh; and background power."""

    source: str
    activate_pj_per_kib: float = limited(0, 1e5)
    cell_pj_per_bit: float = limited(0, 100)  # of reading the row buffer
    io_pj_per_bit: float = limited(0, 100)
    phy_pj_per_bit: float = limited(0, 100)
    refresh_pj: float = limited(0, 1e7)
    background_mw: float = limited(0, 1e4)  # per channel

    def energy(self, part: Part, seen: Outcome) -> Energy:
        """Return the energy of an outcome."""
        bits = (seen.reads + seen.writes) * part.burst_bytes * 8
        per_bit = self.cell_pj_per_bit + self.io_pj_per_bit + self.phy_pj_per_bit
        return Energy(
            activate_pj=seen.activates * self.activate_pj_per_kib * part.page_bytes / 1024,
            transfer_pj=bits * per_bit,
            refresh_pj=seen.refreshes * self.refresh_pj,
            background_pj=self.background_mw * part.channels * seen.ns,
            bits=bits,
        )


@dataclass(frozen=True)
class CurrentTable(Settings):
    """Energy from the supply currents of a channel of `bus_bits`, as DRAMsim3 computes it.

    An activation costs the excess of IDD0 over standby during a row cycle. A burst and a refresh
    cost the excess of IDD4 and IDD5 over active standby. For a narrower channel, currents are
    scaled by its width. (DRAMsim3 multiplies currents by clocks, so its results are pJ only if a
    clock is 1 ns. Here they are multiplied by ns.)
    """

    source: str
    bus_bits: int = limited(8, 1024)
    vdd_v: float = limited(0.1, 10)
    idd0_ma: float = limited(0, 1e5)
    idd2n_ma: float = limited(0, 1e5)
    idd3n_ma: float = limited(0, 1e5)
    idd4r_ma: float = limited(0, 1e5)
    idd4w_ma: float = limited(0, 1e5)
    idd5ab_ma: float = limited(0, 1e5)

    def energy(self, part: Part, seen: Outcome) -> Energy:
        """Return the energy of an outcome."""
        standby = self.idd3n_ma * part.tras_ns + self.idd2n_ma * part.trp_ns
        activate = self.idd0_ma * (part.tras_ns + part.trp_ns) - standby
        read = (self.idd4r_ma - self.idd3n_ma) * part.burst_ns
        write = (self.idd4w_ma - self.idd3n_ma) * part.burst_ns
        refresh = (self.idd5ab_ma - self.idd3n_ma) * part.trfc_ns
        idle_ns = part.channels * seen.ns - seen.active_ns
        background = self.idd3n_ma * seen.active_ns + self.idd2n_ma * idle_ns
        volts = self.vdd_v * part.bus_bits / self.bus_bits
        return Energy(
            activate_pj=volts * activate * seen.activates,
            transfer_pj=volts * (read * seen.reads + write * seen.writes),
            refresh_pj=volts * refresh * seen.refreshes,
            background_pj=volts * background,
            bits=(seen.reads + seen.writes) * part.burst_bytes * 8,
        )


def load(name: str) -> EventTable | CurrentTable:
    """Return an energy table: a built-in one by its name, or that of a TOML file.

    Raises:
        InputError: The name is unknown, or the file has an invalid key or value.
    """
    path = settings.named(TABLES, "energy table", name)
    values = settings.table(path)
    kinds = {"events": EventTable, "currents": CurrentTable}
    kind = values.pop("kind", None)
    if kind not in kinds:
        raise unknown(f"kind of {path.name}", str(kind), kinds)
    return settings.build(kinds[kind], values, path.name)
