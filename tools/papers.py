"""Write docs/papers.md from docs/papers.toml: the state of each item of each paper here.

With `--check`, only report whether the page is up to date. Fails if the table names a file that
does not exist, and if an item has neither a value nor a reason: what is measured has a value, and
what is not, or is compared with a figure of the paper, says why. Values and reasons are text with
cells of stored tables, see `tools/cells.py`, of the pages next to the item's results. Every figure
and table of a paper, which are counted by `figures` and `tables`, must have an item.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import cells

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT))

SOURCE, PAGE = Path("docs/papers.toml"), Path("docs/papers.md")
STATUSES = {
    "measured": "implemented, tested, and measured in a stored result",
    "implemented": "implemented and tested, no stored result",
    "partial": "a part is missing or replaced; the last column says which",
    "absent": "not here",
}


class Item(NamedTuple):
    """A figure, table or section of a paper; paths are separated by blanks."""

    what: str
    place: str
    status: str
    code: str
    tests: str
    results: str
    value: str
    difference: str


ROMAN = {"I": 1, "II": 2, "III": 3, "IV": 4, "V": 5, "VI": 6, "VII": 7, "VIII": 8, "IX": 9, "X": 10}
PUBLISHED = re.compile(r"paper[^:]*: [^;]*\d")  # a value that has a figure of the paper


def papers(source: Path) -> list[tuple[dict[str, Any], list[Item]]]:
    """Return each paper's facts and its items."""
    found = cells.described(source)["paper"]
    return [(paper, [Item(*row) for row in paper["items"]]) for paper in found]


def complaints(items: list[Item], root: Path) -> list[str]:
    """Return a line for every unknown status and every path that does not exist."""
    bad = [
        f"{item.what}: unknown status '{item.status}'"
        for item in items
        if item.status not in STATUSES
    ]
    for item in items:
        named = f"{item.code} {item.tests} {item.results}".split()
        bad += [
            f"{item.what}: {path} does not exist" for path in named if not (root / path).exists()
        ]
        if item.status == "measured" and not item.results:
            bad.append(f"{item.what}: measured, but no result is named")
        if item.status == "measured" and not item.value:
            bad.append(f"{item.what}: measured, but has no value")
        if item.status != "measured" and not item.difference:
            bad.append(f"{item.what}: {item.status}, but has no reason")
        if PUBLISHED.search(item.value) and not item.difference:
            bad.append(f"{item.what}: differs from the paper's figure, but has no reason")
        try:
            filled(item.value, item, root)
            filled(item.difference, item, root)
        except KeyError as missing:
            bad.append(f"{item.what}: {missing.args[0]}")
    return bad


def uncovered(paper: dict[str, Any], items: list[Item]) -> list[str]:
    """Return a line for every figure and table of a paper that no item names."""
    named = set().union(*(numbered(item.place) for item in items))
    return [
        f"{paper['name']}: no item names {kind} {number}"
        for kind, count in (("Fig.", paper["figures"]), ("Table", paper["tables"]))
        for number in range(1, count + 1)
        if (kind, number) not in named
    ]


def numbered(place: str) -> set[tuple[str, int]]:
    """Return the figures and tables in a text such as `V-A, Fig. 2, 3, Table IV, V`."""
    found, kind = set(), ""
    for part in place.split(", "):
        first, _, rest = part.partition(" ")
        if rest:
            kind = first if first in ("Fig.", "Table") else ""
        number = rest or first
        value = int(number) if number.isdecimal() else ROMAN.get(number)
        if kind and value:
            found.add((kind, value))
        else:
            kind = ""
    return found


def filled(text: str, item: Item, root: Path) -> str:
    """Return a text of an item with the cells of its results' pages.

    Raises:
        KeyError: No table has such a cell.
    """
    return cells.filled(text, [(root / path).with_suffix(".md") for path in item.results.split()])


def page(source: Path, root: Path = ROOT) -> str:
    """Return the page in Markdown."""
    lines = ["# The papers, item by item", ""]
    lines += ["Generated from [papers.toml](papers.toml) by `python tools/papers.py`.", ""]
    lines += [
        "Values are cells of the stored tables named in the row; a script such as "
        "`benchmarks/attention/art.py` is run by `python -m benchmarks.attention.art`.",
        "",
    ]
    lines += [f"* **{status}**: {meaning}" for status, meaning in STATUSES.items()]
    for paper, items in papers(source):
        counts = Counter(item.status for item in items)
        summary = ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])
        names = ", ".join(f"`{name}`" for name in paper["techniques"].split())
        lines += [
            "",
            f"## {paper['name']}",
            "",
            f"{paper['title']}. Techniques: {names}. {summary}.",
            "",
        ]
        heads = ("item", "in the paper", "status", "code", "tests", "results")
        heads += ("value, and the paper's", "difference or gap")
        lines += [f"| {' | '.join(heads)} |", f"| {' | '.join(['---'] * len(heads))} |"]
        for item in items:
            links = (_links(paths) for paths in (item.code, item.tests, item.results))
            line = [item.what, item.place, item.status, *links]
            line += [
                filled(item.value, item, root),
                filled(item.difference, item, root),
            ]
            lines.append(f"| {' | '.join(line)} |")
    return "\n".join(lines) + "\n"


def _links(paths: str) -> str:
    return ", ".join(f"[{Path(path).name}](../{path})" for path in paths.split())


def main() -> int:
    """Write the page, or with `--check` return 1 if it would change."""
    known = papers(ROOT / SOURCE)
    bad = complaints([item for _, items in known for item in items], ROOT)
    bad += [line for paper, items in known for line in uncovered(paper, items)]
    for line in bad:
        print(f"{SOURCE}: {line}")
    if bad:
        return 1
    written, target = page(ROOT / SOURCE), ROOT / PAGE
    if "--check" not in sys.argv[1:]:
        target.write_text(written, encoding="utf-8")
    elif not target.exists() or target.read_text(encoding="utf-8") != written:
        bad.append(str(PAGE))
        print(f"{PAGE} is out of date: run python tools/papers.py")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
