"""Prompts for evaluations: from a file, or from a named data set in a hub or a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from suffice.errors import InputError, check_text, unknown
from suffice.eval.texts import Corpus, fetched, file_of, json_value, read

FIELDS = ("prompt", "question", "turns")
PROMPTS = {
    "gsm8k": Corpus(
        hub=("openai/gsm8k", "main", "test"), column="question", files=("gsm8k-test.jsonl",)
    ),
}


def load_prompts(name: str, data_dir: str | None = None) -> list[str]:
    """Return the prompts of a data set or of a file.

    A file has one prompt per line: text, or JSON with a field "prompt" or "question", or with
    "turns", whose first is the prompt. Empty lines are skipped.

    Raises:
        InputError: There is neither, the data set is not available, or a line has no prompt.
    """
    if name in PROMPTS:
        if data_dir is None:
            return fetched(name, PROMPTS[name])
        return list(_prompts(file_of(PROMPTS[name], data_dir)))
    path = Path(name)
    if not path.exists() and path.name == name and not path.suffix:
        raise unknown("prompts (no such file either)", name, tuple(PROMPTS))
    return list(_prompts(path))


def _prompts(path: Path) -> Iterator[str]:
    text = read(path)
    rows = path.suffix == ".jsonl" or text.lstrip().startswith("{")
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield _of_row(f"{path}, line {number}", line) if rows else line.rstrip("\r")


def _of_row(where: str, line: str) -> str:
    """Return the prompt of a row of JSON; `where` names the row in errors."""
    row = json_value(where, line)
    named = [field for field in FIELDS if isinstance(row, dict) and field in row]
    if not named:
        raise InputError(f"{where}: has no field {' or '.join(FIELDS)}")
    prompt = row[named[0]]
    if named[0] == "turns" and isinstance(prompt, list) and prompt:
        prompt = prompt[0]
    if not isinstance(prompt, str) or not prompt.strip():
        raise InputError(f"{where}: the field '{named[0]}' must be non-empty text")
    check_text(f"{where}: the field '{named[0]}'", prompt)
    return prompt
