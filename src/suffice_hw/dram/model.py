"""Simulation of a memory part: counts, time, latency; and export of traces for DRAMsim3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from suffice.errors import InputError
from suffice.paths import write_whole
from suffice_hw import _simulator
from suffice_hw.dram.part import Part

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Outcome:
    """Counts and times of some requests of one burst each.

    `hits` requests found their row open in the bank, `closed` found no open row, and `conflicts`
    found another row. `active_ns` is the time with an open bank, summed over channels. Latencies
    are from the arrival to the end of the burst.
    """

    reads: int
    writes: int
    activates: float
    refreshes: float
    hits: float
    closed: float
    conflicts: float
    active_ns: float
    ns: float
    mean_latency_ns: float
    latencies_ns: npt.NDArray[np.float64] | None = None

    def bytes_per_ns(self, part: Part) -> float:
        """Return the bandwidth in GB/s."""
        return (self.reads + self.writes) * part.burst_bytes / self.ns

    def share_of_peak(self, part: Part) -> float:
        """Return the bandwidth as a share of the buses' peak."""
        return self.bytes_per_ns(part) / part.peak_bytes_per_ns


def outcome(part: Part, counts: _simulator.Counts, latencies: Any = None) -> Outcome:
    """Return the simulator's counts, with clocks converted to ns."""
    tck = part.tck_ns
    mean = counts.latency / counts.reads * tck + part.controller_ns if counts.reads else 0.0
    return Outcome(
        reads=counts.reads,
        writes=counts.writes,
        activates=counts.activates,
        refreshes=counts.refreshes,
        hits=counts.hits,
        closed=counts.closed,
        conflicts=counts.conflicts,
        active_ns=counts.active * tck,
        ns=counts.end * tck,
        mean_latency_ns=mean,
        latencies_ns=None if latencies is None else latencies * tck + part.controller_ns,
    )


def simulate(
    part: Part,
    arrivals_ns: Sequence[float] | npt.NDArray[Any],
    addresses: Sequence[int] | npt.NDArray[Any],
    writes: Sequence[bool] | npt.NDArray[Any] | None = None,
    each_latency: bool = False,
) -> Outcome:
    """Simulate requests of one burst each, which arrive at given times.

    Args:
        part: The memory.
        arrivals_ns: Arrival times, ascending, [n].
        addresses: In bytes, [n].
        writes: Whether each request is a write, [n]; default: all are reads.
        each_latency: Whether to return the latency of each request, [n].

    Raises:
        InputError: Times do not ascend, an address is outside the memory, or lengths differ.
    """
    times, places, flags = _requests(part, arrivals_ns, addresses, writes)
    latencies = np.empty(len(times), np.int32) if each_latency else None
    counts = _simulator.run(part.native, times, places, flags, latencies)
    return outcome(part, counts, latencies)


def _requests(
    part: Part, arrivals_ns: Any, addresses: Any, writes: Any
) -> tuple[Longs, Longs, npt.NDArray[np.uint8] | None]:
    """Check requests and return their clocks, addresses and write flags."""
    times, places = _clocks(part, arrivals_ns), _addresses(part, addresses)
    flags = None if writes is None else np.ascontiguousarray(writes, np.uint8)
    if len(places) != len(times) or (flags is not None and flags.shape != times.shape):
        raise InputError(
            f"{len(times)} arrivals, {len(places)} addresses, "
            f"{'no' if flags is None else flags.size} writes: numbers must be equal"
        )
    return times, places, flags


def _clocks(part: Part, arrivals_ns: Any) -> Longs:
    given = np.asarray(arrivals_ns)
    if given.dtype.kind not in "fiu" or given.ndim != 1 or not np.isfinite(given).all():
        raise InputError("arrivals: must be finite numbers, in one dimension")
    times = given.astype(np.float64)
    if len(times) and (times[0] < 0 or (np.diff(times) < 0).any()):
        raise InputError("arrivals: must ascend, from 0 or later")
    return np.ceil(times / part.tck_ns - 1e-9).astype(np.int64)


def _addresses(part: Part, addresses: Any) -> Longs:
    given = np.asarray(addresses)
    if given.ndim != 1 or (len(given) and given.dtype.kind not in "iu"):
        raise InputError("addresses: must be whole numbers, in one dimension")
    places = np.ascontiguousarray(given, np.int64)
    if len(places) and (places.min() < 0 or places.max() >= part.size_bytes):
        bad = places.min() if places.min() < 0 else places.max()
        raise InputError(f"address {bad}: must be in [0, {part.size_bytes}), the memory's size")
    return places


def write_trace(
    path: Path, part: Part, arrivals_ns: Any, addresses: Any, writes: Any = None
) -> None:
    """Write requests in DRAMsim3's trace format; each line has an address, READ or WRITE, a clock.

    Addresses are converted: with the settings of `write_settings`, DRAMsim3 maps them to the same
    channel, bank, row and column.

    Raises:
        InputError: `simulate` or `write_settings` would refuse the requests or the part.
    """
    check_powers(part)
    times, places, flags = _requests(part, arrivals_ns, addresses, writes)
    columns = part.page_bytes // part.burst_bytes
    part_lines = []
    for i, (time, place) in enumerate(zip(times.tolist(), places.tolist(), strict=True)):
        channel, group, bank, row, column = _simulator.locate(part.native, place)
        index = ((row * part.groups + group) * part.banks + bank % part.banks) * part.channels
        address = ((index + channel) * columns + column) * part.burst_bytes
        kind = "WRITE" if flags is not None and flags[i] else "READ"
        part_lines.append(f"0x{address:X} {kind} {time}\n")
    _write(path, "".join(part_lines))


def write_settings(path: Path, part: Part) -> None:
    """Write a part as an .ini file for DRAMsim3; its power section is DRAMsim3's default.

    Raises:
        InputError: A count is no power of two, which DRAMsim3 cannot map.
    """
    check_powers(part)
    burst_length = part.burst_bytes * 8 // part.bus_bits
    columns = part.page_bytes * 8 // part.bus_bits // 2  # DRAMsim3 doubles them for HBM
    clocks = part.clocks
    times = {
        "CL": part.cl_ns,
        "CWL": part.cwl_ns,
        "tRCDRD": part.trcd_ns,
        "tRCDWR": part.trcd_ns,
        "tRP": part.trp_ns,
        "tRAS": part.tras_ns,
        "tCCD_S": part.tccd_s_ns,
        "tCCD_L": part.tccd_l_ns,
        "tRRD_S": part.trrd_s_ns,
        "tRRD_L": part.trrd_l_ns,
        "tFAW": part.tfaw_ns,
        "tRTP": part.trtp_ns,
        "tWR": part.twr_ns,
        "tWTR_S": part.twtr_s_ns,
        "tWTR_L": part.twtr_l_ns,
        "tRTRS": part.trtrs_ns,
        "tRFC": part.trfc_ns,
        "tREFI": part.trefi_ns,
    }
    lines = [
        "[dram_structure]",
        "protocol = HBM",
        f"bankgroups = {part.groups}",
        f"banks_per_group = {part.banks}",
        f"rows = {part.rows}",
        f"columns = {columns}",
        f"device_width = {part.bus_bits}",
        f"BL = {burst_length}",
        "[timing]",
        f"tCK = {part.tck_ns:g}",
        *(f"{name} = {clocks(ns)}" for name, ns in times.items()),
        "[system]",
        f"channel_size = {part.size_bytes // part.channels >> 20}",
        f"channels = {part.channels}",
        f"bus_width = {part.bus_bits}",
        "address_mapping = rorabgbachco",
        "queue_structure = PER_BANK",
        "row_buf_policy = OPEN_PAGE",
        f"trans_queue_size = {part.window}",
        "",
    ]
    _write(path, "\n".join(lines))


def check_powers(part: Part) -> None:
    """Refuse parts that DRAMsim3 cannot map.

    Raises:
        InputError: A count is no power of two.
    """
    for name in ("channels", "groups", "banks", "rows", "page_bytes", "burst_bytes"):
        value = getattr(part, name)
        if value & (value - 1):
            raise InputError(f"{name}={value}: DRAMsim3 needs a power of two")


def _write(path: Path, text: str) -> None:
    try:
        with write_whole(path) as part:
            part.write_text(text, encoding="ascii")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
