"""`suffice eval perplexity`: shows progress, prints perplexity and reads."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

from suffice.cli.eval.reference import check_comparable, reference_flags
from suffice.cli.eval.results import check_output, record, show
from suffice.cli.output import busy
from suffice.progress import progress_bar

if TYPE_CHECKING:
    import rich.progress

    from suffice.cli.eval.options import PerplexityFlags
    from suffice.cli.options import ModelFlags
    from suffice.eval.perplexity import PerplexityResult
    from suffice.trace import Trace

Row = tuple[str, float | str, float | None]


def run(flags: PerplexityFlags, model: ModelFlags) -> None:
    """Measure the perplexity and print it; after Ctrl-C, that of the predictions so far.

    Raises:
        KeyboardInterrupt: Ctrl-C, raised after the figures so far are printed.
    """
    check_output(flags.output)
    model.check_drafts("eval perplexity")
    compared = None if flags.against is None else reference_flags(flags.against, model)
    from suffice.eval.modes import check_mode
    from suffice.eval.perplexity import PerplexityPlan, measure, windows_of
    from suffice.eval.texts import line_ends, load_text

    plan = PerplexityPlan(
        flags.window, flags.limit, flags.mode, flags.batch_size, flags.prompt or 0
    )
    check_mode(plan.mode, model.config())
    text = load_text(flags.text, flags.data_dir)
    with busy(f"loading {model.model}"):
        llm = model.load(seed=0)
        reference = compared.load(seed=0) if compared else None
    if reference:
        check_comparable(llm, reference, plan.window)
    plan.check(llm.config.policy)
    windows = windows_of(llm.tokenizer, text, plan, llm.config.max_model_len or 0)
    against = reference.runner if reference else None
    tally, interrupted = None, False
    with _bar() as bar:
        task = bar.add_task("", total=len(windows) * plan.predictions, perplexity=math.nan)
        try:
            for tally in measure(llm.runner, windows, plan, against):
                bar.update(task, completed=tally.predictions, perplexity=tally.perplexity)
        except KeyboardInterrupt:
            interrupted = True
    if tally is None:
        raise KeyboardInterrupt
    result = tally.result()
    found = record(
        "perplexity",
        llm,
        flags,
        result,
        reads=llm.runner.trace,
        interrupted=interrupted,
        text_sha256=hashlib.sha256(text.encode()).hexdigest(),
        text_line_ends=line_ends(text),
    )
    rows = _rows(result) + _read(llm.runner.trace) + _audited(llm.runner.trace)
    rows.append(("line ends of the text", line_ends(text), None))
    show(found, ["measure", "value", "standard error"], rows, flags.output)
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


def _rows(result: PerplexityResult) -> list[Row]:
    rows: list[Row] = [
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
            ("same argmax", against.agreement, None),
            ("change of p, rms", against.change, None),
        ]
    return rows


def _read(trace: Trace) -> list[Row]:
    if not trace.steps:
        return []
    rows: list[Row] = [
        ("key rows read", trace.key_fraction, None),
        ("value rows read", trace.value_fraction, None),
        ("bytes of KV and metadata read", trace.kv_bytes_read / trace.kv_bytes_held, None),
    ]
    if trace.expert_bytes_held:
        share = trace.expert_bytes_read / trace.expert_bytes_held
        rows.append(("bytes of experts read", share, None))
    means = trace.bounds.means or (0.0, 0.0)
    bounds = (
        ("missing share, bound", trace.missing),
        ("missing share, mean of bounds", means[0]),
        ("shift of the output, bound", trace.shift),
        ("shift of the output, mean of bounds", means[1]),
        ("experts' weights left out of a row, bound", trace.experts_missing),
    )
    return [*rows, *((words, value, None) for words, value in bounds if value)]


def _audited(trace: Trace) -> list[Row]:
    audit = trace.audit
    if audit is None:
        return []
    rows: list[Row] = [("audited tokens", audit.tokens, None)]
    found = audit.plain()
    for name, words in (
        ("missing", "missing share"),
        ("bound_over_missing", "bound over missing share"),
        ("error", "error of the output"),
        ("shift", "shift of the output"),
    ):
        if isinstance(figures := found.get(name), dict):
            rows += [
                (f"{words}, {of.replace('_', ' ')}", value, None) for of, value in figures.items()
            ]
    rows.append(("queries beyond their bound", audit.beyond, None))
    if trace.confidence < 1:
        allowed = 1 - trace.confidence
        rows.append((f"their share, of {allowed:.3g} allowed", audit.beyond / audit.queries, None))
    return rows
