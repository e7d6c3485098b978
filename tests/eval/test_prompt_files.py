"""Prompts come from files of text or JSON, and from data sets by name."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from suffice.errors import InputError
from suffice.eval.prompts import load_prompts
from suffice.eval.questions import Question, questions_in


def written(folder: Path, text: str, name: str = "prompts.jsonl") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_rows_of_json(tmp_path: Path) -> None:
    rows = '{"prompt": "a\\nb", "answer": 1}\n\n{"question": " c "}\r\n'
    assert load_prompts(written(tmp_path, rows)) == ["a\nb", " c "]
    assert load_prompts(written(tmp_path, rows, "prompts.txt")) == ["a\nb", " c "]


def test_lines_of_text(tmp_path: Path) -> None:
    assert load_prompts(written(tmp_path, "a b\n\n  c\r\n \nd", "p.txt")) == ["a b", "  c", "d"]


def test_a_data_set_in_a_folder(tmp_path: Path) -> None:
    written(tmp_path, '{"question": "how many?", "answer": "two"}', "gsm8k-test.jsonl")
    assert load_prompts("gsm8k", str(tmp_path)) == ["how many?"]


TALK = {"role": "user", "content": "first"}, {"role": "assistant", "content": "a"}
LATER = {"role": "user", "content": "later"}


@pytest.mark.parametrize(
    ("name", "file", "own"),
    [
        ("spec-bench", "spec-bench-questions.jsonl", {"turns": ["first", "later"]}),
        ("spec-bench", "question.jsonl", {"turns": ["first", "later"]}),
        ("speed-bench", "qualitative.jsonl", {"messages": [*TALK, LATER]}),
    ],
)
def test_sets_of_questions(tmp_path: Path, name: str, file: str, own: dict[str, object]) -> None:
    row = {"question_id": "f" * 32, "category": "qa\u2028", **own}
    path = written(tmp_path, json.dumps(row, ensure_ascii=False), file)
    assert load_prompts(name, str(tmp_path)) == ["first"] == load_prompts(path)
    assert questions_in(name, str(tmp_path)) == [Question("f" * 32, "qa\u2028", ("first", "later"))]
    with pytest.raises(InputError, match=f"'{name}' is read from .* give it with --data-dir"):
        load_prompts(name)


def test_texts_that_are_to_be_fetched_first(tmp_path: Path) -> None:
    mark = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"
    row = {"question_id": "f" * 32, "category": "qa", "turns": [mark + "\n\n{question}"]}
    written(tmp_path, json.dumps(row), "qualitative.jsonl")
    with pytest.raises(InputError, match=r"line 1: its text is a placeholder: run .*prepare.py"):
        load_prompts("speed-bench", str(tmp_path))


def test_all_of_gsm8k() -> None:
    folder = os.environ.get("SUFFICE_DATA_DIR")
    if folder is None or not (Path(folder) / "gsm8k-test.jsonl").exists():
        pytest.skip("SUFFICE_DATA_DIR names no folder with gsm8k-test.jsonl")
    prompts = load_prompts("gsm8k", folder)
    assert len(prompts) == 1319 and prompts[0].startswith("Janet")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a"}\n{"prompt": ', "line 2: is not JSON (Expecting value at character 12)"),
        ('{"prompt": "a"}\n\n{"text": "a"}', "line 3: has no field prompt or question"),
        ('["a"]', "line 1: has no field prompt or question"),
        ('{"prompt": 3}', "line 1: the field 'prompt' must be non-empty text"),
        ('{"question": " "}', "line 1: the field 'question' must be non-empty text"),
        ('{"prompt": "\\ud800"}', "line 1: the field 'prompt' is not valid text (UTF-8): U+D800"),
        (" \n", "is empty"),
    ],
)
def test_bad_lines(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InputError) as error:
        load_prompts(path)
    assert str(error.value).startswith(path) and message in str(error.value)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Did you mean 'gsm8k'"):
        load_prompts("gsm8")
    with pytest.raises(InputError, match=r"none.txt: cannot be read: No such file"):
        load_prompts("none.txt")
    with pytest.raises(InputError, match=r"has no gsm8k-test.jsonl: put it there$"):
        load_prompts("gsm8k", str(tmp_path))
