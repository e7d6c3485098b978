"""Analytic model of the memory: closed forms instead of events, with the same counts.

Bandwidth has three limits: the buses; four activations per tFAW, each with the bursts read from the
row it opens; and tCCD_L if all bursts are in one bank group. It is the smallest of these limits,
minus the share of time in which a refresh blocks the channel.

Latency is that of an idle memory plus two waits, for Poisson arrivals of equal chunks at load rho.
The wait in a queue with service time s is rho s / 2 (1 - rho) (Pollaczek and Khinchine). A refresh
blocks for T, and then the requests that arrived meanwhile are served: T^2 / 2 tREFI (1 - rho).
"""

from __future__ import annotations

from dataclasses import dataclass

from suffice.errors import InputError
from suffice_hw.dram.model import Outcome
from suffice_hw.dram.part import Part


@dataclass(frozen=True)
class Pattern:
    """Reads in chunks: each is `row_bursts` bursts of one row, in one channel.

    With `random`, chunks are spread evenly over all banks, and each finds another row open. Without
    it, rows are read in order, and the next row is opened while one is read. With `one_group`, all
    bursts of a chunk are in one bank group, and no other requests are waiting.
    """

    bursts: int
    row_bursts: int
    random: bool = True
    one_group: bool = False


def refresh_share(part: Part) -> float:
    """Return the share of time in which refreshes block a channel: tRFC / tREFI."""
    return part.trfc_ns / part.trefi_ns


def peak(part: Part, pattern: Pattern) -> float:
    """Return the maximum bandwidth of a pattern, in bytes per ns."""
    bursts_per_ns = 1 / part.burst_ns
    if pattern.one_group:
        bursts_per_ns = min(bursts_per_ns, 1 / part.tccd_l_ns)
    activates_per_ns = min(4 / part.tfaw_ns, 1 / part.trrd_s_ns)
    bursts_per_ns = min(bursts_per_ns, activates_per_ns * pattern.row_bursts)
    return part.channels * part.burst_bytes * bursts_per_ns * (1 - refresh_share(part))


def idle_latency_ns(part: Part, met: str) -> float:
    """Return the latency of a single read whose bank has its row open, no row, or another row.

    Raises:
        InputError: `met` is not one of hit, closed, conflict.
    """
    before = {"hit": 0.0, "closed": part.trcd_ns, "conflict": part.trp_ns + part.trcd_ns}
    if met not in before:
        raise InputError(f"met='{met}': must be hit, closed or conflict")
    return before[met] + part.cl_ns + part.burst_ns + part.controller_ns


def mean_latency_ns(part: Part, row_bursts: int, load: float) -> float:
    """Return the mean latency of reads in random chunks; `load` is a share of the buses' peak.

    Raises:
        InputError: The load exceeds the memory's maximum for this pattern.
    """
    max_load = peak(part, Pattern(1, row_bursts)) / part.peak_bytes_per_ns
    if not 0 < load < max_load:
        raise InputError(f"load={load}: must be in (0, {max_load:.3f}), the memory's limit")
    rows = part.groups * part.banks
    per_interval = load * part.trefi_ns / (row_bursts * part.burst_ns)
    # After a refresh every bank is closed until its first chunk arrives.
    first: float = rows * (1 - (1 - 1 / rows) ** per_interval)
    closed = min(1.0, first / per_interval)
    idle = closed * idle_latency_ns(part, "closed")
    idle += (1 - closed) * idle_latency_ns(part, "conflict")
    place = (row_bursts - 1) / 2 * part.burst_ns
    service = max(row_bursts * part.burst_ns, part.tfaw_ns / 4)
    busy = load * service / (row_bursts * part.burst_ns)
    queue = busy * service / (2 * (1 - busy))
    cycle = part.tras_ns + part.trp_ns  # a chunk's wait for another one in the same bank
    bank = load * cycle / (row_bursts * part.burst_ns) / rows
    queue += bank * cycle / (2 * (1 - bank))
    blocked = part.trfc_ns + part.trp_ns
    return idle + place + queue + blocked**2 / (2 * part.trefi_ns * (1 - busy))


def estimate(part: Part, pattern: Pattern, load: float | None = None) -> Outcome:
    """Return an estimate of the simulator's counts for a pattern, at a load or at full speed.

    The latency is that of random chunks at the load; without a load, that of an idle memory.
    """
    fastest = peak(part, pattern)
    rate = fastest if load is None else min(load * part.peak_bytes_per_ns, fastest)
    ns = pattern.bursts * part.burst_bytes / rate
    rows = pattern.bursts / pattern.row_bursts
    refreshes = part.channels * ns / part.trefi_ns
    banks = part.groups * part.banks
    closed = min(rows, refreshes * banks) if pattern.random else 0.0
    if load is None:
        latency = idle_latency_ns(part, "conflict" if pattern.random else "hit")
    else:
        latency = mean_latency_ns(part, pattern.row_bursts, load)
    return Outcome(
        reads=pattern.bursts,
        writes=0,
        activates=rows,
        refreshes=refreshes,
        hits=pattern.bursts - rows,
        closed=closed,
        conflicts=rows - closed,
        active_ns=part.channels * ns * (1 - refresh_share(part)),
        ns=ns,
        mean_latency_ns=latency,
    )
