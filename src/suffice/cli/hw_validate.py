"""`suffice hw validate`: the table of all checks."""

from __future__ import annotations

import dataclasses

from suffice.cli.results import check_output, drawn
from suffice.errors import unknown
from suffice.hw import checks
from suffice.progress import progress_bar

COLUMNS = ("id", "check", "published", "ours", "status", "source", "note")


def run(parts: tuple[str, ...], output: str) -> int:
    """Compute the checks of some parts (default: of all), print them, return the exit code.

    Raises:
        InputError: A part or a form of output that is unknown.
    """
    check_output(output)
    for part in parts:
        if part not in checks.PARTS:
            raise unknown("part", part, checks.PARTS)
    chosen = parts or checks.PARTS
    groups = [group for part in chosen for group in checks.of(part)]
    found: list[checks.Check] = []
    with progress_bar(shown=True) as bar:
        task = bar.add_task("checks", total=len(groups))
        for group in groups:
            found += group()
            bar.advance(task)
    rows = [(c.id, c.what, c.published, c.ours, c.status, c.source, c.expected) for c in found]
    print(
        drawn([dataclasses.asdict(c) | {"status": c.status} for c in found], COLUMNS, rows, output)
    )
    return int(any(check.status == "miss" for check in found))
