"""The README's table of speeds: the fastest peer counts, and each row says its perplexity."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import tiny
from benchmarks.harness import record
from benchmarks.peers import headline, quality


def section(*rounds: tuple[float, float]) -> dict[str, Any]:
    timed = [
        {"ours": {"tokens_per_second": ours}, "peer": {"tokens_per_second": theirs}}
        for ours, theirs in rounds
    ]
    return {"cases": dict.fromkeys(headline.CASES, timed)}


SPEED = {
    "peers": {
        "transformers-bf16": section((100, 10), (200, 10), (90, 10)),
        "llama-cpp": section((50, 10)),
        "llama-cpp-flash": section((60, 20)),
        "vllm-cpu": section((10, 40)),
    }
}
QUALITY = {
    "settings": {
        name: {"against": {"ratio": ratio}} for name, ratio in (("bf16", 1.0004), ("int8", 1.048))
    }
}
FILES = {
    kind: {
        "speed": {
            name: section((50, 10), (60, 20), (90, 22))["cases"] for name in headline.SETTINGS
        },
        "quality": {name: {"against": {"ratio": 1.0002}} for name in headline.SETTINGS},
    }
    for kind in ("Q4_1", "Q4_K_M")
}


def test_each_row_has_its_perplexity_and_the_fastest_peer() -> None:
    rows = headline.rows(SPEED, QUALITY)
    assert [row["perplexity"] for row in rows] == [1.0004, 1.0004]
    speeds = [row["cases"]["decode-0"] for row in rows]
    assert speeds[0] == (100, 10, 10), "one round's, whose ratio is the median"
    assert speeds[1] == (10, 40, 0.25), "a loss is shown like a gain"
    rows += headline.file_rows(FILES)
    assert rows[2]["cases"]["decode-0"] == (90, 22, 90 / 22), "not the median of each speed"
    facts = {"model": "tiny", "threads": 2, "windows": 8, "rows": rows, "sources": {}}
    drawn = headline.peers_table(facts)
    assert "| bf16 | 1.000 | vLLM bf16 | 10 / 40 (0.25x) |" in drawn
    assert "| the file (Q4_1) | 1.000 | llama.cpp | 90 / 22 (4.09x) |" in drawn


def test_the_table_names_the_command_that_made_it_and_its_sources() -> None:
    def facts(day: str, family: str, command: str) -> dict[str, Any]:
        machine = {"cpu": "EPYC", "cpu_family_model": f"{family}/1", "cores": 2, "isa": "v4"}
        own = dict.fromkeys(headline.FACTS, "")
        return {**own, "date": f"{day} 10:00 UTC", "machine": machine, "command": command}

    results = {
        "files": {**facts("2026-01-03", "26", "other"), "threads": 2, "files": FILES},
        "speed": facts("2026-01-02", "25", "speed") | SPEED,
        "quality": facts("2026-01-01", "25", "quality") | QUALITY | {"windows": 8},
    }
    data = headline.collected(results, {})
    assert data["command"] == record.program() != "other"
    assert data["sources"]["files"]["command"] == "other"
    assert data["machine"]["cpu_family_model"] == "25/1" and data["date"].startswith("2026-01-03")
    drawn = headline.table(data)
    assert (
        "the rows against llama.cpp from `python -m benchmarks.quant.files` (2026-01-03, EPYC of "
        "family 26, v4), the speeds of the other rows from `python -m benchmarks.peers.speed`"
    ) in drawn


def test_the_stored_table_names_the_script_that_made_it() -> None:
    found = json.loads((record.results(headline.__file__) / "headline.json").read_text())
    assert found["command"] == "python -m benchmarks.peers.headline"


def test_quality_is_over_the_weights_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny.make(tmp_path / "model", "llama", tokenizer=True)
    (tmp_path / "wikitext2-test-raw.txt").write_text("The owls look on; 0123456789 again. " * 30)
    asked = ["--model", str(model), "--data-dir", str(tmp_path), "--threads", "1"]
    asked += ["--window", "32", "--limit", "2", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["quality", *asked])
    same = {"exact": quality.FLOAT, "int8": quality.SETTINGS["int8"]}
    monkeypatch.setattr(quality, "SETTINGS", same)
    assert quality.main() == 0
    found = json.loads((tmp_path / "out" / "quality.json").read_text())
    ratios = {name: each["against"]["ratio"] for name, each in found["settings"].items()}
    assert ratios["exact"] == 1 != ratios["int8"] and found["windows"] == 2
    assert "| exact | `float32` | float32 |" in capsys.readouterr().out
