"""Draw the techniques' table of the README, and their pages, from docs/techniques.toml.

A marker `<!-- techniques -->` is followed by the table and `<!-- end -->`. Figures are cells of
stored tables, which `tools/readme.py` keeps in step with their results; none is written by hand.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "docs/techniques.toml"


def entries() -> list[dict[str, Any]]:
    """Return the entries of docs/techniques.toml, in their order."""
    found: list[dict[str, Any]] = tomllib.loads(SOURCE.read_text(encoding="utf-8"))["technique"]
    return found


def cells(page: str, row: str) -> dict[str, str]:
    """Return the cells, by heading, of the first row of a Markdown page that is called `row`.

    Raises:
        KeyError: No table of the page has such a row.
    """
    heading: list[str] = []
    lines = page.splitlines()
    for number, line in enumerate(lines):
        if not line.startswith("|"):
            continue
        own = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if number + 1 < len(lines) and set(lines[number + 1]) <= set("|-: ") and lines[number + 1]:
            heading = own
        elif own[0].strip("`") == row:
            return dict(zip(heading, own, strict=True))
    raise KeyError(row)


def measured(entry: dict[str, Any]) -> str:
    """Return what an entry says of its cost, with the figures of its row; empty without one."""
    if "says" not in entry:
        return ""
    page = (ROOT / entry["result"]).read_text(encoding="utf-8")
    said: str = entry["says"].format_map(cells(page, entry["row"]))
    return said


def table() -> str:
    """Return the README's table."""
    lines = ["| seam | technique | what it does | from | measured on SmolLM2-135M |"]
    lines.append("| --- | --- | --- | --- | --- |")
    seam = ""
    for entry in entries():
        first = f"`--{entry['seam']}`" if entry["seam"] != seam else ""
        seam = entry["seam"]
        row = (first, f"`{entry['name']}`", entry["does"], entry["from"], measured(entry))
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"
