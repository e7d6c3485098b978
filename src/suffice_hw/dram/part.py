"""A memory part: its address mapping, and the timings of its standard."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from suffice.errors import InputError, unknown
from suffice_hw import _simulator, settings
from suffice_hw.settings import Settings, limited

PARTS = Path(__file__).parent / "parts"
FIELDS = ("ro", "ba", "bg", "co", "ch", "cl")  # in the order of csrc/hw/dram.h


@dataclass(frozen=True)
class Part(Settings):
    """A memory of equal channels with one rank each; times in ns are rounded up to clocks.

    `mapping` lists the fields of an address from the highest to the lowest, as in DRAMsim3: row
    `ro`, bank `ba`, bank group `bg`, column `co`, channel `ch`. In addition, `cl` are the lowest
    columns, for the `interleave_bytes` that are contiguous in a channel.
    """

    name: str
    channels: int = limited(1, 64)
    groups: int = limited(1, 8)
    banks: int = limited(1, 16)  # per group
    rows: int = limited(1, 2**20)
    page_bytes: int = limited(64, 16384)
    burst_bytes: int = limited(8, 256)
    mapping: str = limited()
    interleave_bytes: int = limited(8, 16384)
    window: int = limited(1, 256)
    queue: int = limited(1, 4096)  # at least `window`; latency starts when a request enters it
    controller_ns: float = limited(0, 100)  # added to every request's latency
    tck_ns: float = limited(0.1, 10)
    burst_ns: float = limited(0.1, 100)
    cl_ns: float = limited(0, 100)
    cwl_ns: float = limited(0, 100)
    trcd_ns: float = limited(0, 100)
    trp_ns: float = limited(0, 100)
    tras_ns: float = limited(0, 200)
    tccd_s_ns: float = limited(0, 100)
    tccd_l_ns: float = limited(0, 100)
    trrd_s_ns: float = limited(0, 100)
    trrd_l_ns: float = limited(0, 100)
    tfaw_ns: float = limited(0, 500)
    trtp_ns: float = limited(0, 100)
    twr_ns: float = limited(0, 100)
    twtr_s_ns: float = limited(0, 100)
    twtr_l_ns: float = limited(0, 100)
    trtrs_ns: float = limited(0, 100)
    trfc_ns: float = limited(0, 2000)
    trefi_ns: float = limited(100, 100000)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.page_bytes % self.interleave_bytes or self.interleave_bytes % self.burst_bytes:
            raise InputError(
                f"Part: interleave_bytes={self.interleave_bytes}: must divide "
                f"page_bytes={self.page_bytes} and be a multiple of burst_bytes={self.burst_bytes}"
            )
        if self.groups * self.banks > 64:
            raise InputError(
                f"Part: banks={self.banks}: at most 64 banks in all {self.groups} groups"
            )
        if self.queue < self.window:
            raise InputError(f"Part: queue={self.queue}: must hold a window={self.window}")
        given = [self.mapping[i : i + 2] for i in range(0, len(self.mapping), 2)]
        for each in given:
            if each not in FIELDS:
                raise unknown("field of mapping", each, FIELDS)
        if sorted(given) != sorted(FIELDS):
            raise InputError(
                f"Part: mapping='{self.mapping}': must have each of {', '.join(FIELDS)} once"
            )
        if self.trfc_ns + self.tras_ns + self.trp_ns + 3 * self.tck_ns >= self.trefi_ns:
            raise InputError(
                f"Part: trfc_ns={self.trfc_ns}: must be less than trefi_ns={self.trefi_ns}, "
                "by more than tras_ns and trp_ns"
            )

    @classmethod
    def load(cls, name: str) -> Part:
        """Return a part: a built-in one by its name, or that of a TOML file.

        Raises:
            InputError: The name is unknown, or the file has an invalid key or value.
        """
        path = settings.named(PARTS, "memory part", name)
        return settings.read(cls, path)

    def clocks(self, ns: float) -> int:
        """Return a time in clocks, rounded up."""
        return math.ceil(ns / self.tck_ns - 1e-9)

    @property
    def peak_bytes_per_ns(self) -> float:
        """Peak bandwidth of all channels' buses, in GB/s."""
        return self.channels * self.burst_bytes / self.burst_ns

    @property
    def bus_bits(self) -> int:
        """Width of a channel's bus, which transfers two bits per clock and wire."""
        return round(self.burst_bytes * 8 * self.tck_ns / self.burst_ns / 2)

    @property
    def size_bytes(self) -> int:
        """Capacity of the whole memory."""
        return self.channels * self.groups * self.banks * self.rows * self.page_bytes

    @cached_property
    def native(self) -> _simulator.Part:
        """The part in the simulator's form."""
        low = self.interleave_bytes // self.burst_bytes
        high = self.page_bytes // self.interleave_bytes
        sizes = [self.rows, self.banks, self.groups, high, self.channels, low]
        order = [self.mapping[i : i + 2] for i in range(0, len(self.mapping), 2)]
        lowest_first = [FIELDS.index(each) for each in reversed(order)]
        burst = self.clocks(self.burst_ns)
        timing = [
            burst,
            *map(self.clocks, (self.cl_ns, self.cwl_ns, self.trcd_ns, self.trp_ns, self.tras_ns)),
            max(self.clocks(self.tccd_s_ns), burst),
            max(self.clocks(self.tccd_l_ns), burst),
            *map(self.clocks, (self.trrd_s_ns, self.trrd_l_ns, self.tfaw_ns, self.trtp_ns)),
            *map(self.clocks, (self.twr_ns, self.twtr_s_ns, self.twtr_l_ns, self.trtrs_ns)),
            *map(self.clocks, (self.trfc_ns, self.trefi_ns)),
        ]
        return _simulator.part(
            sizes, lowest_first, self.burst_bytes, self.window, self.queue, timing
        )
