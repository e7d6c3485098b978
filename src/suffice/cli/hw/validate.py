"""`suffice hw validate`: the table of all checks."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

from suffice.cli.eval.results import check_output, drawn
from suffice.errors import unknown
from suffice.progress import progress_bar
from suffice_hw import checks
from suffice_hw.scrooge import trace_checks
from suffice_hw.scrooge.logits import Trace

COLUMNS = ("id", "check", "published", "ours", "status", "source", "note")


def run(parts: tuple[str, ...], output: str, traces: list[Path], runs: list[Path]) -> int:
    """Compute the checks of some parts (default: all), print them, return the exit code.

    The checks of `traces` and `runs` follow. If no parts are given, they are the only ones.

    Raises:
        InputError: A part or output format is unknown, a file is no trace, or a folder holds no
            run.
    """
    check_output(output)
    for part in parts:
        if part not in checks.PARTS:
            raise unknown("part", part, checks.PARTS)
    chosen = parts or (() if traces or runs else checks.PARTS)
    groups = [group for part in chosen for group in checks.of(part)]
    groups += [functools.partial(trace_checks.of, Trace.load(path)) for path in traces]
    groups += [functools.partial(trace_checks.by_loss, runs)] if runs else []
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
