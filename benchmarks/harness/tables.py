"""Tables in Markdown, and results kept cell by cell: an interrupted benchmark can resume."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import record
from suffice.errors import InputError

Cell = dict[str, Any]
Cells = dict[str, dict[str, Cell]]  # by row, by column


def markdown(head: list[str], rows: list[list[Any]]) -> str:
    """Return a table; columns of numbers, also incomplete ones, have 3 digits and align right."""
    numeric = [
        all(row[i] == "" or isinstance(row[i], int | float) for row in rows)
        for i in range(len(head))
    ]
    lines = [head, ["---:" if right else "---" for right in numeric]]
    lines += [[_shown(value) for value in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _shown(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.2e}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


@dataclass
class CellStore:
    """The measured cells so far, with their file; `drawn` formats them as a table."""

    folder: Path
    name: str
    config: dict[str, Any]  # everything that figures depend on, except the setting
    facts: dict[str, Any]
    drawn: Callable[[CellStore], str]
    cells: Cells = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    details: Cells = field(default_factory=dict)  # parts of cells that `drawn` does not need
    of_settings: dict[str, Cell] = field(default_factory=dict)  # for new cells of a row or column

    def read(self) -> None:
        """Read the file's cells.

        Raises:
            InputError: The file has another configuration.
        """
        path = self.folder / f"{self.name}.json"
        if not path.exists():
            return
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["engine"] != self.config:
            raise InputError(
                f"{path} is of {found['engine']}, not of {self.config}: give another folder with "
                "--out"
            )
        self.cells, self.refused = found["cells"], found["refused"]
        self.details = record.read_details(self.folder, self.name)

    def keep(self, row: str, column: str, cell: Cell, details: Any = None) -> None:
        """Add a cell and write the files."""
        self.cells.setdefault(row, {})[column] = {
            **cell,
            **self.of_settings.get(row, {}),
            **self.of_settings.get(column, {}),
        }
        if details is not None:
            self.details.setdefault(row, {})[column] = details
            record.write_details(self.folder, self.name, self.details)
        self.write()

    def write(self) -> None:
        """Write the file and its table."""
        data = self.facts | {"engine": self.config, "refused": self.refused}
        record.write(self.folder, self.name, data | {"cells": self.cells}, self.drawn(self))
