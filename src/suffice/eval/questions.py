"""Conversations by category, with which speculative decoding is measured.

Source   Spec-Bench: Xia et al. 2024, "Unlocking Efficiency in Large Language Model Inference".
         SPEED-Bench: NVIDIA 2026, arXiv 2604.09557, its qualitative split. Not all of its texts may
         be handed on: its `prepare.py` fetches them and writes the file that is read here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suffice.errors import InputError, check_text
from suffice.eval.texts import file_in, json_value, read

QUESTION_SETS = {  # and their files in a folder of data
    "spec-bench": ("spec-bench-questions.jsonl", "question.jsonl"),
    "speed-bench": ("qualitative.jsonl", "speed-bench-qualitative.jsonl"),
}
_UNFETCHED = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"


@dataclass(frozen=True)
class Question:
    """What a user says in `turns`, one after the other."""

    ident: int | str
    category: str
    turns: tuple[str, ...]


def load_questions(path: Path) -> list[Question]:
    """Return the questions of a set's file: a row of JSON for each, with `turns` or `messages`.

    Raises:
        InputError: The file cannot be read, has none, or has a row that is none.
    """
    lines = enumerate(read(path).split("\n"), 1)
    return [question_of(f"{path}, line {number}", line) for number, line in lines if line.strip()]


def questions_in(name: str, folder: str) -> list[Question]:
    """Return the questions of the set `name`, from its file in a folder of data.

    Raises:
        InputError: As `load_questions` does, or the folder lacks the file.
    """
    return load_questions(file_in(folder, QUESTION_SETS[name]))


def question_of(where: str, line: str) -> Question:
    """Return the question of a row of JSON; `where` names the row in errors.

    Raises:
        InputError: It is none, or its text was not fetched.
    """
    row = json_value(where, line)
    turns = _turns(row) if isinstance(row, dict) else None
    if not turns or not isinstance(row.get("category"), str) or "question_id" not in row:
        raise InputError(f"{where}: needs question_id, category, and turns or messages with text")
    for turn in turns:
        check_text(where, turn)
        if turn.startswith(_UNFETCHED):
            raise InputError(
                f"{where}: its text is a placeholder: run SPEED-Bench's prepare.py, which fetches "
                "the texts and writes this file"
            )
    return Question(row["question_id"], row["category"], turns)


def _turns(row: dict[str, Any]) -> tuple[str, ...] | None:
    """Return the texts of a row's user; None if something else is there."""
    found = row.get("turns")
    if found is None and isinstance(messages := row.get("messages"), list):
        users = [each for each in messages if isinstance(each, dict) and each.get("role") == "user"]
        found = [each.get("content") for each in users]
    if not isinstance(found, list) or not all(isinstance(each, str) and each for each in found):
        return None
    return tuple(found)
