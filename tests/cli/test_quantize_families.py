"""`suffice quantize` on models whose layers differ from Llama's, and files of earlier versions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import tiny
from caches import cache_for
from calibrating import text_flags
from commands import Cli
from suffice.checkpoints.formats.quantized_file import open_quantized
from suffice.checkpoints.open import open_checkpoint
from suffice.decoder.native_model import NativeModel
from suffice.decoder.step_rows import StepRows
from suffice.quantize.torch_decoder import TorchDecoder

TOKENS = torch.randint(3, tiny.VOCABULARY, (20,), generator=torch.Generator().manual_seed(1))
LATER = (
    "embed_norm",
    "experts",
    "late_qk_norm",
    "latent",
    "logit_scale",
    "norm_biases",
    "paired",
    "parallel",
    "query_growth",
    "residual_scale",
    "rounds_embed_scale",
    "shared_norm",
    "whole_qk_norm",
)


_COUNT = {"gpt2": "n_layer"}
_written: list[bytes] = []


def written(cli: Cli, folder: Path) -> Path:
    """Return the file of a model of Gemma 3, which is made once, by a quick method."""
    path = folder / "out.safetensors"
    if _written:
        path.write_bytes(_written[0])
    else:
        quick = ("--method", "rtn:group=none,compensate=true")
        _written.append(quantized(cli, folder, "gemma3", *quick).read_bytes())
    return path


def quantized(cli: Cli, folder: Path, variant: str, *more: str) -> Path:
    layers = {} if variant.startswith("gemma4") else {_COUNT.get(variant, "num_hidden_layers"): 2}
    model = tiny.make(folder / variant, variant, tokenizer=True, **layers)
    output = folder / "out.safetensors"
    ran = cli("quantize", "-m", str(model), *text_flags(folder, 6), "-o", str(output), *more)
    assert ran.code == 0, ran.err
    assert open_quantized(output).config == open_checkpoint(model).config
    return output


@pytest.mark.parametrize(
    "variant",
    [
        *("gemma4", "gemma4-keys"),
        *("apertus", "cohere2", "gpt2", "granite", "hunyuan", "ministral3"),
        *("llama4", "nanochat", "nemotron", "neox", "olmo2", "phi", "phi3-longrope", "smollm3"),
        "youtu",
    ],
)
def test_every_kind_of_layer(cli: Cli, tmp_path: Path, variant: str) -> None:
    """The native step on the file against the reference on the same weights."""
    opened = open_quantized(quantized(cli, tmp_path, variant))
    decoder = TorchDecoder(opened.config, opened.weights)
    cache = cache_for(decoder, "float32", growth="upfront", limit=64)
    cache.reserve(64)
    model = NativeModel(decoder, 64)
    logits = model.step([StepRows(cache, TOKENS.tolist(), outputs=None)])
    expected = decoder.forward(TOKENS, cache_for(decoder), logits="all")
    assert expected is not None
    assert np.abs(logits - expected.numpy()).max() < 0.1 * float(expected.std())


def test_a_file_of_before_some_mechanisms(cli: Cli, tmp_path: Path) -> None:
    """It lacks their fields, and means what it meant."""
    path = written(cli, tmp_path)
    with safe_open(path, framework="pt") as file:
        facts = json.loads(file.metadata()["suffice"])
    config = {name: value for name, value in facts["config"].items() if name not in LATER}
    assert len(config) == len(facts["config"]) - len(LATER)
    for rope in config["ropes"]:
        del rope["partial"]
    before = open_quantized(path).config
    save_file(load_file(path), path, metadata={"suffice": json.dumps({**facts, "config": config})})
    assert open_quantized(path).config == before


def test_parallel_blocks_with_norms_after_them_are_refused(cli: Cli, tmp_path: Path) -> None:
    path = written(cli, tmp_path)
    with safe_open(path, framework="pt") as file:
        facts = json.loads(file.metadata()["suffice"])
    facts["config"]["parallel"] = True
    save_file(load_file(path), path, metadata={"suffice": json.dumps(facts)})
    ran = cli("run", "-m", str(path), "-p", "x")
    assert ran.code == 2
    assert "parallel blocks with placement=sandwich; allowed: pre" in ran.err
