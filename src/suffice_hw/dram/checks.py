"""Checks of the memory model and of the analytic model, against DRAMsim3's figures."""

from __future__ import annotations

import dataclasses
import time

import numpy as np

from suffice_hw.checks import Check, within
from suffice_hw.dram import analytic, energy, patterns
from suffice_hw.dram.analytic import Pattern
from suffice_hw.dram.model import Outcome, simulate
from suffice_hw.dram.part import Part

SOURCE = "DRAMsim3"
BURSTS = 100_000
LOADS = {0.3: 59.0, 0.5: 72.0, 0.7: 96.0, 0.9: 209.0}  # ns, 256 B chunks on hbm2_8x128
ENERGIES = {  # pJ/bit of a stream and of random bursts
    "hbm2_8x128": ("idd_hbm2", 1.96, 4.47),
    "hbm1_8x128": ("idd_hbm1", 3.59, 5.77),
}


def _random(part: Part, chunk_bytes: int, load: float | None = None) -> Outcome:
    count = BURSTS * part.burst_bytes // chunk_bytes
    return simulate(part, *patterns.chunks(part, count, chunk_bytes, load))


def bandwidth() -> list[Check]:
    """Bandwidth within 5 %."""
    found = []
    cases: list[tuple[str, Part, float, Outcome, Pattern]] = []
    wide, narrow = Part.load("hbm2_8x128"), Part.load("hbm2_16x64")
    for part in (wide, narrow):
        seen = simulate(part, *patterns.stream(part, BURSTS))
        columns = part.page_bytes // part.burst_bytes
        pattern = Pattern(BURSTS, columns, random=False)
        cases.append(
            (
                f"memory stream; {part.name}, stream",
                part,
                0.925 * part.peak_bytes_per_ns,
                seen,
                pattern,
            )
        )
    for part in (wide, narrow):
        seen = _random(part, part.burst_bytes)
        cases.append(
            (f"memory random; {part.name}, random bursts", part, 62.4, seen, Pattern(BURSTS, 1))
        )
    seen = _random(wide, 128)
    cases.append(
        (f"memory random 128 B; {wide.name}, random 128 B", wide, 125.1, seen, Pattern(BURSTS, 2))
    )
    spread = Part.load("hbm_24x64")
    seen = simulate(spread, *patterns.stream(spread, 10 * BURSTS))
    pattern = Pattern(10 * BURSTS, 32, random=False)
    name = f"memory bank groups; {spread.name}, stream over bank groups"
    cases.append((name, spread, 0.927 * spread.peak_bytes_per_ns, seen, pattern))
    for name, part, published, seen, pattern in cases:
        twin = analytic.peak(part, pattern)
        ours = seen.bytes_per_ns(part)
        group, what = name.split("; ", 1)
        found.append(
            Check(
                group,
                f"{what} (GB/s; analytic {twin:.1f})",
                f"{published:.1f}",
                f"{ours:.1f}",
                within(ours, published, 0.05) and within(twin, published, 0.05),
                SOURCE,
            )
        )
    return [*found, _one_group(dataclasses.replace(spread, mapping="robgbachcocl"))]


def _one_group(part: Part) -> Check:
    """Bursts of one bank group are tCCD_L apart, except at the end of a page."""
    seen = simulate(part, *patterns.stream(part, 10 * BURSTS))
    twin = analytic.peak(part, Pattern(1, 32, random=False, one_group=True))
    ours, published = seen.share_of_peak(part), 0.69
    what = "stream in a page (share of the peak; tCCD_L alone allows"
    return Check(
        "memory bank groups",
        f"{part.name}, {what} {twin / part.peak_bytes_per_ns:.2f})",
        f"{published:g}",
        f"{ours:.3f}",
        within(ours, published, 0.05),
        SOURCE,
    )


def latency() -> list[Check]:
    """Mean latency; below 80 % load within 15 %."""
    part = Part.load("hbm2_8x128")
    lone = _random(part, part.burst_bytes, 0.002).mean_latency_ns
    times, places = patterns.stream(part, 20_000)
    spaced = simulate(part, times + 20.0 * np.arange(len(times)), places).mean_latency_ns
    found = []
    for what, ours, least, most in (
        ("random reads, idle memory (ns, the range +- 15 %)", lone, 37, 43),
        ("reads in order, idle memory (ns, the range +- 15 %)", spaced, 18, 28),
    ):
        holds = 0.85 * least <= ours <= 1.15 * most
        found.append(
            Check("memory idle latency", what, f"{least}-{most}", f"{ours:.1f}", holds, SOURCE)
        )
    for load, published in LOADS.items():
        ours = _random(part, 256, load).mean_latency_ns
        twin = analytic.mean_latency_ns(part, 4, load)
        holds = all(within(each, published, 0.15) for each in (ours, twin))
        beyond = (
            "the check covers loads up to 80 %; above, the queue dominates" if load > 0.8 else ""
        )
        what = f"256 B chunks at {load:g} of the peak (ns; analytic {twin:.0f})"
        found.append(
            Check(
                "memory loaded latency",
                what,
                f"{published:g}",
                f"{ours:.0f}",
                holds,
                SOURCE,
                "" if holds else beyond,
            )
        )
    return found


def energies() -> list[Check]:
    """Energy from supply currents within 3 %, and one activation per miss."""
    found = []
    for name, (table, streamed, scattered) in ENERGIES.items():
        part, costs = Part.load(name), energy.load(table)
        stream = simulate(part, *patterns.stream(part, BURSTS))
        random = _random(part, part.burst_bytes)
        for what, seen, published in (("stream", stream, streamed), ("random", random, scattered)):
            ours = costs.energy(part, seen).pj_per_bit
            holds = within(ours, published, 0.03)
            found.append(
                Check(
                    "memory energy",
                    f"{part.name}, {what}, {table} (pJ/bit)",
                    f"{published:g}",
                    f"{ours:.2f}",
                    holds,
                    SOURCE,
                )
            )
        misses = random.closed + random.conflicts
        lost = f"{random.activates:g} for {misses:g} misses"
        holds = within(random.activates, misses, 0.05)
        found.append(
            Check(
                "memory energy", f"{part.name}, activations", "one a miss", lost, holds, "derived"
            )
        )
    return found


def speed() -> list[Check]:
    """Speed of the simulator on one core of this machine, the only check that measures time."""
    part = Part.load("hbm2_16x64")
    times, places = patterns.chunks(part, BURSTS, 256)
    start = time.process_time()
    simulate(part, times, places)
    per_minute = len(times) / (time.process_time() - start) * 60 / 1e6
    what = f"{part.name}, random 256 B: bursts simulated per minute of one core (million)"
    holds = per_minute >= 20
    return [
        Check("simulator's own speed", what, "at least 20", f"{per_minute:.0f}", holds, "derived")
    ]


GROUPS = [bandwidth, latency, energies, speed]
