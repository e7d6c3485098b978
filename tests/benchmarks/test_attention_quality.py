"""The quality benchmark on a tiny model: it measures what is missing, and tells it rightly."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiny
from benchmarks.attention import quality, quality_table
from benchmarks.harness import record, settings
from commands import Cli
from suffice.attention.calibration import write
from suffice.checkpoints.files import fingerprint
from suffice.errors import InputError

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "wikitext2-test-raw.txt").write_text("The owls look on; 0123456789 again. " * 30)
    return tiny.shallow(tmp_path / "smollm2-135m")


@pytest.fixture
def run(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    asked = ["--data-dir", str(tmp_path), "--model", str(model), "--limit", "2"]
    for name in ("WINDOW", "CODED_WINDOW"):
        monkeypatch.setattr(quality, name, 100)

    def run(name: str, *more: str) -> dict[str, Any]:
        program = ["quality", *asked, "--out", str(tmp_path / "out"), *more]
        monkeypatch.setattr(sys, "argv", program)
        if quality.main() != 0:
            return {}
        return json.loads((tmp_path / "out" / f"{name}.json").read_text())

    return run


def test_it_goes_on_where_it_stopped(
    run: Run, cli: Cli, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before: dict[str, Any] = {}
    names = [
        "exact",
        "certified:bounded=false,eps=0.9",
        "quest:rank_only=true + certified:eps=0.05",
    ]
    for asked in (names[:1], names):
        data = run("quality", "--settings", *asked)
        found = data["records"]
        assert all(found[setting] == old for setting, old in before.items()), "not measured again"
        before = found
    assert list(found) == names[:2] and list(data["refused"]) == names[2:]
    exact, sketched = (quality_table.row(name, found[name]) for name in names[:2])
    assert exact[1:6] == [1, 1, 1, 0, 1] and exact[6].startswith("+0.00 ±")
    assert exact[10:14] == [""] * 4
    assert sketched[3] <= sketched[2] < 1 and sketched[4] > 0 and 0 < sketched[10] <= 0.9
    assert all(isinstance(value, float) for value in sketched[11:15])
    drawn = (tmp_path / "out" / "quality.md").read_text()
    assert "| `exact` |" in drawn and drawn in capsys.readouterr().out
    assert f"Refused: `{names[2]}` (policy 'quest' with attention 'certified'" in drawn
    ran = cli(
        "eval", "perplexity", "--data-dir", str(tmp_path), "-m", str(model), "--window", "100",
        "--limit", "2", "--against", "exact", "-o", "json", "--attention", names[1],
        "--audit", "16",
    )  # fmt: skip
    alone = json.loads(ran.out)
    mine = found[names[1]]
    details = record.read_details(tmp_path / "out", "quality")
    assert list(details) == names[:2], "those of the first run are kept"
    assert mine["result"] == alone["result"]
    assert mine["reads"] | details[names[1]] == alone["reads"]
    counts = details[names[1]]["key_rows_read"]
    mean = sum(map(sum, counts)) / sum(map(len, counts))
    assert mine["reads"]["key_rows_read"] == [[mean]]
    same = ("output", "data_dir", "batch_size")
    assert {k: v for k, v in mine["asked"].items() if k not in same} == {
        k: v for k, v in alone["asked"].items() if k not in same
    }


def test_bytes_of_other_types_are_over_those_of_the_model_s_own(run: Run) -> None:
    names = ["exact", "exact @ int8", "tiers:eps=0.9,skip=0.001 @ planes"]
    found = run("quality_stored", "--stored", "--settings", *names)["records"]
    types = [found[name]["config"]["kv_cache_dtype"] for name in names]
    assert types == ["float32", "int8", "planes"]
    shares = [quality_table.share(found[name]) for name in names]
    size = 16  # of the tiny model's heads
    assert shares[0] == 1 and shares[1] == pytest.approx((size + 4) / (4 * size))
    assert shares[2] < shares[1] and found[names[1]]["result"]["against"]["divergence"] > 0


def test_a_file_is_of_one_text_cut_in_one_way(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out" / "quality.json"
    assert run("quality", "--settings", "exact")
    before = path.read_bytes()
    assert run("quality", "--settings", "exact", "art", "--limit", "1") == {}
    told = capsys.readouterr().err
    assert "quality.json is of {'window': 100, 'limit': 2," in told and "--out" in told
    assert len(told.splitlines()) == 1 and path.read_bytes() == before
    assert run("quality_softmax", "--calibration", str(tmp_path / "none.json")) == {}
    assert "none.json: No such file" in capsys.readouterr().err
    other = run("quality_50", "--settings", "exact", "--window", "50")
    assert other["records"]["exact"]["asked"]["window"] == 50


def test_thresholds_of_heads_are_measured(run: Run, model: Path, tmp_path: Path) -> None:
    """An attention technique may need the calibration, not only a softmax."""
    path, name = tmp_path / "found.json", "certified:calibrated"
    part = {"options": {}, "thresholds": [[0.5, 0.5]] * 2}
    about = {"name": "m", "hash": fingerprint(model), "heads": 4}
    write(path, {"model": about, "attention": {"certified": part}})
    refused: dict[str, str] = {}
    asked = ["exact", "aet:keys=0.8", name]
    techniques = settings.accepted(model, asked, refused, calibration=path)
    known = [each["calibration"] and each["calibration"].name for each in techniques.values()]
    assert known == [None, None, "found.json"] and not refused
    found = run("quality_softmax", "--calibration", str(path), "--settings", "exact", name)
    assert quality_table.share(found["records"][name]) < 1 and found["refused"] == {}


def test_policies_choose_from_a_prompt(
    run: Run, cli: Cli, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["exact", "snapkv:budget=40", "h2o:ratio=0.5", "streaming:ratio=0.5 + aet:keys=0.8"]
    found = run("quality_policies", "--prompt", "60", "--settings", *names)["records"]
    assert list(found) == names
    for name in names[1:]:
        assert quality_table.share(found[name]) < 0.9 and quality_table.change(found[name]) != 0
    options = [f"--{seam}={part}" for seam, part in settings.parts(names[3]).items()]
    capsys.readouterr()
    ran = cli(
        "eval", "perplexity", "--data-dir", str(tmp_path), "-m", str(model), "--window", "100",
        "--limit", "2", "--against", "exact", "-o", "json", "--prompt", "60", *options,
    )  # fmt: skip
    assert found[names[3]]["result"] == json.loads(ran.out)["result"], "the prompt is shared"
    pytest.importorskip("matplotlib", reason="the plots need suffice[plot]")
    drawn = quality.draw(tmp_path / "out").read_text()
    assert drawn.startswith("<?xml") and drawn.count("<svg") == 1


def test_published_savings_are_reached_or_not() -> None:
    def made(ratio: float, keys: int, values: int) -> dict[str, Any]:
        rows = {"key_rows_read": [[keys]], "value_rows_read": [[values]], "rows_held": [[100]]}
        reads = rows | {"kv_bytes_read": keys + values, "kv_bytes_held": 200}
        return {"result": {"against": {"ratio": ratio}}, "reads": reads}

    records = {"exact": made(1, 100, 100), "aet:keys=0.9": made(1.004, 80, 20)}
    records |= {"aet:keys=0.5": made(1.04, 50, 20), "other": made(1.01, 10, 10)}
    note, lines = quality_table.reached(records)
    small, large = lines.splitlines()[2:]
    assert "accelerator" in note
    assert small.startswith("| 0.5 % | 1.92x (K 1.23x, V 4.34x) | yes | 2.00x (K 1.25x, V 5.00x)")
    assert "| no | 2.86x (K 2.00x, V 5.00x): `aet:keys=0.5` | 10.00x" in large
    assert quality_table.reached({"exact": made(1, 100, 100)}) == []


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"both of the seam policy"):
        settings.parts("snapkv:ratio=0.5 + quest")
    with pytest.raises(InputError, match=r"unknown technique 'artt'. Did you mean 'art'"):
        settings.parts("artt")
    with pytest.raises(InputError, match=r"has none of quality, quality_policies"):
        quality.draw(tmp_path)
    with pytest.raises(InputError, match=r"'exact' is missing"):
        quality_table.points({})
