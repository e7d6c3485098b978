"""Results that are kept cell by cell, so that an interrupted benchmark goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import record
from suffice.errors import InputError

Cell = dict[str, Any]
Cells = dict[str, dict[str, Cell]]  # by row, by column


@dataclass
class Sheet:
    """What was measured so far, in its file; `drawn` makes the table of it."""

    folder: Path
    name: str
    config: dict[str, Any]  # what figures depend on beside the setting
    facts: dict[str, Any]
    drawn: Callable[[Sheet], str]
    cells: Cells = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def read(self) -> None:
        """Take what the file has.

        Raises:
            InputError: It is of another configuration.
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

    def keep(self, row: str, column: str, cell: Cell) -> None:
        """Add a cell and write the file."""
        self.cells.setdefault(row, {})[column] = cell
        self.write()

    def write(self) -> None:
        """Write the file and its table."""
        data = self.facts | {"engine": self.config, "refused": self.refused}
        record.write(self.folder, self.name, data | {"cells": self.cells}, self.drawn(self))
