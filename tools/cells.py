"""Text with cells of stored tables: `{row | column}` is replaced by that cell of a page's tables.

`{row; cell | column}` is in the row that has both cells. A `;` in round brackets separates nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BOTH = re.compile(r";(?![^(]*\))")
CELL = re.compile(r"\{([^{}|]+)\|([^{}|]+)\}")


def described(source: Path) -> dict[str, Any]:
    """Return what a file in TOML says, whose text may name cells."""
    return tomllib.loads(source.read_text(encoding="utf-8"))


def filled(text: str, pages: Iterable[Path]) -> str:
    """Return a text with the cells of the tables of some pages; those that do not exist have none.

    Raises:
        KeyError: No table has such a cell.
    """
    tables = [page.read_text(encoding="utf-8") for page in pages if page.exists()]

    def cell(match: re.Match[str]) -> str:
        row, column = ([each.strip() for each in BOTH.split(part)] for part in match.groups())
        for table in tables:
            for named, cells in rows(table):
                if column[0] in named and set(row) <= {each.strip("`") for each in cells}:
                    return cells[named.index(column[0])].strip("*")
        raise KeyError(match.group())

    return CELL.sub(cell, text)


def rows(page: str) -> list[tuple[list[str], list[str]]]:
    """Return the rows of the tables of a page in Markdown, each with the headings of its table."""
    heading: list[str] = []
    found = []
    for line, below in pairwise([*page.splitlines(), ""]):
        if not line.startswith("|"):
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if below and set(below) <= set("|-: "):
            heading = cells
        elif not set(line) <= set("|-: "):
            found.append((heading, cells))
    return found
