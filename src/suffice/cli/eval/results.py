"""Output of evaluations: a table, or a record with everything needed to repeat them."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from suffice.cli.answer import audited, prompts_read
from suffice.cli.output import OUTPUTS, as_csv, markdown
from suffice.errors import unknown

if TYPE_CHECKING:
    from suffice.engine.llm import LLM
    from suffice.trace import Trace

PATHS = ("against", "data_dir", "prompts", "text")  # flags that may be paths


def check_output(output: str) -> None:
    """Refuse an unknown output format.

    Raises:
        InputError: The format is unknown.
    """
    if output not in OUTPUTS:
        raise unknown("output", output, OUTPUTS)


def record(
    kind: str,
    llm: LLM,
    flags: Any,
    result: Any,
    *,
    reads: Trace,
    interrupted: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """Return a result with its flags, configuration, machine and versions, as plain values.

    `flags` and `result` are dataclasses; `reads` has the counts of the evaluation's decode steps.
    """
    from suffice.eval.record import facts, settings

    asked = dataclasses.asdict(flags)
    asked |= {name: PurePath(asked[name]).name for name in PATHS if asked.get(name)}
    return facts("suffice", sys.argv[1:]) | {
        "kind": kind,
        "config": settings(llm.config),
        "asked": asked | more,
        "interrupted": interrupted,
        "result": dataclasses.asdict(result),
        "reads": reads.plain(),
    }


def show(
    record: Mapping[str, Any],
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    output: str,
    trace: Trace | None = None,
) -> None:
    """Print a record by `drawn`, then whether it was interrupted, what tiles of prompts read, and
    the figures of a trace's audit.
    """
    print(drawn(record, columns, rows, output))
    if record["interrupted"]:
        print("interrupted: these figures are of what was done until then", file=sys.stderr)
    reads = record["reads"]
    for line in prompts_read(reads["tile_rows_read"], reads["tile_rows_held"]):
        print(line, file=sys.stderr)
    if trace and trace.audit and trace.audit.tokens:
        said = audited(trace.audit, trace.estimates, certain=trace.confidence == 1)
        print(said, file=sys.stderr)


def drawn(
    record: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    output: str,
) -> str:
    """Return a record as JSON, or its table as CSV or Markdown; None is an empty cell."""
    if output == "json":
        return json.dumps(record, indent=1)
    if output == "csv":
        return as_csv([dict(zip(columns, row, strict=True)) for row in rows])
    return markdown(columns, [[_cell(value) for value in row] for row in rows])


def _cell(value: object) -> object:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value
