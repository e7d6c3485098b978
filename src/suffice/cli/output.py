"""Input and output of commands: prompts, progress bars, tables."""

from __future__ import annotations

import contextlib
import csv
import io
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suffice.cli.interrupt import ends_process
from suffice.errors import InputError, check_text
from suffice.progress import progress_bar, status

if TYPE_CHECKING:
    from suffice.engine.llm import LLM


def one_prompt(text: str | None, prompt: str | None, file: Path | None = None) -> str:
    """Return the prompt, given as an argument, as a flag or as a file.

    `-` stands for standard input, which is also read if no prompt is given and it is no terminal.
    The line break at the end of a file is not part of the prompt.

    Raises:
        InputError: No prompt is given, or several; or the prompt is empty or not text.
    """
    named = {
        f"'{text}'": text,
        f"-p '{prompt}'": prompt,
        f"-f {file}": None if file is None else str(file),
    }
    given_as = [name for name, value in named.items() if value is not None]
    if len(given_as) > 1:
        raise InputError(f"{len(given_as)} prompts were given, {' and '.join(given_as)}: give one")
    if file is not None:
        return _from_file(file)
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


def _from_file(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"-f {path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"-f {path}: is not text (UTF-8): byte 0x{error.object[error.start]:02x} at offset "
            f"{error.start}"
        ) from None
    if not text.strip():
        raise InputError(f"-f {path}: the file is empty: give one with some text")
    return text.removesuffix("\n")


def _piped() -> str:
    if sys.stdin is None:
        raise InputError("standard input is closed: give the prompt as text")
    return sys.stdin.read()


def wrapped(
    llm: LLM, prompt: str, system: str | None, facts: Mapping[str, Any] | None = None
) -> str | None:
    """Return a prompt in the model's chat template; None if there is none.

    `facts` are what else the template is told.

    Raises:
        InputError: A system prompt is given, but the model has no chat template.
    """
    if not llm.tokenizer.has_chat_template:
        if system is not None:
            raise InputError("--system-prompt: this model has no chat template to put it in")
        return None
    messages = [{"role": "system", "content": system}] if system is not None else []
    return llm.chat_text([*messages, {"role": "user", "content": prompt}], True, facts)


@contextlib.contextmanager
def busy(text: str) -> Iterator[None]:
    """Show on a terminal what is being done; Ctrl-C leaves nothing to clean up."""
    with ends_process(), status(text):
        yield


@contextlib.contextmanager
def byte_bars() -> Iterator[Callable[[str, int, int], None]]:
    """Show progress in bytes; in a log, only the start.

    Yields a function (what, done, total) that reports progress; a `total` of 0 is unknown.
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
    """Return a Markdown table, padded for terminals, with numbers aligned right."""
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
