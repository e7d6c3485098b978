"""Write docs/papers.md from docs/papers.toml: the state of each item of each paper here.

With `--check`, only report whether the page is up to date. Fails if the table names a file that
does not exist, or a status without an explanation.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
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
    difference: str


def papers(text: str) -> list[tuple[dict[str, Any], list[Item]]]:
    """Return each paper's facts and its items."""
    return [
        (paper, [Item(*row) for row in paper["items"]]) for paper in tomllib.loads(text)["paper"]
    ]


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
    return bad


def page(text: str) -> str:
    """Return the page in Markdown."""
    lines = ["# The papers, item by item", ""]
    lines += ["Generated from [papers.toml](papers.toml) by `python tools/papers.py`.", ""]
    lines += [f"* **{status}**: {meaning}" for status, meaning in STATUSES.items()]
    for paper, items in papers(text):
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
        lines += ["| item | in the paper | status | code | tests | results | difference or gap |"]
        lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
        for item in items:
            links = (_links(paths) for paths in (item.code, item.tests, item.results))
            cells = [item.what, item.place, item.status, *links, item.difference]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _links(paths: str) -> str:
    return ", ".join(f"[{Path(path).name}](../{path})" for path in paths.split())


def main() -> int:
    """Write the page, or with `--check` return 1 if it would change."""
    text = (ROOT / SOURCE).read_text(encoding="utf-8")
    bad = complaints([item for _, items in papers(text) for item in items], ROOT)
    for line in bad:
        print(f"{SOURCE}: {line}")
    written, target = page(text), ROOT / PAGE
    if "--check" not in sys.argv[1:]:
        target.write_text(written, encoding="utf-8")
    elif not target.exists() or target.read_text(encoding="utf-8") != written:
        bad.append(str(PAGE))
        print(f"{PAGE} is out of date: run python tools/papers.py")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
