"""The LongBench benchmark on a tiny model: groups are answered once, differences have errors."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiny
from benchmarks.attention import longbench
from benchmarks.harness.tables import CellStore
from suffice.eval.longbench import TASKS

Run = Callable[..., int]


def test_every_task_is_of_one_kind() -> None:
    assert sorted(task for tasks in longbench.KINDS.values() for task in tasks) == sorted(TASKS)
    assert {len(row) for row in longbench.PUBLISHED.values()} == {len(longbench.KINDS)}
    assert longbench.PUBLISHED.keys() <= set(longbench.SETTINGS)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    row = {"context": "The owls sleep. " * 40, "input": "", "answers": ["Owls."]}
    lines = "\n".join(json.dumps(row | {"context": f"{at}: {row['context']}"}) for at in range(9))
    (tmp_path / "longbench-multi_news.jsonl").write_text(lines)
    model = tiny.make(
        tmp_path / "model", tokenizer=True, max_position_embeddings=1024, num_hidden_layers=1
    )
    asked = ["--model", str(model), "--data-dir", str(tmp_path), "--threads", "1"]
    asked += ["--out", str(tmp_path), "--length", "640"]

    def run(*more: str) -> int:
        monkeypatch.setattr(sys, "argv", ["longbench", *asked, *more])
        return longbench.main()

    return run


def test_it_goes_on_where_it_stopped(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: list[tuple[str, int]] = []
    real = longbench.answered
    monkeypatch.setattr(
        longbench,
        "answered",
        lambda llm, group, length: (
            answered.append((str(llm.config.policy), len(group))) or real(llm, group, length)
        ),
    )
    half = "snapkv:ratio=0.5"
    assert run("--settings", half, "h2o:ratio=0.2 + art:change=1e-2", "--samples", "3") == 0
    assert [count for _, count in answered] == [3, 3]
    assert run("--settings", "exact", "--samples", "3") == 0 and len(answered) == 2
    assert run("--settings", half, "--samples", "7") == 0
    assert [count for _, count in answered[2:]] == [5, 5, 2, 2]
    path = tmp_path / "longbench_model.json"
    cells = json.loads(path.read_text())["cells"]
    assert list(cells) == ["multi_news 0", "multi_news 5"]
    first = cells["multi_news 0"]
    assert [len(first[setting]["scores"]) for setting in ("exact", half)] == [5, 5]
    assert first["exact"]["prompt_tokens"] == first[half]["prompt_tokens"]
    share = first[half]["kv_bytes_read"] / first[half]["kv_bytes_held"]
    assert share < first["exact"]["kv_bytes_read"] / first["exact"]["kv_bytes_held"] == 1
    text = path.with_suffix(".md").read_text()
    assert "### multi_news" in text and "| `exact` | 7 | " in text and " | 26.06 |" in text
    assert "| `h2o:ratio=0.2 + art:change=1e-2` | refused: policy 'h2o' sums the weights" in text


def cell(scores: list[float], read: int) -> dict[str, Any]:
    return {"scores": scores, "kv_bytes_read": read, "kv_bytes_held": 100}


def test_a_difference_is_of_the_samples_that_both_answered(tmp_path: Path) -> None:
    store = CellStore(tmp_path, "x", {}, {}, longbench.table)
    store.cells = {
        "multi_news 0": {"exact": cell([10.0, 20.0], 90), "art": cell([11.0, 23.0], 45)},
        "multi_news 2": {"exact": cell([30.0], 90), "art": cell([28.0], 45)},
        "multi_news 3": {"exact": cell([70.0, 5.0], 90), "art": cell([99.0], 1)},
        "lcc 0": {"exact": cell([50.0], 90)},
    }
    error = statistics.stdev([1, 3, -2]) / 3**0.5
    score = statistics.stdev([11, 23, 28]) / 3**0.5
    assert longbench.row(store, "multi_news", "art") == [
        *("`art`", 3, f"20.67 ± {score:.2f}", f"+0.67 ± {error:.2f}", "0.500", "26.40")
    ]
    exact = longbench.row(store, "multi_news", "exact")
    assert exact is not None and exact[1:4:2] == [5, ""]
    assert longbench.row(store, "lcc", "art") is None
    assert longbench.row(store, "lcc", "exact") == [*("`exact`", 1, "50.00", "", "1.000", "63.56")]


def test_bad_input(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--tasks", "multi_new") == 2
    assert "longbench: error: unknown task 'multi_new'. Did you mean" in capsys.readouterr().err
    assert run("--tasks", "lcc") == 2
    assert "has no longbench-lcc.jsonl or lcc.jsonl" in capsys.readouterr().err
