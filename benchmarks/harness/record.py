"""What every result file says about itself: machine, versions, commit, command, date."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from suffice import native
from suffice.eval import record

RESULTS = Path(__file__).parent / "results"


def facts() -> dict[str, Any]:
    """Return what a reader needs to judge or repeat a measurement."""
    return record.facts(f"python benchmarks/{Path(sys.argv[0]).name}", sys.argv[1:])


def name_of(name: str) -> str:
    """Return a file's name, which says so where a lesser instruction set was asked for."""
    return name if native.isa() == native.isas()[0] else f"{name}_{native.isa()}"


def write(folder: Path, name: str, data: dict[str, Any], table: str) -> None:
    """Write `name`.json and `name`.md; a reader never sees half a file."""
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, text in (("json", json.dumps(data, indent=1) + "\n"), ("md", table + "\n")):
        part = folder / f"{name}.{suffix}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(folder / f"{name}.{suffix}")


def markdown(head: list[str], rows: list[list[Any]]) -> str:
    """Return a table; columns of numbers, some missing, are aligned to the right, three digits."""
    numeric = [
        all(row[i] == "" or isinstance(row[i], int | float) for row in rows)
        for i in range(len(head))
    ]
    lines = [head, ["---:" if right else "---" for right in numeric]]
    lines += [[_cell(value) for value in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.2e}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
