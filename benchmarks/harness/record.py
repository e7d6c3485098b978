"""Writes result files, with the machine, the versions and the command.

A result is NAME.json with its table NAME.md. Details that no table needs, such as counts of single
heads and times of single prompts, are in NAME.details.json.gz.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

from suffice import native
from suffice.eval import record
from suffice.paths import write_whole

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build"


def facts() -> dict[str, Any]:
    """Return the facts needed to judge or repeat a measurement."""
    return record.facts(program(), sys.argv[1:])


def program() -> str:
    """Return the command that starts the running script."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return f"python -m {spec.name}" if spec else f"python {Path(sys.argv[0]).name}"


def results(script: str) -> Path:
    """Return the folder of the results of a script, given its `__file__`."""
    return Path(script).parent / "results"


def name_of(name: str) -> str:
    """Return a file's name, with the instruction set if a lesser one was asked for."""
    return name if native.isa() == native.isas()[0] else f"{name}_{native.isa()}"


def write(folder: Path, name: str, data: dict[str, Any], table: str) -> None:
    """Write `name`.json and `name`.md; a reader never sees half a file."""
    _replace(folder / f"{name}.json", (json.dumps(data, indent=1) + "\n").encode())
    _replace(folder / f"{name}.md", (table + "\n").encode())


def write_details(folder: Path, name: str, details: dict[str, Any]) -> None:
    """Write details to `name`.details.json.gz.

    The same details make the same bytes, whenever they are written.
    """
    text = json.dumps(details, separators=(",", ":")) + "\n"
    _replace(folder / f"{name}.details.json.gz", gzip.compress(text.encode(), mtime=0))


def read_details(folder: Path, name: str) -> dict[str, Any]:
    """Return the details that `write_details` wrote; an empty dictionary without a file."""
    path = folder / f"{name}.details.json.gz"
    if not path.exists():
        return {}
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_whole(path) as part:
        part.write_bytes(content)
