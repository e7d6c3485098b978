"""The quality benchmark on a tiny model: it measures what is missing, and tells it rightly."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import tiny

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import attention_quality


def test_it_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny.make(tmp_path / "model", "llama", tokenizer=True)
    (tmp_path / "wikitext2-test-raw.txt").write_text("The owls look on; 0123456789 again. " * 30)
    asked = ["--data-dir", str(tmp_path), "--model", str(model), "--window", "100", "--limit", "2"]
    path = tmp_path / "out" / "attention_quality.json"
    for settings in (["exact"], ["exact", "certified:bounded=false,eps=0.9"]):
        before = json.loads(path.read_text())["records"] if path.exists() else {}
        program = ["attention_quality.py", *asked, "--out", str(path.parent), "--settings"]
        monkeypatch.setattr(sys, "argv", [*program, *settings])
        assert attention_quality.main() == 0
        found = json.loads(path.read_text())["records"]
        assert list(found) == settings
        assert all(found[setting] == old for setting, old in before.items()), "not measured again"
    exact, sketched = (attention_quality.row(setting, found[setting]) for setting in settings)
    assert exact[1:6] == [1, 1, 1, 0, 1] and exact[6].startswith("+0.00 ±") and exact[10] == 0
    assert sketched[1] < 1 and sketched[4] > 0 and 0 < sketched[10] <= 0.9
    assert sketched[3] <= sketched[2] < 1
    assert (
        "| `exact` |" in path.with_suffix(".md").read_text()
        and "`exact`" in capsys.readouterr().out
    )
