"""Prompts for evaluations: from a file, or from a named data set in a hub or a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from suffice.errors import InputError, check_text, unknown
from suffice.eval.questions import QUESTION_SETS, question_of, questions_in
from suffice.eval.texts import Corpus, fetched, file_in, json_value, read

if TYPE_CHECKING:
    from suffice.engine.protocol import Tokenizer

FIELDS = ("prompt", "question")
CONVERSATIONS = ("turns", "messages")
PROMPTS = {
    "gsm8k": Corpus(
        hub=("openai/gsm8k", "main", "test"), column="question", files=("gsm8k-test.jsonl",)
    ),
}


def load_prompts(name: str, data_dir: str | None = None) -> list[str]:
    """Return the prompts of a data set or of a file.

    A file has one prompt per line: text, or JSON with a field "prompt" or "question", or a
    conversation as in Spec-Bench and SPEED-Bench, whose first turn is the prompt. Empty lines are
    skipped.

    Raises:
        InputError: There is neither, the data set is not available, or a line has no prompt.
    """
    if name in PROMPTS:
        if data_dir is None:
            return fetched(name, PROMPTS[name])
        return list(_prompts(file_in(data_dir, PROMPTS[name].files)))
    if name in QUESTION_SETS:
        if data_dir is None:
            file = QUESTION_SETS[name][0]
            raise InputError(f"'{name}' is read from {file} in a folder: give it with --data-dir")
        return [question.turns[0] for question in questions_in(name, data_dir)]
    path = Path(name)
    if not path.exists() and path.name == name and not path.suffix:
        raise unknown("prompts (no such file either)", name, (*PROMPTS, *QUESTION_SETS))
    return list(_prompts(path))


def prompt_tokens(prompt: str, tokenizer: Tokenizer, *, chat: bool = True) -> list[int]:
    """Return a prompt's tokens: with `chat`, by the model's chat template if it has one.

    Raises:
        InputError: The template refuses the prompt.
    """
    if not chat or not tokenizer.has_chat_template:
        return tokenizer.encode(prompt)
    return tokenizer.chat([{"role": "user", "content": prompt}], add_generation_prompt=True)


def _prompts(path: Path) -> Iterator[str]:
    text = read(path)
    rows = path.suffix == ".jsonl" or text.lstrip().startswith("{")
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield _of_row(f"{path}, line {number}", line) if rows else line.rstrip("\r")


def _of_row(where: str, line: str) -> str:
    """Return the prompt of a row of JSON; `where` names the row in errors."""
    row = json_value(where, line)
    if isinstance(row, dict) and any(field in row for field in CONVERSATIONS):
        return question_of(where, line).turns[0]
    named = [field for field in FIELDS if isinstance(row, dict) and field in row]
    if not named:
        raise InputError(f"{where}: has no field {' or '.join(FIELDS)}")
    prompt = row[named[0]]
    if not isinstance(prompt, str) or not prompt.strip():
        raise InputError(f"{where}: the field '{named[0]}' must be non-empty text")
    check_text(f"{where}: the field '{named[0]}'", prompt)
    return prompt
