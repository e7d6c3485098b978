"""The table of benchmarks/README.md: what each benchmark found, with cells of its stored results.

`<!-- findings -->` is filled with the table of benchmarks/findings.toml and ends at `<!-- end -->`.
`tools/readme.py` calls this.
"""

from __future__ import annotations

import re
from pathlib import Path

import cells

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "benchmarks/findings.toml"
MARKED = re.compile(r"(<!-- findings -->\n).*?(<!-- end -->)", re.DOTALL)


def table(source: Path = SOURCE) -> str:
    """Return the table.

    Raises:
        KeyError: A finding names a cell that no stored table has.
    """
    lines = ["| `python -m benchmarks.` | finding | page |", "| --- | --- | --- |"]
    for script, finding, page, results in cells.described(source)["findings"]:
        pages = [source.parent / f"{result}.md" for result in results.split()]
        lines.append(f"| `{script}` | {cells.filled(finding, pages)} | {page} |")
    return "\n".join(lines) + "\n"


def filled(text: str) -> str:
    """Return a page's text with its marker filled."""
    return MARKED.sub(lambda match: f"{match[1]}{table()}{match[2]}", text)
