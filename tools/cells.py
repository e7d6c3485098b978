"""Text with cells of stored tables: `{row | column}` is replaced by that cell of a page's tables.

`{row; cell | column}` is in the row that has both cells; one of them may also be another column of
its table, the line above the table, or a part of that line between commas. A `;` in round brackets
separates nothing.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

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
        KeyError: No table has such a cell, or rows with several values match.
    """
    found = [row for page in pages if page.exists() for row in rows(page.read_text("utf-8"))]

    def cell(match: re.Match[str]) -> str:
        asked, column = Counter(each.strip() for each in BOTH.split(match[1])), match[2].strip()
        values = {
            row.cells[row.heading.index(column)].strip("*")
            for row in found
            if column in row.heading and row.has(asked)
        }
        if len(values) != 1:
            found_in = "several rows of stored tables have" if values else "no stored table has"
            raise KeyError(f"{found_in} {match.group()}")
        return values.pop()

    return CELL.sub(cell, text)


class Row(NamedTuple):
    """A row of a table in Markdown: its cells, the table's heading, and the line above that."""

    heading: list[str]
    cells: list[str]
    above: str

    def has(self, asked: Counter[str]) -> bool:
        """Return whether each text is a cell of the row as often, a column, or in the line above.

        Of the line above it is the whole or a part between commas.
        """
        own = Counter(each.strip("`") for each in self.cells)
        rest = asked - own
        return set(rest) <= {*self.heading, self.above, *self.above.split(", ")}


def rows(page: str) -> list[Row]:
    """Return the rows of the tables of a page in Markdown."""
    heading: list[str] = []
    above, found = "", []
    for line, below in pairwise([*page.splitlines(), ""]):
        if not line.startswith("|"):
            above = line.strip("# ") or above
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if below and set(below) <= set("|-: "):
            heading = cells
        elif not set(line) <= set("|-: "):
            found.append(Row(heading, cells, above))
    return found
