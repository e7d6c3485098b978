"""Write the tables of stored results again, after a change of their words; measures nothing.

python -m benchmarks.redraw    then: python tools/readme.py
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.attention import (
    art,
    bounds,
    by_head,
    longbench,
    policy_speed,
    prompts,
    quality_table,
    ruler,
    selection_table,
    selector_ruler,
)
from benchmarks.attention import tasks as softmax_tasks
from benchmarks.engine import (
    adapters,
    experts,
    kept_prompts,
    left_out,
    long_contexts,
    recurrences,
    sampling,
    step_parts,
)
from benchmarks.growth import paged, shares, use_cases, varied
from benchmarks.harness.record import ROOT
from benchmarks.harness.tables import CellStore
from benchmarks.peers import report, sizes_report, start_report
from benchmarks.quant import files_table, tasks
from benchmarks.quant import quality_table as quant_table
from benchmarks.serve import bars, disconnects, division, exactness, nodes, simulated, soak
from benchmarks.speculate import speed, trees_report

Draw = Callable[[Path, dict[str, Any]], str]


def of_cells(table: Callable[[CellStore], str]) -> Draw:
    """Return a function that formats a result stored cell by cell."""

    def draw(path: Path, data: dict[str, Any]) -> str:
        store = CellStore(path.parent, path.stem, data["engine"], {}, table)
        store.read()
        return store.drawn(store)

    return draw


def of_drafts(path: Path, data: dict[str, Any]) -> str:
    """Return the table of drafts compared with peers', or of trees compared with chains."""
    return of_cells(trees_report.table if path.stem.startswith("trees") else speed.table)(
        path, data
    )


DRAWN: dict[str, Draw] = {
    "attention/results/quality*.json": lambda _, data: quality_table.table(
        data["records"], data["refused"]
    ),
    "attention/results/bounds.json": of_cells(bounds.table),
    "attention/results/longbench_*.json": of_cells(longbench.table),
    "attention/results/policy_speed.json": lambda _, data: policy_speed.table(data),
    "attention/results/by_head.json": of_cells(by_head.table),
    "attention/results/prompts.json": of_cells(prompts.table),
    "attention/results/ruler_*.json": of_cells(ruler.table),
    "attention/results/selection*.json": of_cells(selection_table.table),
    "attention/results/selector_ruler*.json": of_cells(selector_ruler.table),
    "attention/results/tasks_*.json": of_cells(softmax_tasks.table),
    "attention/results/art.json": lambda _, data: art.table(data, data["about"]),
    "engine/results/adapters.json": lambda _, data: adapters.table(data),
    "engine/results/experts*.json": lambda _, data: experts.table(data),
    "engine/results/kept_prompts.json": lambda _, data: kept_prompts.table(data),
    "engine/results/left_out.json": lambda _, data: left_out.table(data),
    "engine/results/long_contexts.json": of_cells(long_contexts.table),
    "engine/results/recurrences.json": lambda _, data: recurrences.table(data),
    "engine/results/sampling.json": lambda _, data: sampling.table(data),
    "engine/results/step_parts.json": lambda _, data: step_parts.table(data),
    "growth/results/paged.json": lambda _, data: paged.table(data),
    "growth/results/shares.json": lambda _, data: shares.table(data),
    "growth/results/use_cases.json": lambda _, data: use_cases.report(data),
    "growth/results/varied.json": lambda _, data: varied.report(data),
    "peers/results/sizes_*.json": of_cells(sizes_report.table),
    "peers/results/speed.json": lambda _, data: report.report(data),
    "peers/results/start.json": lambda _, data: start_report.report(data),
    "quant/results/files.json": lambda _, data: files_table.tables(data),
    "quant/results/quality_*.json": of_cells(quant_table.table),
    "quant/results/tasks_*.json": of_cells(tasks.table),
    "serve/results/speed.json": lambda _, data: bars.report(data),
    "serve/results/disconnects.json": lambda _, data: disconnects.table(data),
    "serve/results/division.json": lambda _, data: division.table(data),
    "serve/results/exactness*.json": lambda _, data: exactness.table(data),
    "serve/results/nodes.json": lambda _, data: nodes.table(data),
    "serve/results/simulated.json": lambda _, data: simulated.table(data),
    "serve/results/soak.json": lambda _, data: soak.table(data),
    "speculate/results/speed_*.json": of_cells(speed.table),
    "speculate/results/[pt]*_*.json": of_drafts,
}


def stored() -> dict[Path, str]:
    """Return the table of each stored result that its summary suffices for."""
    return {
        path: draw(path, json.loads(path.read_text(encoding="utf-8")))
        for pattern, draw in DRAWN.items()
        for path in sorted((ROOT / "benchmarks").glob(pattern))
    }


if __name__ == "__main__":
    for result, drawn in stored().items():
        result.with_suffix(".md").write_text(drawn + "\n", encoding="utf-8")
