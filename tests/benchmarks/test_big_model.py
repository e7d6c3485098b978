"""The benchmark of a big model, at a tiny shape: it is a model, and what it reads is counted."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.linalg import norm

from benchmarks.quant import big_model
from suffice import native
from suffice.errors import InputError
from suffice.quant.packed_codes import PackedCodes
from suffice.quantize.torch_decoder import TorchDecoder

PLAN = big_model.Plan([0, 40], rounds=1, steps=2, read_bytes=1 << 16)


def ask(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["big_model", *arguments])
    threads, of_torch = native.threads(), torch.get_num_threads()
    try:
        return big_model.main()
    finally:
        native.set_threads(threads)
        torch.set_num_threads(of_torch)


def test_quick_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(monkeypatch, "--quick", "--out", str(tmp_path)) == 0
    found = json.loads((tmp_path / "big_model_tiny.json").read_text())
    assert [(line["weights"], line["tokens before"]) for line in found["lines"]] == [
        (f"`{setting}`", tokens) for setting in big_model.SETTINGS for tokens in (4, 40)
    ]
    assert all(line["ms, best"] <= line["ms, median"] for line in found["lines"])
    assert all(peak > 0 for peak in found["peak_bytes"].values())
    drawn = (tmp_path / "big_model_tiny.md").read_text()
    assert "no figure means anything" in drawn and drawn in capsys.readouterr().out


@pytest.mark.parametrize("setting", ["kmeans", "kmeans:group=none", "rtn:group=32"])
def test_the_model_is_the_engines(setting: str) -> None:
    runner = big_model.made(big_model.TINY, setting, lambda: None)
    request = runner.open("native", 20)
    tokens = [7, 3, 190, 55, 8]
    runner.prefill(request, tokens[:-1])
    runner.reserve(request)
    logits = runner.step([request], tokens[-1:])[0]
    reference = TorchDecoder(runner.decoder.config, runner.decoder.weights)
    found = reference.forward(torch.tensor(tokens), runner.open("reference", 20).cache)
    assert found is not None and 0.1 < float(found.std()) < 10
    expected = found.numpy()
    assert norm(logits - expected) / norm(expected) < 0.03, "keys are int8"
    matrix = runner.decoder.weights["layers.1.down"]
    assert isinstance(matrix, PackedCodes)
    dense = matrix.unpack()
    assert len(np.unique(dense, axis=0)) == len(dense), "no row is like another"
    assert 0.5 < float(dense.std()) * matrix.columns**0.5 < 2


def test_every_byte_that_a_step_reads_is_counted() -> None:
    runner = big_model.made(big_model.TINY, "rtn:act_bits=8", lambda: None)
    shallow, deep = big_model.measure(runner, PLAN, lambda: None).values()
    shape = big_model.TINY
    # of each panel of 16 rows: a line of scales, then half a byte for each weight
    layers = sum(rows // 16 * 64 + rows * columns // 2 for rows, columns in shape.linears)
    head = -(-shape.vocabulary // 16) * 16 * (shape.width + 4)  # int8, a scale for each row
    weights = shape.layers * layers + head
    assert shallow.bytes_read - shallow.kv_bytes_read == weights
    assert deep.bytes_read - deep.kv_bytes_read == weights
    row = runner.open("row", 20).cache.row_bytes
    assert shallow.kv_bytes_read == 5.5 * row, "the prompt's four tokens, and one or two more"
    assert deep.kv_bytes_read == 41.5 * row
    assert len(shallow.seconds) == PLAN.rounds


def test_what_is_reached() -> None:
    fast = big_model.Times(8e9, 0, [1.0, 1.0], [10e9, 10e9], [9e9, 9e9])
    slow = big_model.Times(8e9, 0, [1.0, 2.0], [10e9, 12e9], [9e9, 9e9])
    unknown = big_model.Times(8e9, 0, [1.0], [10e9], [11e9])
    found = {"a": {0: fast, 9: slow}, "b": {9: slow}, "c": {0: unknown}}
    lines = big_model.bars(found, 9 << 30)
    assert [line[2:] for line in lines[:2]] == [[0.8, "yes"], [pytest.approx(0.5667, 1e-3), "no"]]
    assert lines[2][3].startswith("unknown") and lines[3][2:] == [9, "no"]


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        (["--shape", "llama-2-7"], "unknown shape 'llama-2-7'. Did you mean 'llama-2-7b'?"),
        (["--quick", "--settings", "none"], "--settings none: stores no codes"),
        (["--quick", "--settings", "kllm"], "act_bits=4: needs a calibration"),
        (
            ["--quick", "--settings", "rtn:group=5"],
            "rtn: group=5: must be a multiple of 32, such as 32, or none",
        ),
        (["--depths", "4090"], "--depths 4090: must be from 0 to 4084, so that 8 steps fit"),
        (["--rounds", "0"], "--rounds=0, --steps=8: both must be at least 1"),
    ],
)
def test_bad_input_is_one_line(
    asked: list[str],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ask(monkeypatch, *asked) == 2
    told = capsys.readouterr().err
    assert complaint in told and len(told.splitlines()) == 1
    with pytest.raises(InputError):
        big_model.shape_of("llama-30b")
