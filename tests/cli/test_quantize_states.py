"""`suffice quantize` on models whose layers keep states."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from caches import cache_for
from calibrating import text_flags
from commands import Cli
from suffice.backends.cpu.linear import unpack
from suffice.checkpoints.formats.quantized_config import described_config, read_config
from suffice.checkpoints.formats.quantized_file import open_quantized
from suffice.checkpoints.open import open_checkpoint
from suffice.decoder.native_model import NativeModel
from suffice.decoder.step_rows import StepRows
from suffice.decoder.weights import DecoderWeights
from suffice.errors import InputError
from suffice.quant import QUANTS, PackedLinear
from suffice.quant.packed_codes import PackedCodes
from suffice.quant.sites import STATES
from suffice.quantize.layerwise import Layerwise
from suffice.quantize.torch_decoder import TorchDecoder

METHODS = {
    "bamba": "kmeans",
    "falcon-h1": "kmeans",
    "kimi": "kmeans",
    "lfm2": "kmeans",
    "nemotron-h": "4bit",
    "olmo-hybrid": "kmeans",
    "qwen3-next": "4bit",
    "qwen3.5": "kmeans",
}
IN_FLOAT = ("strength", "decay", "decay_low", "gate_low", "gate_up")


def test_all_are_tried() -> None:
    assert set(METHODS) == set(tiny.STATEFUL)


@pytest.mark.parametrize("variant", METHODS)
def test_layers_with_states_go_round(cli: Cli, tmp_path: Path, variant: str) -> None:
    """The native step on the file against the reference, and the file against the model."""
    model = tiny.make(tmp_path / variant, variant, tokenizer=True)
    output = tmp_path / "out.safetensors"
    flags = (*text_flags(tmp_path, 6), "-o", str(output), "--method", METHODS[variant])
    ran = cli("quantize", "-m", str(model), *flags)
    assert ran.code == 0, ran.err
    opened, checkpoint = open_quantized(output), open_checkpoint(model)
    assert opened.config == checkpoint.config and opened.config.state is not None
    plain = DecoderWeights.from_checkpoint(checkpoint, QUANTS.build("none:dtype=float32"))
    (index,) = [at for at, own in enumerate(opened.config.layers) if own.keeps_state][:1]
    for matrix in opened.config.state.matrices:
        name = f"layers.{index}.{matrix}"
        found, weight = opened.weights[name], plain.weights[name]
        assert isinstance(found, PackedLinear) and isinstance(weight, PackedLinear)
        assert isinstance(found, PackedCodes) == (matrix not in IN_FLOAT)
        error = np.square(unpack(found) - unpack(weight)).sum() / np.square(unpack(weight)).sum()
        assert error < 0.06 if isinstance(found, PackedCodes) else error == 0
        if isinstance(found, PackedCodes):
            assert found.site is None, "inputs of a block with a state are not rounded"
            assert 0 < opened.facts["matrices"][name]["loss"] < 0.06
    assert_runs_as_the_reference(TorchDecoder(opened.config, opened.weights))


def assert_runs_as_the_reference(decoder: TorchDecoder) -> None:
    chance = random.Random(1)
    tokens = [chance.randrange(3, tiny.VOCABULARY) for _ in range(20)]
    cache = cache_for(decoder, "float32", growth="upfront", limit=64)
    cache.reserve(64)
    logits = NativeModel(decoder, 64).step([StepRows(cache, tokens, outputs=None)])
    expected = decoder.forward(torch.tensor(tokens), cache_for(decoder), logits="all")
    assert expected is not None
    assert np.abs(logits - expected.numpy()).max() < 0.1 * float(expected.std())


@pytest.mark.parametrize("variant", ["lfm2", "olmo-hybrid", "qwen3.5"])
def test_inputs_are_taken_once_of_all_windows(tmp_path: Path, variant: str) -> None:
    """H is the mean over tokens of x x^T, whichever matrices share the input."""
    decoder = DecoderWeights.from_checkpoint(
        open_checkpoint(tiny.make(tmp_path / variant, variant)), QUANTS.build("none:dtype=float32")
    )
    taken: dict[str, list[torch.Tensor]] = {}

    class Noting(Layerwise):
        def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
            taken.setdefault(name.rpartition(".")[2], []).append(x)
            return super()._linear(name, x)

    layers = Noting(decoder, [[5, 6, 7, 8], [9, 10, 11]])
    inputs = layers.inputs(0)
    for site, names in STATES.items():
        (first, *_) = [taken[name] for name in names if name in taken]
        x = torch.cat(first)
        assert len(x) == 7
        torch.testing.assert_close(inputs[site].hessian, x.T @ x / 7)


DAMAGED: dict[str, tuple[Any, str]] = {
    "none": (None, "layers with states, but no sizes of them"),
    "kind": ({"kind": "lstm"}, "lstm"),
    "size": ({"heads": 0}, "config field 'heads' = 0 must be a whole number"),
    "flag": ({"tiled": "no"}, "tiled=no, which is no truth value"),
    "order": ({"order": ["keys", "keys", "values"]}, "other parts than queries, keys and values"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_description(tmp_path: Path, damage: str) -> None:
    config = open_checkpoint(tiny.make(tmp_path / "model", "qwen3.5")).config
    stored = described_config(config)
    assert read_config(stored) == config
    changed, message = DAMAGED[damage]
    stored["state"] = changed and {**stored["state"], **changed}
    with pytest.raises((InputError, KeyError, ValueError), match=message):
        read_config(stored)
