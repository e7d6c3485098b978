"""The table of sizes.py's results: a row for each file and case."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from benchmarks.harness import shaped_latent, shaped_states
from benchmarks.harness.shaped_file import LOW, TYPES
from benchmarks.harness.shaped_models import MODELS, TINY
from benchmarks.harness.tables import Cell, Cells, CellStore, markdown

CASES = {
    "decode-0": "decode",
    "decode-2000": "decode after 2000",
    "decode-3000": "decode after 3000",
    "decode-8000": "decode after 8000",
    "batch-8": "batch of 8",
    "prompt-512": "prompt of 512",
    "prompt-2048": "prompt of 2048",
}
# What BMC's authors say of llama.cpp, at least 2.1 times slower, is held against all of these.
MEAN_CASES = ("decode-0", "decode-2000", "batch-8", "prompt-512")
MEAN_HEAD = ["model", "file", "geometric mean", "geometric mean with 8 bits"]
MEAN_NOTE = "Geometric means of ratios: decode, decode after 2000, batch of 8 and prompt of 512."
CACHES = ("f16", "q8_0")  # llama.cpp's
SETTINGS = {"default": "without flags", "fast": "8-bit inputs and cache"}
HEAD = [
    *("model", "file", "case", "llama.cpp", "suffice", "ratio", "of the read"),
    *("8-bit inputs and cache", "its ratio", "its part of the read", "machine"),
]
NOTE = (
    "Tokens per second, medians of {rounds} rounds in which the engines take turns; a ratio is the "
    "median of those of single rounds, 'of the read' the bytes that suffice read per second over "
    "the machine's streaming read. {threads} threads, random codes. llama.cpp has flash attention, "
    "and the faster of the caches float16 and q8_0, in brackets. suffice runs the file without "
    "flags, and with `--quant file:act_bits=8 -ctk int8`."
)


def row_of(model: str, kind: str) -> str:
    """Return the name of a file in the results."""
    return f"{model} {kind}"


def machine_of(machine: dict[str, Any]) -> str:
    """Return a processor and its instruction set in words."""
    return f"{machine['cpu']} {machine['cpu_family_model']}, {machine['isa']}"


def of_rounds(cell: Cell, name: str, what: str = "tokens_per_second") -> list[float]:
    """Return a figure of an engine's setting in each round."""
    return [turn[name][what] for turn in cell["rounds"]]


def peer_of(cell: Cell) -> str:
    """Return the type of cache with which llama.cpp is faster."""
    return max(CACHES, key=lambda cache: statistics.median(of_rounds(cell, cache)))


def ratio(cell: Cell, setting: str) -> float:
    """Return the median of a setting's speed over llama.cpp's."""
    pairs = zip(of_rounds(cell, setting), of_rounds(cell, peer_of(cell)), strict=True)
    return statistics.median(ours / theirs for ours, theirs in pairs)


def mean(cells: dict[str, Cell], setting: str) -> float:
    """Return the geometric mean of a setting's ratios in `MEAN_CASES`."""
    return statistics.geometric_mean(ratio(cells[case], setting) for case in MEAN_CASES)


def table(store: CellStore) -> str:
    """Return the table, with a line for what could not be measured."""
    cells = store.cells
    files = [
        (model.title, kind, cells[row])
        for model in (
            *MODELS.values(),
            *shaped_states.MODELS.values(),
            *shaped_latent.MODELS.values(),
            TINY,
        )
        for kind in (*TYPES, *LOW)
        if (row := row_of(model.name, kind)) in cells
    ]
    lines = [
        [title, kind, shown, *_line(found[case])]
        for title, kind, found in files
        for case, shown in CASES.items()
        if case in found
    ]
    means = [
        [title, kind, *(f"{mean(found, setting):.2f}" for setting in SETTINGS)]
        for title, kind, found in files
        if set(MEAN_CASES) <= set(found)
    ]
    counts = {len(cell["rounds"]) for row in cells.values() for cell in row.values()}
    rounds = " or ".join(map(str, sorted(counts)))
    parts = ["**A quick run of a tiny shape: no figure means anything.**"] * store.config["quick"]
    if lines:
        note = NOTE.format(rounds=rounds, threads=store.config["threads"])
        parts += [markdown(HEAD, lines), note]
    if means:
        parts += [markdown(MEAN_HEAD, means), MEAN_NOTE]
    if store.refused:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in store.refused.items())
        parts.append(f"Not measured: {reasons}.")
    return "\n\n".join(parts)


def _line(cell: Cell) -> list[Any]:
    peer = peer_of(cell)
    found: list[Any] = [f"{statistics.median(of_rounds(cell, peer)):.3g} ({peer})"]
    for setting in SETTINGS:
        fractions = of_rounds(cell, setting, "roof_fraction")
        part = "-" if None in fractions else f"{statistics.median(fractions):.2f}"
        speed = statistics.median(of_rounds(cell, setting))
        found += [f"{speed:.3g}", f"{ratio(cell, setting):.2f}", part]
    return [*found, cell["machine"]]


def ratios(stored: Iterable[Cells], row: str, case: str, setting: str) -> list[float]:
    """Return the ratios of a case in all results, the lowest first."""
    cells = [found[row][case] for found in stored if case in found.get(row, {})]
    return sorted(ratio(cell, setting) for cell in cells)
