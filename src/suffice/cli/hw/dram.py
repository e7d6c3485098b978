"""`suffice hw dram`: simulates reads of a memory part, and writes them as DRAMsim3 input."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from suffice.cli.output import busy, markdown
from suffice.errors import InputError, unknown

if TYPE_CHECKING:
    from suffice_hw.dram.model import Outcome
    from suffice_hw.dram.part import Part
    from suffice_hw.dram.patterns import Requests

PATTERNS = ("stream", "random", "chunks")
CHUNK_BYTES = 256
MOST = 10_000_000


def run(name: str, pattern: str, requests: int, load: float | None, folder: str | None) -> None:
    """Simulate reads and print the outcome; with a folder, also write requests and part settings.

    Raises:
        InputError: A part, pattern, count, load or folder is invalid; nothing is written then.
    """
    from suffice_hw.dram.model import check_powers, simulate, write_settings, write_trace
    from suffice_hw.dram.part import Part

    part = Part.load(name)
    if pattern not in PATTERNS:
        raise unknown("pattern", pattern, PATTERNS)
    if not 1 <= requests <= MOST:
        raise InputError(f"--requests {requests}: must be in [1, {MOST}]")
    if load is not None and (pattern == "stream" or not 0 < load <= 1):
        raise InputError(f"--load {load:g}: must be in (0, 1], with --pattern random or chunks")
    if folder is not None:
        check_powers(part)
        if not folder or not Path(folder).absolute().parent.is_dir() or Path(folder).is_file():
            raise InputError(f"--emit '{folder}': must be a folder, or a new one in a folder")
    with busy(f"reading from {part.name}"):
        times, places = _requests(part, pattern, requests, load)
        seen = simulate(part, times, places)
    if folder is not None:
        try:
            Path(folder).mkdir(exist_ok=True)
        except OSError as error:
            raise InputError(f"--emit {folder}: {error.strerror}") from None
        write_trace(Path(folder, "requests.trace"), part, times, places)
        write_settings(Path(folder, "part.ini"), part)
    print(_table(part, pattern, seen))


def _requests(part: Part, pattern: str, requests: int, load: float | None) -> Requests:
    """Return the bursts of a pattern; the last chunk may be incomplete."""
    from suffice_hw.dram import patterns

    if pattern == "stream":
        if requests * part.burst_bytes > part.size_bytes:
            most = part.size_bytes // part.burst_bytes
            raise InputError(
                f"--requests {requests}: must be at most {most}, the bursts of the whole memory"
            )
        return patterns.stream(part, requests)
    size = part.burst_bytes if pattern == "random" else CHUNK_BYTES
    count = -(-requests * part.burst_bytes // size)
    times, places = patterns.chunks(part, count, size, load)
    return times[:requests], places[:requests]


def _table(part: Part, pattern: str, seen: Outcome) -> str:
    rows = [
        ("reads", seen.reads),
        ("GB/s", f"{seen.bytes_per_ns(part):.1f}"),
        ("share of the peak", f"{seen.share_of_peak(part):.3f}"),
        ("mean latency (ns)", f"{seen.mean_latency_ns:.1f}"),
        ("time (ns)", f"{seen.ns:.0f}"),
        ("row open", f"{seen.hits:.0f}"),
        ("no row open", f"{seen.closed:.0f}"),
        ("another row open", f"{seen.conflicts:.0f}"),
        ("activations", f"{seen.activates:.0f}"),
        ("refreshes", f"{seen.refreshes:.0f}"),
    ]
    return markdown([f"{part.name}, {pattern}", ""], rows)
