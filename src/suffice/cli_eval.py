"""`suffice eval`: runs an evaluation, shows how it goes, prints what was found."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import sys
from typing import TYPE_CHECKING, Any

from suffice.cli_output import OUTPUTS, as_csv, busy, markdown
from suffice.errors import unknown
from suffice.progress import progress_bar

if TYPE_CHECKING:
    import rich.progress

    from suffice.cli_options import ModelFlags, PerplexityFlags
    from suffice.eval.perplexity import Result


def perplexity(flags: PerplexityFlags, model: ModelFlags) -> None:
    """Measure what the flags ask for and print it; after Ctrl-C, what there is of it.

    Raises:
        InputError: A text, flag or model that cannot be used.
        KeyboardInterrupt: Ctrl-C, once what there is has been printed.
    """
    if flags.output not in OUTPUTS:
        raise unknown("output", flags.output, OUTPUTS)
    if flags.against not in (None, "exact"):
        raise unknown("reference (--against)", flags.against or "''", ("exact",))
    from suffice.eval import perplexity as measuring
    from suffice.eval.texts import load_text

    plan = measuring.Plan(flags.window, flags.limit, flags.mode, flags.batch_size)
    text = load_text(flags.text, flags.data_dir)
    with busy(f"loading {model.model}"):
        llm = model.load(seed=0)
        reference = model.exact().load(seed=0) if flags.against else None
    from suffice.eval.record import facts, settings

    context = llm.config.max_model_len or 0
    windows = measuring.windows_of(llm.tokenizer, text, plan, context)
    found = measuring.measure(llm.runner, windows, plan, reference.runner if reference else None)
    tally, interrupted = None, False
    with _bar() as bar:
        task = bar.add_task("", total=len(windows) * (flags.window - 1), perplexity=math.nan)
        try:
            for tally in found:
                bar.update(task, completed=tally.predictions, perplexity=tally.perplexity)
        except KeyboardInterrupt:
            interrupted = True
    if tally is None:
        raise KeyboardInterrupt
    asked = dataclasses.asdict(flags) | {
        "text": flags.text.rpartition("/")[2],
        "data_dir": None,
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
    }
    record = facts("suffice", sys.argv[1:]) | {
        "kind": "perplexity",
        "config": settings(llm.config),
        "asked": asked,
        "interrupted": interrupted,
        "result": dataclasses.asdict(tally.result()),
    }
    print(drawn(tally.result(), record, flags.output))
    if interrupted:
        raise KeyboardInterrupt


def _bar() -> rich.progress.Progress:
    from rich.progress import BarColumn, TimeRemainingColumn

    return progress_bar(
        BarColumn(),
        "{task.completed}/{task.total} tokens",
        "perplexity {task.fields[perplexity]:.3f}",
        TimeRemainingColumn(),
    )


def drawn(result: Result, record: dict[str, Any], output: str) -> str:
    """Return a result as a table (md), as csv or, with all that is known of it, as json."""
    if output == "json":
        return json.dumps(record, indent=1)
    rows = _rows(result)
    if output == "csv":
        return as_csv([dict(zip(("measure", "value", "error"), row, strict=True)) for row in rows])
    shown = [[name, _shown(value), "" if error is None else f"± {_shown(error)}"]
             for name, value, error in rows]  # fmt: skip
    return markdown(["measure", "value", "standard error"], shown)


def _rows(result: Result) -> list[tuple[str, float, float | None]]:
    rows: list[tuple[str, float, float | None]] = [
        ("windows", result.windows, None),
        ("predictions", result.predictions, None),
        ("perplexity", result.perplexity, result.error),
    ]
    if (against := result.against) is not None:
        rows += [
            ("perplexity of the reference", against.perplexity, against.perplexity_error),
            ("ratio of perplexities", against.ratio, against.ratio_error),
            ("KL divergence, mean", against.divergence, None),
            ("KL divergence, median", against.divergence_median, None),
            ("KL divergence, 99 %", against.divergence_99, None),
            ("KL divergence, 99.9 %", against.divergence_999, None),
            ("same likeliest token", against.agreement, None),
            ("change of p, rms", against.change, None),
        ]
    return rows


def _shown(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"
