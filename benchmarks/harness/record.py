"""Result files: how one is written, and what it says of its machine, versions and command.

A result is NAME.json with its table NAME.md. What no table reads, such as the counts of single
heads and the times of single prompts, goes into NAME.details.json.gz.
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
    """Return what a reader needs to judge or repeat a measurement."""
    return record.facts(program(), sys.argv[1:])


def program() -> str:
    """Return how the running script is started."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return f"python -m {spec.name}" if spec else f"python {Path(sys.argv[0]).name}"


def results(script: str) -> Path:
    """Return the folder of the results of a script, given its `__file__`."""
    return Path(script).parent / "results"


def name_of(name: str) -> str:
    """Return a file's name, which says so where a lesser instruction set was asked for."""
    return name if native.isa() == native.isas()[0] else f"{name}_{native.isa()}"


def write(folder: Path, name: str, data: dict[str, Any], table: str) -> None:
    """Write `name`.json and `name`.md; a reader never sees half a file."""
    _replace(folder / f"{name}.json", (json.dumps(data, indent=1) + "\n").encode())
    _replace(folder / f"{name}.md", (table + "\n").encode())


def write_details(folder: Path, name: str, details: dict[str, Any]) -> None:
    """Write what no table reads to `name`.details.json.gz.

    The same details make the same bytes, whenever they are written.
    """
    text = json.dumps(details, separators=(",", ":")) + "\n"
    _replace(folder / f"{name}.details.json.gz", gzip.compress(text.encode(), mtime=0))


def read_details(folder: Path, name: str) -> dict[str, Any]:
    """Return what `write_details` wrote; nothing where there is no such file."""
    path = folder / f"{name}.details.json.gz"
    if not path.exists():
        return {}
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_whole(path) as part:
        part.write_bytes(content)
