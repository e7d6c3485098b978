"""Prompts come from files of text or JSON, and from data sets by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from suffice.errors import InputError
from suffice.eval.prompts import load_prompts


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
