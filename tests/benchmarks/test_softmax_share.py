"""The benchmark of softmax's share, on a tiny model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import tiny
from benchmarks.attention import softmax_share


def test_shares_of_a_tiny_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.make(tmp_path / "model", tokenizer=True, max_position_embeddings=256)
    monkeypatch.setattr(softmax_share, "MODEL", str(model))
    monkeypatch.setattr(sys, "argv", ["softmax_share", "--quick", "--output", str(tmp_path)])
    assert softmax_share.main() == 0
    rows = json.loads((tmp_path / "softmax_share.json").read_text())["rows"]
    kinds = [(row["weights"], row["what"], row["tokens"]) for row in rows]
    assert kinds == [(each, what, 128) for each in ("none", "int8") for what in ("step", "prompt")]
    assert all(0 < row["attention"] < 1 and row["softmax"] > 0 for row in rows)
    text = (tmp_path / "softmax_share.md").read_text()
    assert "| none | step | 128 |" in text and "0.39 (Llama-2-7B, Gaudi 2)" in text


def test_a_prompts_scores_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a second a score, the share is the number of scores over the threads' time."""

    class Model:
        heads, kv_heads, layers = 6, 2, (1, 2, 3)

    class Engine:
        runner = type("R", (), {"tile_rows": 4, "time_parts": lambda *_: None})()

        def __init__(self, *_: object, **options: object) -> None:
            self.runner.decoder = type("D", (), {"config": Model})

    asked = []
    monkeypatch.setattr(softmax_share, "LLM", Engine)
    monkeypatch.setattr(softmax_share.native, "threads", lambda: 2)
    monkeypatch.setattr(
        softmax_share, "step_and_prompt", lambda *_: {"step": [2.0, 1.0], "prompt": [4.0, 6.0]}
    )
    monkeypatch.setattr(softmax_share, "seconds_a_score", lambda *sizes: asked.append(sizes) or 1.0)
    step, prompt = softmax_share.rows_of("none", (10,), 1, 1)
    assert step["softmax"] == 10 * 6 * 3 / (2 * 2) and step["attention"] == 1 / (2 * 2)
    assert prompt["softmax"] == 55 * 6 * 3 / (2 * 4) and prompt["attention"] == 6 / (2 * 4)
    assert asked == [(10, 3), (64, 3 * 4)], "a head's queries, and those of rows that run together"
