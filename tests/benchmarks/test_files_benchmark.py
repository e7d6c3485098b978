"""The benchmark of files as they are: what is compared, and the tables made of it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.quant import files, files_table


def turn(ours: float, theirs: float, roof: float) -> dict[str, Any]:
    return {
        "ours": {"tokens_per_second": ours, "roof_fraction": roof},
        "peer": {"tokens_per_second": theirs},
    }


SCORE = {"perplexity": 22.0, "against": {"perplexity": 20.0, "ratio": 1.1}}
DATA = {
    "threads": 2,
    "window": 1024,
    "windows": 8,
    "files": {
        "Q4_0": {
            "quality": {**dict.fromkeys(files.QUALITY, SCORE), "llama.cpp": SCORE},
            "tokens": {"prompts": 32, "gaps": [0.01, None]},
            "speed": {"default": dict.fromkeys(files_table.CASES, [turn(30, 10, 0.9)] * 3)},
        },
        "Q6_K": {},
    },
}


def test_tables_have_a_row_for_each_file_that_was_measured() -> None:
    text = files_table.tables(DATA)
    assert "| Q4_0 | 20.000 | 1.1000 | 1.1000 | 1.1000 | 1.1000 | 1.1000 |" in text
    assert "| Q4_0 | 30 of 32 | 0.010, more |" in text
    assert "| Q4_0 | 30 / 10: 3 (3 to 3) |" in text and "0.9 (0.9 to 0.9)" in text
    assert "Q6_K" not in text and "Speed: fast" not in text


def test_a_gap_is_that_of_the_first_place_where_answers_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(*tokens: int) -> SimpleNamespace:
        likely = {token: SimpleNamespace(logprob=-0.5 * token) for token in (1, 2)}
        return SimpleNamespace(token_ids=tokens, logprobs=[likely] * len(tokens))

    made = {
        "default": [answer(1, 1), answer(1, 2), answer(3, 1)],
        "none:dtype=bfloat16": [answer(1, 1), answer(1, 1), answer(1, 1)],
    }
    monkeypatch.setattr(
        files, "answers", lambda path, flags, setting: made[setting.get("quantization", "default")]
    )
    flags = argparse.Namespace(answer=2)
    found = files.tokens(files.Path("model.gguf"), flags)
    assert found == {"prompts": 3, "tokens": 2, "gaps": [0.5, None]}


def test_each_part_has_the_command_that_measured_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "model.gguf").write_bytes(b"file")
    monkeypatch.setattr(files, "file_of", lambda kind: tmp_path / "model.gguf")
    measured = {"quality": DATA["files"]["Q4_0"]["quality"], "tokens": {"prompts": 1, "gaps": []}}
    for part, found in measured.items():
        monkeypatch.setitem(files.MEASURES, part, lambda path, flags, found=found: found)
        monkeypatch.setattr(sys, "argv", ["files", "--parts", part])
        flags = argparse.Namespace(
            output=tmp_path, types=["Q4_0"], parts=[part], threads=2, window=64, limit=2
        )
        files.run(flags)
    stored = json.loads((tmp_path / "files.json").read_text())["files"]["Q4_0"]
    assert stored["bytes"] == 4 and set(stored["facts"]) == set(measured)
    for part, facts in stored["facts"].items():
        assert facts["command"].endswith(f"--parts {part}") and facts["machine"]["isa"]


def test_the_cases_of_a_quick_run_have_the_same_names() -> None:
    assert list(files.cases(True)) == list(files.cases(False)) == list(files_table.CASES)
    assert files.cases(False)["decode-3000"].depth == 3000
