"""The quantization benchmark on a tiny model: what a cell is, and where it goes on."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny
from benchmarks.quant import cells, peer_weights, quality, quality_table, quantize_peers
from commands import Cli
from sample_text import OWLS
from suffice.errors import InputError

Run = Callable[..., int]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "wikitext2-test-raw.txt").write_text(OWLS * 30)
    row = {"category": "rag", "turns": ["Who looks on? " * 40, "And when? " * 40]}
    other = row | {"category": "math", "turns": ["1 + 1"]}
    lines = "\n".join(json.dumps(each) for each in (row, other, row))
    (tmp_path / "spec-bench-questions.jsonl").write_text(lines)
    return tiny.shallow(tmp_path / "model", "llama-bias")


@pytest.fixture
def run(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    asked = ["--model", str(model), "--data-dir", str(tmp_path), "--window", "64", "--limit", "3"]
    asked += ["--out", str(tmp_path / "out"), "--cache", str(tmp_path / "cache")]

    def run(*more: str) -> int:
        monkeypatch.setattr(sys, "argv", ["quality", *asked, *more])
        return quality.main()

    return run


def told(folder: Path) -> tuple[dict[str, Any], str]:
    path = folder / "out" / "quality_model_64.json"
    return json.loads(path.read_text()), path.with_suffix(".md").read_text()


def test_it_goes_on_where_it_stopped(run: Run, tmp_path: Path) -> None:
    first = ["none", "kmeans:group=64", "kllm:act_bits=16 + a=4,outliers=0.05"]
    assert run("--settings", *first[:2]) == 0
    before, _ = told(tmp_path)
    (kept,) = (tmp_path / "cache").iterdir()
    assert kept.name == "model-kmeans-group=64.safetensors"
    kept.write_bytes(b"")  # it is not read again
    assert run("--settings", *first, "none + a=8", "rtn:symmetric=false uncalibrated") == 0
    after, drawn = told(tmp_path)
    assert after["cells"]["none"]["none"] == before["cells"]["none"]["none"]
    assert list(after["cells"]) == ["none", "kmeans:group=64", "kllm:act_bits=16"]
    assert "Refused: `rtn:symmetric=false uncalibrated`: only codes of int8 levels" in drawn
    exact = after["cells"]["none"]["none"]
    assert exact["ratio"] == 1 and exact["divergence"] == 0 and exact["agreement"] == 1
    coded = after["cells"]["kllm:act_bits=16"][first[2]]
    rounded = after["cells"]["none"]["none + a=8"]
    assert 0 < rounded["divergence"] < coded["divergence"]
    # 64 or 96 inputs, panels of 16 rows: levels of 16 bytes and scales add to the 4 bits
    assert 4 < coded["bits"] < 5 < 5.1 < exact["bits"] == 32
    assert "| `kllm:act_bits=16` | 4 bits | selection |  |  |  |  | " in drawn
    assert run("--settings", "none", "--limit", "2") == 2


def test_windows_of_another_text_are_refused(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--settings", "none") == 0
    (tmp_path / "wikitext2-test-raw.txt").write_text(OWLS[::-1] * 30)
    assert run("--settings", "none") == 2
    assert "give another folder with --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--settings", "kmeens"], "unknown quant 'kmeens'. Did you mean 'kmeans'?"),
        (["--settings", "none + a=5"], "inputs: a=5 bits; allowed: 3, 4, 8, 16"),
        (["--settings", "none + outliers=0.1"], "a=16 is exact; it goes with no other option"),
        (["--settings", "none + a=8,outliers=2"], "inputs: outliers=2.0; allowed: 0..1"),
        (["--settings", "none + a=4,offline=true"], "goes with outliers and K-means levels"),
        (["--settings", "none + a=4,group=8"], "inputs: group=8: must be a multiple of 16, or"),
        (["--settings", "none + a=8,group=64"], "inputs: group goes with K-means levels"),
        (["--settings", "none + a=4,sites=keys+quries"], "unknown site 'quries'. Did you mean 'qu"),
        (["--settings", "none + sites=keys"], "a=16 is exact; it goes with no other option"),
        (["--settings", "none + a=4,sites=scores"], "sites=scores goes with a=8 alone"),
        (["--limit", "0"], "--limit=0: must be at least 1 window"),
        (["--calibrate", "no.txt"], "no.txt: cannot be read"),
    ],
)
def test_refused(
    run: Run, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err


def test_a_text_to_calibrate_on_is_needed(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spec-bench-questions.jsonl").unlink()
    assert run() == 2
    assert "does not exist: give a text to calibrate on with --calibrate" in capsys.readouterr().err


def test_quick(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "SETTINGS", ("none", "kmeans:group=64", "rtn uncalibrated"))
    assert run("--quick") == 0
    found, _ = told(tmp_path)
    assert found["engine"]["evaluated"]["windows"] == 2
    cells = [setting for row in found["cells"].values() for setting in row]
    assert cells[:3] == list(quality.SETTINGS) and len(cells) == 4


def test_sites_have_a_table_of_their_own(run: Run, tmp_path: Path) -> None:
    """Whatever the order of the options; Table IV is of the inputs of matrices alone."""
    linear, values = "none + a=4,outliers=0.05", "none + sites=values,a=4,outliers=0.05"
    assert run("--settings", linear, values, "none + a=8") == 0
    found, drawn = told(tmp_path)
    cells, lines = found["cells"]["none"], drawn.splitlines()
    for sites, setting in (("linear", linear), ("values", values)):
        begin = f"| `{sites}` | `none` | `a=4,outliers=0.05` | {cells[setting]['ratio']:.4f} "
        assert [line.startswith(begin) for line in lines].count(True) == 1
    assert not any(line.startswith("| `linear` | `none` | `a=8`") for line in lines)
    (shares,) = [line for line in lines if line.startswith("| `none` | 4 bits | selection")]
    assert f" {cells[linear]['ratio']:.3f} " in shares


def test_every_default_setting_is_known() -> None:
    for setting in quality.SETTINGS:
        cells.parsed(setting)
    steps = [setting for _, setting, _ in quality_table.STEPS]
    assert set(steps) | set(quality_table.PUBLISHED) <= set(quality.SETTINGS)
    with pytest.raises(InputError, match="inputs: a=16 is exact"):
        cells.parsed("kmeans + even=true")


def test_perplexity_is_that_of_the_command(run: Run, cli: Cli, tmp_path: Path, model: Path) -> None:
    """The unquantized model's, over all windows of the text, by the engine."""
    text = str(tmp_path / "wikitext2-test-raw.txt")
    asked = ["-m", str(model), "--text", text, "--window", "64", "-o", "json"]
    ran = cli("eval", "perplexity", *asked, "--kv-cache-dtype", "float32")
    expected = json.loads(ran.out)["result"]["perplexity"]
    assert run("--settings", "none", "--limit", "1000") == 0
    found, _ = told(tmp_path)
    assert found["cells"]["none"]["none"]["perplexity"] == pytest.approx(expected, rel=1e-4)


def test_weights_of_llama_cpp(run: Run, tmp_path: Path) -> None:
    """A cell of a .gguf file is of its weights and has its bits; without the file it is refused."""
    assert run("--settings", "llama.cpp:Q4_0") == 0
    found, told_of = told(tmp_path)
    assert "quantize_peers makes it" in found["refused"]["llama.cpp:Q4_0"]
    assert "quantize_peers" in told_of
    path = peer_weights.peer_path(tmp_path / "cache", "model", "llama.cpp:Q4_0")
    path.parent.mkdir(exist_ok=True)
    tiny.write_gguf(tiny.shallow(tmp_path / "other"), path)
    assert run("--settings", "none", "llama.cpp:Q4_0") == 0
    cells = told(tmp_path)[0]["cells"]
    assert cells["llama.cpp:Q4_0"]["llama.cpp:Q4_0"]["bits"] == 32


def test_weights_of_hqq(run: Run, tmp_path: Path) -> None:
    """A cell of HQQ's is of the matrices in its file, all else as it was."""
    weights = "hqq:group=32"
    path = peer_weights.peer_path(tmp_path / "cache", "model", weights)
    path.parent.mkdir(exist_ok=True)
    quantize_peers.write_matrices(tmp_path / "model", path)
    assert run("--settings", "none", weights) == 0
    cell = told(tmp_path)[0]["cells"][weights][weights]
    assert cell["bits"] == 5 and cell["ratio"] == pytest.approx(1, abs=1e-6)
    found = load_file(path)
    save_file({name: each * 1.5 for name, each in found.items()}, path)
    (tmp_path / "out").rename(tmp_path / "before")
    assert run("--settings", weights) == 0
    assert abs(told(tmp_path)[0]["cells"][weights][weights]["ratio"] - 1) > 1e-3
    save_file(found | {"layers.99.q": torch.zeros(1, 1)}, path)
    (tmp_path / "out").rename(tmp_path / "twice")
    assert run("--settings", weights) == 0
    assert "has layers.99.q, which the model does not have" in told(tmp_path)[0]["refused"][weights]
