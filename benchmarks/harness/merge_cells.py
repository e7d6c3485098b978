"""Join the results of processes that measured different cells of one benchmark.

    python -m benchmarks.harness.merge_cells OUT PART...

Each part is the .json file of a benchmark that stores cell by cell (see `tables.CellStore`); the
joined result and its table go to the folder OUT. All parts must be of one commit, one machine and
one configuration, and a cell that several have must be the same in each. The command of the joined
result is all of theirs, side by side.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.harness import record
from benchmarks.harness.script import printed
from benchmarks.harness.tables import CellStore
from suffice.errors import InputError

OWN = ("date", "command", "cells", "refused")  # what parts may differ in
_MODULE = re.compile(r"python -m (benchmarks\.[\w.]+)( |$)")


def merged(folder: Path, paths: list[Path]) -> str:
    """Write the joined result of parts to a folder; return its table.

    Raises:
        InputError: A file that is no such part, or parts that do not belong together.
    """
    parts = {path: _read(path) for path in paths}
    (path, first), *others = parts.items()
    for other, part in others:
        if other.name != path.name:
            raise InputError(f"{other} and {path} have different names: join parts of one result")
        _check(path, first, other, part)
    facts = {name: value for name, value in first.items() if name not in (*OWN, "engine")}
    facts["date"] = min(part["date"] for part in parts.values())
    facts["command"] = " & ".join(part["command"] for part in parts.values())
    store = CellStore(folder, path.stem, first["engine"], facts, _table(path, first))
    for own, part in parts.items():
        _add(store.cells, part["cells"], own)
        _add(store.details, record.read_details(own.parent, own.stem), own)
        store.refused |= part["refused"]
    store.write()
    if store.details:
        record.write_details(folder, store.name, store.details)
    return store.drawn(store)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    needed = {*OWN, "engine"}
    if not isinstance(found, dict) or not needed <= found.keys():
        raise InputError(f"{path}: is no result that is stored cell by cell")
    return found


def _check(path: Path, first: dict[str, Any], other: Path, part: dict[str, Any]) -> None:
    for name in sorted((first.keys() | part.keys()) - {*OWN}):
        ours, theirs = first.get(name), part.get(name)
        if ours != theirs:
            raise InputError(f"{name} of {other} is {theirs}, of {path} {ours}: must be the same")


def _table(path: Path, part: dict[str, Any]) -> Callable[[CellStore], str]:
    """Return what formats the results of the benchmark that wrote a part."""
    found = _MODULE.search(part["command"])
    try:
        table: Callable[[CellStore], str] = import_module(found[1] if found else "").table
    except (ImportError, AttributeError, ValueError):
        raise InputError(f"{path}: no known benchmark wrote it: {part['command']}") from None
    return table


def _add(cells: dict[str, dict[str, Any]], more: dict[str, dict[str, Any]], path: Path) -> None:
    """Add the cells of a part, by row and column.

    Raises:
        InputError: One is there already, and differs.
    """
    for row, columns in more.items():
        known = cells.setdefault(row, {})
        for column, cell in columns.items():
            if known.setdefault(column, cell) != cell:
                raise InputError(f"{path}: its cell {row}, {column} differs from an earlier part's")


def main() -> int:
    """Join the parts that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="folder for the joined result")
    parser.add_argument("parts", type=Path, nargs="+", metavar="PART", help=".json file of a part")
    flags = parser.parse_args()
    return printed("merge_cells", lambda: merged(flags.out, flags.parts))


if __name__ == "__main__":
    sys.exit(main())
