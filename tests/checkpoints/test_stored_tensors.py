"""Weights in safetensors: read into memory for good, and checked, whatever the file is of."""

from __future__ import annotations

import copy
import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import tiny
from draws import normal
from suffice import LLM, SamplingParams
from suffice.checkpoints.formats.quantized_config import described_config
from suffice.checkpoints.formats.quantized_file import (
    open_quantized,
    read_part,
    stored_tokenizer,
    write_part,
)
from suffice.checkpoints.open import open_checkpoint
from suffice.checkpoints.stored_tensors import StoredTensors
from suffice.decoder.weights import DecoderWeights
from suffice.errors import InputError
from suffice.quant import QUANTS, PackedLinear
from suffice.quant.packed_codes import PackedCodes
from suffice.text.tokenizer import load_tokenizer

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
CALIBRATED = {"name": "text", "windows": 1, "window": 64}


def folder(path: Path) -> Path:
    return tiny.make(path, "llama-bias", tokenizer=True) / "model.safetensors"


@functools.cache
def packed() -> DecoderWeights:
    """A tiny model that is quantized once for all tests, which take copies."""
    with tempfile.TemporaryDirectory() as name:
        model = open_checkpoint(tiny.make(Path(name), "llama-bias", tokenizer=True))
        return DecoderWeights.from_checkpoint(model, QUANTS.build("kmeans"))


def quantized(path: Path, spoil: Callable[[dict[str, Any]], None] = lambda weights: None) -> Path:
    """Write a file like those of `suffice quantize`, without a calibration."""
    model = tiny.make(path / "model", "llama-bias", tokenizer=True)
    decoder = copy.deepcopy(packed())
    described, text = load_tokenizer(model).stored()
    facts = {
        "model": {"name": "model", "hash": "ab"},
        "method": "kmeans",
        "text": CALIBRATED,
        "config": described_config(decoder.config),
        "tokenizer": described,
    }
    weights = decoder.weights
    spoil(weights)
    file = path / "q.safetensors"
    tokenizer = np.frombuffer(text.encode(), np.uint8)
    write_part(file, weights, facts, tokenizer=tokenizer)
    return file


@pytest.mark.parametrize("make", [folder, quantized])
@pytest.mark.parametrize("huge_pages", [True, False])
def test_a_loaded_model_does_not_depend_on_its_file(
    make: Callable[[Path], Path],
    huge_pages: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not huge_pages:
        monkeypatch.setattr("suffice.engine.load.to_huge_pages", lambda *given: None)
    file = make(tmp_path)
    model = tmp_path if make is folder else file
    llm = LLM(model, threads=1, dtype="auto")

    def text() -> str:
        (output,) = llm.generate("The owls", GREEDY, use_tqdm=False)
        return output.outputs[0].text

    expected = text()
    assert str(file) not in Path("/proc/self/maps").read_text()
    with file.open("r+b") as opened:  # in place, as rsync --inplace does
        opened.write(b"\xff" * file.stat().st_size)
    assert text() == expected
    os.truncate(file, 0)
    assert text() == expected


def not_a_number(weights: dict[str, Any], name: str, part: str) -> None:
    weight = weights[name]
    if part == "scales":
        assert isinstance(weight, PackedCodes)
        weight.data.reshape(-1)[:2] = 0x00, 0x7E  # float16 NaN
    else:
        (getattr(weight, part) if part else weight).reshape(-1)[-1] = np.nan


@pytest.mark.parametrize(
    ("name", "part", "said"),
    [
        ("final_norm", "", "final_norm"),
        ("layers.1.attn_norm", "", "layers.1.attn_norm"),
        ("layers.0.q", "bias", "layers.0.q.bias"),
        ("layers.0.down", "scales", "layers.0.down.data"),
        ("embed", "scales", "embed.data"),
    ],
)
def test_entries_of_a_quantized_file_are_finite(
    name: str, part: str, said: str, tmp_path: Path
) -> None:
    file = quantized(tmp_path, lambda weights: not_a_number(weights, name, part))
    with pytest.raises(InputError) as error:
        open_quantized(file)
    assert str(error.value) == (
        f"{file}: weight '{said}' has NaN or infinite entries; all must be finite"
    )


def test_a_quantized_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    kept: dict[str, Any] = {}
    file = quantized(tmp_path, kept.update)
    opened = open_quantized(file)
    for name, weight in opened.weights.items():
        if isinstance(weight, PackedLinear):
            assert np.array_equal(weight.data, kept[name].data)
        else:
            assert np.array_equal(weight, kept[name])
    assert stored_tokenizer(file)[1].startswith("{")


@pytest.mark.parametrize("kind", ["none", "none:dtype=float32", "int8"])
def test_weights_of_every_type_are_read_as_they_were_written(kind: str, tmp_path: Path) -> None:
    weight = QUANTS.build(kind).pack(normal(20, 33), normal(20, seed=1))
    write_part(tmp_path / "part.safetensors", {"layers.0.q": weight}, {})
    _, weights = read_part(tmp_path / "part.safetensors")
    read = weights["layers.0.q"]
    assert isinstance(read, PackedLinear) and read.data.dtype == weight.data.dtype
    assert np.array_equal(read.unpack(), weight.unpack())
    assert np.array_equal(read.bias, weight.bias)


def test_every_type_is_read_and_a_file_that_is_cut_meanwhile_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    types = [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.int64, torch.bool]
    tensors = {str(kind): torch.arange(6).view(2, 3).to(kind) for kind in types}
    save_file(tensors | {"none": torch.empty(0, 4), "one": torch.tensor(2.5)}, file)
    stored = StoredTensors(file)
    for name, tensor in tensors.items():
        loaded = stored.load(name)
        assert loaded.dtype.name == name.removeprefix("torch.")
        assert np.array_equal(loaded.astype(np.float32), tensor.float().numpy())
    assert stored.load("none").shape == (0, 4) and stored.load("one") == 2.5
    os.truncate(file, file.stat().st_size - 200)
    with pytest.raises(InputError, match=r"x.safetensors was cut short while '.*' was read"):
        for name in stored.names:
            stored.load(name)
