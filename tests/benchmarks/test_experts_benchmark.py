"""The benchmarks of experts and of adapters: their files, their arithmetic, and quick runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engine import adapters, experts, left_out
from benchmarks.harness import record, shaped_adapter, shaped_experts, shaped_file
from suffice.checkpoints.adapters import read_adapters
from suffice.checkpoints.open import open_checkpoint
from suffice.decoder.adapter import Adapter
from workers import Inside

TINY = shaped_experts.TINY


def test_the_file_is_a_mixture_of_the_shape(tmp_path: Path) -> None:
    path = shaped_experts.write(tmp_path / "tiny.gguf", TINY, "Q4_0")
    checkpoint = open_checkpoint(path)
    config = checkpoint.config
    assert config.experts is not None
    own = config.experts
    assert (own.count, own.chosen, own.inner) == (TINY.experts, TINY.chosen, TINY.inner)
    assert (config.width, config.heads, config.kv_heads, config.head_size) == (64, 4, 2, 16)
    kinds = {each.name.rpartition(".")[2]: each.type for each in checkpoint.matrices}
    assert kinds.pop("router") == "F32"
    assert set(kinds.values()) == {"Q4_0"}


def test_fewer_layers_have_the_share_of_the_head() -> None:
    whole = shaped_experts.QWEN3_30B_A3B
    part = whole.with_layers(8)
    assert part.vocabulary / part.layers == pytest.approx(whole.vocabulary / whole.layers, rel=1e-3)
    assert (part.width, part.experts, part.inner) == (2048, 128, 768)


def test_a_mixed_file_has_better_codes_for_some_experts() -> None:
    sizes = shaped_experts.tensors(shaped_experts.QWEN3_30B_A3B.with_layers(8))
    found = shaped_file.types(sizes, 8, "Q4_K_M")
    assert found["blk.0.ffn_down_exps.weight"] == "Q6_K"
    assert found["blk.2.ffn_down_exps.weight"] == "Q4_K"
    assert found["blk.0.ffn_gate_exps.weight"] == "Q4_K"
    assert found["blk.0.ffn_gate_inp.weight"] == found["blk.0.attn_norm.weight"] == "F32"


def answer(seconds: float, steps: int, size: int, rate: float) -> dict[str, Any]:
    return {
        "seconds": seconds,
        "steps": steps,
        "weight_bytes": size * steps,
        "kv_bytes": 0,
        "tokens_per_second": rate,
    }


def test_figures_of_a_round() -> None:
    one = {
        "decode": {
            "reads": {"before": {"bytes_per_second": 950.0}, "after": {"bytes_per_second": 1050.0}},
            "ours": answer(1.0, 10, 80, 10.0),
            "peer": {"tokens_per_second": 8.0},
        },
        "batch": {"ours": answer(4.4, 10, 320, 18.0), "peer": {"tokens_per_second": 9.0}},
        "prompt": {"ours": {"tokens_per_second": 30.0}, "peer": {"tokens_per_second": 10.0}},
    }
    found = experts.figures(one)
    assert found["roof"] == pytest.approx(0.8)
    assert found["bytes_over"] == pytest.approx(4.0)
    assert found["batch"] == pytest.approx(4.4 / 4.0), "0.44 s a step, where 0.4 are predicted"
    assert (found["decode"], found["batch_over"], found["prompt"]) == (1.25, 2.0, 3.0)
    assert experts.reached("batch", 1.1) == "yes" and experts.reached("batch", 1.3) == "**no**"
    assert experts.reached("roof", 0.8) == "yes" and experts.reached("roof", 0.7) == "**no**"


def test_rounds_in_which_the_memory_changed_its_speed_are_left_out() -> None:
    def turn(*rates: float) -> dict[str, Any]:
        return {"decode": {"reads": {each: {"bytes_per_second": each} for each in rates}}}

    even, uneven = turn(58.0, 56.0), turn(58.0, 36.0)
    assert experts.steady([even, uneven]) == [even]
    assert experts.steady([uneven]) == [uneven], "else there would be no figure"


@pytest.mark.usefixtures("one_thread")
def test_quick_run_of_experts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first setting in a process of its own, as in a whole run."""
    monkeypatch.setattr(experts, "FILES", tmp_path)
    flags = ["--quick", "--alone", "--rounds", "1", "--types", "Q4_0", "--threads", "1"]
    flags += ["--output", str(tmp_path / "out")]
    for setting in experts.SETTINGS:
        monkeypatch.setattr(sys, "argv", ["experts", *flags, "--settings", setting])
        assert experts.main() == 0
        monkeypatch.setattr(experts, "Worker", Inside)
    found = json.loads((tmp_path / "out" / "experts.json").read_text())
    assert list(found["files"]) == [f"Q4_0, {setting}" for setting in experts.SETTINGS]
    for each in found["files"].values():
        assert each["summary"]["bytes_over"] > 1, "the rows of a batch choose several experts"
    assert "no figure means anything" in (tmp_path / "out" / "experts.md").read_text()


def test_quick_run_of_experts_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_out, "FILES", tmp_path)
    flags = ["--quick", "--rounds", "1", "--output", str(tmp_path / "out"), "--settings"]
    monkeypatch.setattr(sys, "argv", ["left_out", *flags, "all", "mass:0.6", "mass:0.01"])
    assert left_out.main() == 0
    every, some, one = json.loads((tmp_path / "out" / "left_out.json").read_text())[
        "settings"
    ].values()
    assert (every["expert_bytes"], every["error"], every["missing"], every["same"]) == (1, 0, 0, 1)
    assert one["expert_bytes"] == pytest.approx(1 / TINY.chosen), "the heaviest alone"
    assert one["expert_bytes"] < some["expert_bytes"] < 1 and some["bytes"] < 1
    assert 0 < some["error"] < one["error"] and 0 < some["missing"] <= 0.4 < one["missing"]


@pytest.mark.parametrize("flags", [["--rounds", "0"], ["--settings", "mass:2"]])
def test_experts_left_out_are_asked_for_rightly(
    flags: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["left_out", *flags])
    assert left_out.main() == 2 and capsys.readouterr().err.count("\n") == 1


def test_adapters_of_a_shape_fit_it(tmp_path: Path) -> None:
    model = shaped_file.write(tmp_path / "tiny.gguf", shaped_file.TINY, "Q8_0")
    folder = shaped_adapter.write(tmp_path / "own", model, 16, 0)
    (adapter,) = read_adapters([("own", str(folder))], open_checkpoint(model).config, "float32")
    assert isinstance(adapter, Adapter) and adapter.name == "own"
    assert len(adapter.matrices) == 7 * shaped_file.TINY.layers
    assert all(down.rows == 16 for down, _ in adapter.matrices.values())


def test_quick_run_of_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "BUILD", tmp_path)
    arguments = ["adapters", "--quick", "--settings", "bf16", "--output", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", arguments)
    assert adapters.SCRIPT.main() == 0
    found = json.loads((tmp_path / "out" / "adapters.json").read_text())
    for each in found["settings"]["bf16"]["rounds"]:
        steps = {case: each[case]["bytes"] for case in adapters.CASES}
        one = steps["1 on"] - steps["1 off"]
        assert one > 0
        assert steps["8 one"] - steps["8 off"] == pytest.approx(one, rel=0.01), "read once"
        assert steps["8 on"] - steps["8 off"] == pytest.approx(8 * one, rel=0.01)


def test_ratios_are_of_one_round() -> None:
    rounds = [
        {"1 off": {"seconds": off}, "1 on": {"seconds": on}}
        for off, on in ((1, 2), (9, 10), (5, 5))
    ]
    assert adapters.ratio(rounds, "1 on", "seconds") == pytest.approx(0.9)  # type: ignore[arg-type]
