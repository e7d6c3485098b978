"""`suffice hw validate`: the table of all checks."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from pathlib import Path

from suffice.cli.eval.results import check_output, drawn
from suffice.cli.output import markdown
from suffice.errors import unknown
from suffice.progress import progress_bar
from suffice_hw import checks
from suffice_hw.scrooge import trace_checks
from suffice_hw.scrooge.logits import Trace

COLUMNS = ("group", "check", "published", "ours", "status", "source", "note")
STATUSES = ("hit", "known miss", "miss", "not run")


def run(
    parts: tuple[str, ...], output: str | None, full: bool, traces: list[Path], runs: list[Path]
) -> int:
    """Compute the checks of some parts (default: all), print them, return the exit code.

    Without `output` or `full`, each group of checks is a line, and the verdict comes last. The
    checks of `traces` and `runs` follow. If no parts are given, they are the only ones.

    Raises:
        InputError: A part or output format is unknown, a file is no trace, or a folder holds no
            run.
    """
    if output is not None:
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
    failed = int(any(check.status == "miss" for check in found))
    if output is None and not full:
        print(_counted(found))
        print(verdict(found))
        return failed
    rows = [(c.group, c.what, c.published, c.ours, c.status, c.source, c.expected) for c in found]
    plain = [dataclasses.asdict(c) | {"status": c.status} for c in found]
    print(drawn(plain, COLUMNS, rows, output or "md"))
    if output is None:
        print(verdict(found))
    return failed


def _counted(found: list[checks.Check]) -> str:
    """Return a table that fits a terminal: how many checks of each group hit or miss."""
    groups: dict[str, Counter[str]] = {}
    for check in found:
        groups.setdefault(check.group, Counter())[check.status] += 1
    rows = [
        (group, *(counts[status] or "" for status in STATUSES)) for group, counts in groups.items()
    ]
    return markdown(["group", *STATUSES], rows)


def verdict(found: list[checks.Check]) -> str:
    """Return what the checks say, in a line or two."""
    counts = Counter(check.status for check in found)
    missing = counts["miss"]
    said = f"{'FAILED' if missing else 'PASSED'}: {counts['hit']} of {len(found)} figures agree"
    if counts["known miss"]:
        said += f", {counts['known miss']} miss for a stated reason"
    if counts["not run"]:
        said += f", {counts['not run']} could not be computed here"
    return f"{said},\n{missing} miss without one (--full shows every figure and its reason)"
