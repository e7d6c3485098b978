"""Attention-block time against the number of allocations; shared parts of the figures in bmc.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

from benchmarks.growth import block
from benchmarks.growth.block import Block, Drafts, Sampling, Shape, Times
from benchmarks.harness import figures, record
from benchmarks.harness.tables import markdown
from suffice.cache import machine
from suffice.cache.bmc import BMC
from suffice.cache.cost import GrowthCosts, best_allocations, nearest_power_of_two

ALLOCATIONS = "allocations T (1: upfront, N: iterative)"


@dataclass
class Run:
    """Settings that all figures share: rates, sizes, result folder and progress display."""

    rates: machine.Machine
    folder: Path
    quick: bool
    sampling: Sampling
    progress: Progress

    def rows(self, limit: int) -> int:
        """Return a context length, reduced in a quick run."""
        return min(limit, 64) if self.quick else limit

    def requests(self, batch: int) -> int:
        """Return a batch size, reduced in a quick run."""
        return min(batch, 2) if self.quick else batch

    def predicted(self, limit: int, **workload: float) -> int:
        """Return the model's T, a power of two."""
        costs = GrowthCosts.of_ratio(self.rates.ratio, **workload)
        return nearest_power_of_two(best_allocations(limit, costs))

    def track(self, what: str, items: Iterable[Any]) -> Iterable[Any]:
        """Iterate over `items` with a progress line."""
        listed = list(items)
        return self.progress.track(listed, description=what, total=len(listed))

    def save(
        self, name: str, title: str, head: list[str], rows: list[list[Any]], note: str
    ) -> None:
        """Write a figure's table and JSON."""
        ratio = self.rates.ratio
        data = record.facts() | {
            "title": title,
            "note": note,
            "quick": self.quick,
            "threads": torch.get_num_threads(),
            "sampling": dataclasses.asdict(self.sampling),
            "rates": dataclasses.asdict(self.rates) | {"ratio": ratio},
            "rows": [dict(zip(head, row, strict=True)) for row in rows],
        }
        text = [f"## {title}", "", markdown(head, rows), "", note]
        text += ["", f"{data['machine']['cpu']}, {data['threads']} threads, C' = {ratio:.3g}."]
        record.write(self.folder, name, data, "\n".join(text))


PLAIN = Drafts()


def sweep(
    run: Run, shape: Shape, batch: int, limit: int, drafts: Drafts = PLAIN
) -> dict[int, Times]:
    """Time every power-of-two T from 1 (upfront) to the number of steps (iterative)."""
    body = Block(shape, run.requests(batch), limit, drafts)
    block.warm_up(body)
    steps = limit // drafts.gained
    counts = [2**power for power in range(steps.bit_length()) if 2**power <= steps]
    return {
        count: body.decode(BMC(rows=limit // count), sampling=run.sampling)
        for count in run.track(f"{shape.name} N={limit}", counts)
    }


def tell_sweeps(
    run: Run,
    name: str,
    title: str,
    results: dict[tuple[str, int], dict[int, Times]],
    marks: dict[str, float],
    note: str,
) -> None:
    """Write and plot sweeps: a line per (label, N), relative to its slowest end."""
    head = ["model", "N", "T", "seconds", "over upfront", "over iterative", "model's T"]
    rows, lines = [], {}
    for (label, limit), times in results.items():
        first, last = times[1].total, times[max(times)].total
        for count, each in times.items():
            chosen = "x" if marks[f"{label} N={limit}"] == count else ""
            each_row = [label, limit, count, each.total, first / each.total, last / each.total]
            rows.append([*each_row, chosen])
        lines[f"{label} N={limit}"] = [
            (float(count), each.total / first) for count, each in times.items()
        ]
    run.save(name, title, head, rows, note)
    figures.curves(
        run.folder / f"{name}.png",
        title,
        (ALLOCATIONS, "time over upfront's"),
        lines,
        marks={f"model: {label}": value for label, value in marks.items()},
        logarithmic="xy",
    )


def sweeps_of(
    run: Run, name: str, title: str, shapes: list[Shape], limits: list[int], batch: int, note: str
) -> None:
    """Sweep T for several models and lengths."""
    results, marks = {}, {}
    for shape in shapes:
        for limit in dict.fromkeys(run.rows(limit) for limit in limits):
            results[shape.name, limit] = sweep(run, shape, batch, limit)
            marks[f"{shape.name} N={limit}"] = float(run.predicted(limit))
    tell_sweeps(run, name, title, results, marks, note)
