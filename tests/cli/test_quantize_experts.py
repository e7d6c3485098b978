"""`suffice quantize` on mixtures of experts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny
from caches import cache_for
from calibrating import text_flags
from commands import Cli
from suffice.backends.cpu.linear import unpack
from suffice.checkpoints.formats.quantized_config import described_config, read_config
from suffice.checkpoints.formats.quantized_file import open_quantized
from suffice.checkpoints.open import open_checkpoint
from suffice.decoder.blocks import ExpertMLP
from suffice.decoder.native_model import NativeModel
from suffice.decoder.step_rows import StepRows
from suffice.decoder.weights import DecoderWeights
from suffice.quant import QUANTS, PackedLinear
from suffice.quant.packed_codes import PackedCodes
from suffice.quantize import experts, layerwise, torch_mlps
from suffice.quantize.calibrated import Calibrated
from suffice.quantize.torch_decoder import TorchDecoder
from suffice.quantize.torch_layers import route

TOKENS = torch.randint(3, tiny.VOCABULARY, (20,), generator=torch.Generator().manual_seed(1))


SMALLER: dict[str, dict[str, Any]] = {
    "gpt-oss": {"num_hidden_layers": 2, "num_local_experts": 3},
    "mixtral": {"num_hidden_layers": 2, "num_local_experts": 4},
    "nemotron-h-latent": {"layers_block_type": ["moe", "full_attention"]},
    "nemotron-h-moe": {"layers_block_type": ["moe", "full_attention"]},  # without gates
    "olmoe": {"num_hidden_layers": 2, "num_experts": 4},
    "qwen2-moe": {},
}
_written: dict[tuple[str, str], bytes] = {}


def quantized(cli: Cli, folder: Path, variant: str, method: str) -> tuple[Path, Path]:
    """Return a model and the file of a method, which is made once."""
    model = tiny.make(folder / variant, variant, tokenizer=True, **SMALLER[variant])
    output = folder / "out.safetensors"
    if (variant, method) in _written:
        output.write_bytes(_written[variant, method])
        return model, output
    flags = (*text_flags(folder, 6), "-o", str(output), "--method", method)
    ran = cli("quantize", "-m", str(model), *flags)
    assert ran.code == 0, ran.err
    assert open_quantized(output).config == open_checkpoint(model).config
    _written[variant, method] = output.read_bytes()
    return model, output


EXPERTS = {
    **dict.fromkeys(
        ("gpt-oss", "mixtral", "nemotron-h-latent", "nemotron-h-moe", "olmoe"), "kmeans"
    ),
    "qwen2-moe": "4bit",
}
METHODS = ["kmeans", "4bit", "rtn:bits=4,group=32,compensate=true", "kllm:act_bits=4"]


@pytest.mark.parametrize("variant", EXPERTS)
def test_experts_go_round(cli: Cli, tmp_path: Path, variant: str) -> None:
    """The native step on the file against the reference, and the file against the model."""
    _, path = quantized(cli, tmp_path, variant, EXPERTS[variant])
    opened = open_quantized(path)
    block = opened.config.blocks(0)[-1]
    assert isinstance(block, ExpertMLP)
    coded = [opened.weights[f"layers.0.{name}"] for name in block.matrices if "expert_" in name]
    assert len(coded) == (3 if block.experts.gated else 2)
    assert all(isinstance(each, PackedCodes) for each in coded)
    router = opened.weights["layers.0.router"]
    assert isinstance(router, PackedLinear) and router.dtype == "float32"
    decoder = TorchDecoder(opened.config, opened.weights)
    cache = cache_for(decoder, "float32", growth="upfront", limit=64)
    cache.reserve(64)
    logits = NativeModel(decoder, 64).step([StepRows(cache, TOKENS.tolist(), outputs=None)])
    expected = decoder.forward(TOKENS, cache_for(decoder), logits="all")
    assert expected is not None
    assert np.abs(logits - expected.numpy()).max() < 0.1 * float(expected.std())


@pytest.mark.parametrize("method", METHODS)
def test_methods_on_experts(cli: Cli, tmp_path: Path, method: str) -> None:
    model, output = quantized(cli, tmp_path, "olmoe", method)
    opened, plain = open_quantized(output), DecoderWeights.from_checkpoint(
        open_checkpoint(model), QUANTS.build("none:dtype=float32")
    )  # fmt: skip
    for name in ("expert_gate", "expert_up", "expert_down"):
        found, weight = (unpack(each.weights[f"layers.1.{name}"]) for each in (opened, plain))
        error = np.square(found - weight).sum() / np.square(weight).sum()
        assert error < 0.06, "the rows of an expert are where they were"
        assert 0 < opened.facts["matrices"][f"layers.1.{name}"]["loss"] < 0.06
    assert cli("run", "-m", str(output), "-p", "x", "-n", "2", "--raw").code == 0


def test_experts_that_the_text_does_not_reach_are_named(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are calibrated on the inputs of all rows."""
    layers = 2
    model = tiny.make(tmp_path / "mixtral", "mixtral", tokenizer=True, num_hidden_layers=layers)
    stored = load_file(model / "model.safetensors")
    (name,) = [each for each in stored if ".layers.1." in each and each.endswith("gate.weight")]
    stored[name][2:4] = 0  # scores of 0: below the greatest two of the others, but for a few rows
    stored[name][4] = stored[name][5] = 1.0
    stored[name][0:2] = -stored[name][4:6] * 0.5
    save_file(stored, model / "model.safetensors", metadata={"format": "pt"})
    reached = []

    def noted(logits: torch.Tensor, experts: object, bias: object) -> torch.Tensor:
        weights = route(logits, experts)  # type: ignore[arg-type]
        reached.append((weights != 0).any(0))
        return weights

    monkeypatch.setattr(torch_mlps, "route", noted)
    output = tmp_path / "out.safetensors"
    flags = (*text_flags(tmp_path, 6), "-o", str(output), "--method", "4bit")
    ran = cli("quantize", "-m", str(model), *flags)
    assert ran.code == 0, ran.err
    windows = len(reached) // layers
    expected = {}
    for layer in range(layers):
        any_reached = torch.stack(reached[layer * windows : (layer + 1) * windows]).any(0)
        if not any_reached.all():
            expected[str(layer)] = (~any_reached).nonzero()[:, 0].tolist()
    assert "1" in expected, "the test has an expert that nothing reaches"
    opened = open_quantized(output)
    assert opened.facts["unreached"] == expected
    count = sum(map(len, expected.values()))
    assert f"the text never reached {count} experts" in ran.err
    assert f"layer 1: {', '.join(map(str, expected['1']))}" in ran.err
    for name in ("expert_gate", "expert_down"):
        found = unpack(opened.weights[f"layers.1.{name}"])
        plain = open_checkpoint(model)
        weight = unpack(
            DecoderWeights.from_checkpoint(plain, QUANTS.build("none:dtype=float32")).weights[
                f"layers.1.{name}"
            ]
        )
        size = len(weight) // 6
        for expert in expected["1"]:
            own = slice(expert * size, (expert + 1) * size)
            error = np.square(found[own] - weight[own]).sum() / np.square(weight[own]).sum()
            assert error < 0.06


def test_a_seldom_reached_expert_has_moments_of_full_rank(tmp_path: Path) -> None:
    model = tiny.make(tmp_path / "mixtral", "mixtral")
    decoder = DecoderWeights.from_checkpoint(
        open_checkpoint(model), QUANTS.build("none:dtype=float32")
    )
    rows = torch.randn((200, 64), generator=torch.Generator().manual_seed(3))
    weights = torch.zeros((200, 6))
    weights[:, 0] = 0.5
    weights[7, 4] = 0.5
    layers = layerwise.Layerwise(decoder, [[5, 6, 7]])
    (block,) = [each for each in decoder.config.blocks(0) if isinstance(each, ExpertMLP)]
    own = experts._Experts(layers, 0, block, rows, weights)
    often, seldom, never = (own.into(expert) for expert in (0, 4, 5))
    everything = (rows.T @ rows).numpy()
    share = experts.PRIOR / 200
    np.testing.assert_allclose(often, everything * (1 + share) / 200, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(never, everything * share / 200, rtol=1e-4, atol=1e-5)
    one = (rows[7:8].T @ rows[7:8]).numpy()
    np.testing.assert_allclose(seldom, never + one / 200, rtol=1e-4, atol=1e-5)
    assert np.linalg.matrix_rank(seldom) == 64 > 1


def test_every_method_that_calibrates_has_all_that_is_asked() -> None:
    asked = [name for name in vars(Calibrated) if not name.startswith("_")]
    assert "shared_levels" in asked
    methods = [QUANTS.build(name) for name in METHODS]
    assert all(method.calibrates for method in methods)
    assert not [(method, name) for method in methods for name in asked if not hasattr(method, name)]


def test_levels_that_experts_share_are_kept() -> None:
    random = np.random.default_rng(0)
    parts = [random.standard_normal((16, 64), np.float32) * scale for scale in (1.0, 7.0)]
    method = QUANTS.build("kmeans:bits=3")
    levels = method.shared_levels([(part, np.eye(64, dtype=np.float32)) for part in parts])
    assert len(levels) == 8
    first, second = (
        method.packed(method.quantize(part, np.eye(64, dtype=np.float32), levels=levels))
        for part in parts
    )
    assert np.array_equal(first.levels, second.levels)
    own = method.packed(method.quantize(parts[0] ** 3, np.eye(64, dtype=np.float32)))
    assert not np.array_equal(own.levels, first.levels), "without, each has its own"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": ["top", "guess"]}, "experts have the steps top, guess, which are no rule"),
        ({"steps": ["softmax"]}, "experts have the steps softmax, which are no rule"),
        ({"count": 0}, "'count' = 0"),
        ({"chosen": 2.5}, "'chosen' = 2.5"),
        ({"chosen": 9}, "is more than the 6 experts"),
        ({"inner": 40}, "a multiple of 16"),
        ({"scale": float("nan")}, "'scale' = nan"),
        ({"shared": -1}, "'shared' = -1"),
        ({"gated_share": 1}, "gated_share, biased, before, gated are truth values"),
        ({"more": 1}, "experts have other fields"),
    ],
)
def test_damaged_experts_of_a_file(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    stored = described_config(open_checkpoint(tiny.make(tmp_path / "m", "mixtral")).config)
    assert read_config(stored).experts is not None
    stored["experts"] |= change
    with pytest.raises(ValueError, match=re.escape(message)):
        read_config(stored)
