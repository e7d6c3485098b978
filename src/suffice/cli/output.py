"""What commands print: text as it comes, the line that sums up a run, progress bars, tables."""

from __future__ import annotations

import contextlib
import csv
import io
import math
import resource
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from suffice.cli.interrupt import ends_process
from suffice.errors import InputError, check_text
from suffice.progress import progress_bar

if TYPE_CHECKING:
    from suffice.engine.llm import LLM
    from suffice.engine.request import RequestOutput
    from suffice.speculate.stats import DraftStats
    from suffice.trace import Audit, Trace


def one_prompt(text: str | None, prompt: str | None) -> str:
    """Return the prompt, given as an argument or as a flag.

    `-` stands for standard input, which is also read if there is no prompt and it is no terminal.

    Raises:
        InputError: Neither is given, or both, or the prompt is empty or no text.
    """
    if text is not None and prompt is not None:
        raise InputError(f"two prompts were given, '{text}' and -p '{prompt}': give one")
    given = text if prompt is None else prompt
    if given == "-":
        given = _piped()
    elif given is None and sys.stdin is not None and not sys.stdin.isatty():
        given = _piped() or None
    if given is None:
        raise InputError('no prompt: suffice run "your prompt", or - to read standard input')
    if not given:
        raise InputError("the prompt is empty: give some text")
    check_text("the prompt", given)
    return given


def _piped() -> str:
    if sys.stdin is None:
        raise InputError("standard input is closed: give the prompt as text")
    return sys.stdin.read()


def wrapped(llm: LLM, prompt: str, system: str | None) -> Any:
    """Return a prompt as the model's chat template wraps it, or as it is if there is none.

    Raises:
        InputError: A system prompt, but no template to put it in.
    """
    if not llm.tokenizer.has_chat_template:
        if system is not None:
            raise InputError("--system-prompt: this model has no chat template to put it in")
        return prompt
    messages = [{"role": "system", "content": system}] if system is not None else []
    messages.append({"role": "user", "content": prompt})
    return llm.tokenizer.chat(messages, add_generation_prompt=True)


@contextlib.contextmanager
def busy(text: str) -> Iterator[None]:
    """Say on a terminal what is being waited for; nothing that Ctrl-C would have to undo."""
    with ends_process():
        if not sys.stderr.isatty():
            yield
            return
        from rich.console import Console

        with Console(stderr=True).status(text):
            yield


class Answer:
    """Prints a text as it is generated, and after it one line on what that took."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self.text = ""

    def show(self, stream: Generator[tuple[str, RequestOutput]]) -> None:
        """Print a stream to its end, or until Ctrl-C.

        Raises:
            KeyboardInterrupt: Ctrl-C, once what there is has been printed and summed up.
            InputError: The request failed, for lack of memory.
        """
        before = self._llm.runner.trace.copy()
        output = None
        try:
            with contextlib.closing(stream):
                for delta, output in stream:  # noqa: B007 (the last one is summed up)
                    self.text += delta
                    sys.stdout.write(delta)
                    sys.stdout.flush()
        finally:
            if output is not None:
                print(flush=True)
                runner = self._llm.runner
                trace = runner.trace.since(before)
                print(summary(output, trace), file=sys.stderr)
        if output is not None and output.error:
            raise InputError(output.error)


def summary(output: RequestOutput, trace: Trace) -> str:
    """Return the line that sums up a run.

    A row is there a token's key and value as one decode step sees them, averaged over the layers
    and heads: so many of those that attention to all tokens so far would have read, evicted ones
    and those before a sliding window too.
    """
    metrics = output.metrics
    run = len(output.prompt_token_ids) - output.num_cached_tokens
    decoded = len(output.outputs[0].token_ids) - 1  # the first comes with the prompt
    read, held = trace.key_rows_read + trace.value_rows_read, 2 * trace.rows_held
    share = 2 * trace.rows[0].size
    cached = f" ({output.num_cached_tokens} cached)" if output.num_cached_tokens else ""
    missing = [f"left out up to {100 * trace.missing:.2g} % of a softmax"] if trace.missing else []
    audit = [audited(trace.audit)] if trace.audit and trace.audit.tokens else []
    return " | ".join(
        [
            f"prompt {run} tokens{cached} {_rate(run, metrics.prefill_seconds)}",
            f"decode {max(decoded, 0)} tokens {_rate(decoded, metrics.decode_seconds)}",
            *drafted(output.speculation),
            f"KV rows read {_count(read / share)} of {_count(held / share)}{_percent(read, held)}",
            *missing,
            *audit,
            f"peak memory {peak_memory_bytes() / 2**20:.0f} MiB",
        ]
    )


def drafted(stats: DraftStats) -> list[str]:
    """Return what became of drafts, in a few words; nothing if there were none."""
    if not stats.num_drafts:
        return []
    return [
        f"drafts accepted {stats.num_accepted_tokens} of {stats.num_draft_tokens}"
        f"{_percent(stats.num_accepted_tokens, stats.num_draft_tokens)}, "
        f"{stats.tokens_per_step:.2f} tokens a step"
    ]


def audited(audit: Audit) -> str:
    """Return what an audit found, in a few words."""
    found = audit.plain()
    said = [
        f"{name} {_share(figures['mean'])} on average, at most {_share(figures['most'])}"
        for name in ("missing", "error")
        if isinstance(figures := found.get(name), dict)
    ]
    beyond = f", {audit.beyond} queries beyond their bound" if audit.beyond else ""
    return f"audit of {audit.tokens} tokens: {'; '.join(said)}{beyond}"


def _share(value: float) -> str:
    return f"{100 * value:.2g} %"


def _rate(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:.1f} tokens/s" if tokens > 0 and seconds > 0 else "- tokens/s"


def _percent(part: int, whole: int) -> str:
    # Rounded down: only all is 100 %.
    return f" ({math.floor(1000 * part / whole) / 10:g} %)" if whole else ""


def _count(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")


def peak_memory_bytes() -> int:
    """Return the most memory this process has had resident."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextlib.contextmanager
def byte_bars() -> Iterator[Callable[[str, int, int], None]]:
    """Show how many bytes of something are done; in a log, only that it began.

    Yields what reports it: of `what`, `done` bytes of `total` (0: unknown).
    """
    from rich.progress import BarColumn, DownloadColumn, TransferSpeedColumn

    tasks: dict[str, Any] = {}
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with progress_bar(*columns) as bar:

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                if bar.disable and what != "checking":
                    print(what, file=sys.stderr, flush=True)
                tasks[what] = bar.add_task(what, total=total or None)
            bar.update(tasks[what], completed=done, total=total or None)

        yield report


OUTPUTS = ("csv", "json", "md")


def as_csv(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows with the same columns as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().rstrip("\n")


def markdown(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table in Markdown, padded so that it reads well in a terminal; numbers right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [
        max(len(column), *(len(row[at]) for row in cells)) if cells else len(column)
        for at, column in enumerate(columns)
    ]
    right = [all(_is_number(row[at]) for row in cells) for at in range(len(columns))]
    rule = [
        "-" * (width - 1) + (":" if to_right else "-")
        for width, to_right in zip(widths, right, strict=True)
    ]
    lines = []
    for row in [list(columns), rule, *cells]:
        padded = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        lines.append("| " + " | ".join(padded) + " |")
    return "\n".join(lines)


def _is_number(cell: str) -> bool:
    return cell[:1].isdigit() or cell in ("-", "")
