"""Tests of gpt_oss.py and hf_mxfp4.py: experts as files store them, and gpt-oss's softmax."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import gguf_families
import hf_reference
import tiny
from caches import cache_for
from oracle import assert_matches
from suffice import LLM, SamplingParams
from suffice.backends.cpu.linear import unpack
from suffice.checkpoints.open import open_checkpoint
from suffice.decoder.native_model import NativeModel
from suffice.decoder.step_rows import StepRows
from suffice.errors import InputError
from suffice.quant import QUANTS
from suffice.quantize.torch_decoder import TorchDecoder

TOKENS = torch.randint(0, tiny.VOCABULARY, (40,), generator=torch.Generator().manual_seed(1))
VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])  # of e2m1, by code


def coded(folder: Path, plain: Path) -> Path:
    """Write a folder with random experts in MXFP4, and their values into `plain`."""
    stored = load_file(plain / "model.safetensors")
    generator = torch.Generator().manual_seed(7)
    codes_of = dict(stored)
    for name in [each for each in stored if each.endswith("experts.gate_up_proj")]:
        for own in (name, name.replace("gate_up_proj", "down_proj")):
            experts, columns, rows = stored[own].shape
            shape = experts, rows, columns // 32
            blocks = torch.randint(0, 256, (*shape, 16), generator=generator).to(torch.uint8)
            scales = torch.randint(121, 125, shape, generator=generator).to(torch.uint8)
            low, high = blocks & 15, blocks >> 4
            codes = torch.stack((low, high), -1).reshape(*shape, 32).long()
            signs = 1.0 - 2.0 * (codes >= 8)
            factor = torch.exp2(scales.float() - 127)[..., None]
            values = (signs * VALUES[codes & 7] * factor).reshape(experts, rows, columns)
            stored[own] = values.swapaxes(1, 2).contiguous()
            del codes_of[own]
            codes_of[f"{own}_blocks"], codes_of[f"{own}_scales"] = blocks, scales
    save_file(stored, plain / "model.safetensors", metadata={"format": "pt"})
    shutil.copytree(plain, folder)
    save_file(codes_of, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("gpt-oss")
    plain = tiny.make(root / "plain", "gpt-oss", tokenizer=True)
    return {"plain": plain, "coded": coded(root / "coded", plain)}


def logits_of(decoder: TorchDecoder) -> np.ndarray:
    cache = cache_for(decoder, "float32", growth="upfront", limit=64)
    cache.reserve(64)
    rows = [StepRows(cache, TOKENS.tolist(), outputs=None, exact=True, counted=False)]
    return NativeModel(decoder, 64).step(rows)


def test_experts_stay_in_the_codes_of_a_folder(folders: dict[str, Path]) -> None:
    kept, floats = (
        TorchDecoder.from_checkpoint(open_checkpoint(folders["coded"]), QUANTS.build(quant))
        for quant in ("file:dtype=float32", "none:dtype=float32")
    )
    plain = TorchDecoder.from_checkpoint(
        open_checkpoint(folders["plain"]), QUANTS.build("none:dtype=float32")
    )
    for part in ("expert_gate", "expert_up", "expert_down"):
        name = f"layers.1.{part}"
        assert (kept.matrix(name).dtype, floats.matrix(name).dtype) == ("codes", "float32")
        expected = unpack(plain.matrix(name))
        assert np.array_equal(unpack(kept.matrix(name)), expected), part
        assert np.array_equal(unpack(floats.matrix(name)), expected), part
        assert np.array_equal(kept.matrix(name).bias, plain.matrix(name).bias), part
    assert np.array_equal(logits_of(floats), logits_of(plain))
    spread = logits_of(plain).std()
    assert np.abs(logits_of(kept) - logits_of(plain)).max() < 0.02 * spread


def test_a_folder_in_codes_has_the_tokens_of_its_values(folders: dict[str, Path]) -> None:
    model = hf_reference.load(folders["plain"], torch.float32)
    prompt = TOKENS.tolist()
    expected = list(prompt)
    for _ in range(12):
        logits = hf_reference.logits(model, torch.tensor(expected))
        expected.append(int(logits[-1].argmax()))
    llm = LLM(folders["coded"], dtype="float32", threads=1)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    (output,) = llm.generate([prompt], params)
    assert list(output.outputs[0].token_ids) == expected[len(prompt) :]


def test_experts_stay_in_the_codes_of_a_gguf_file(folders: dict[str, Path], tmp_path: Path) -> None:
    file = gguf_families.write(folders["plain"], tmp_path / "x.gguf", "MXFP4")
    decoder = TorchDecoder.from_checkpoint(open_checkpoint(file), QUANTS.build("file"))
    plain = TorchDecoder.from_checkpoint(
        open_checkpoint(folders["plain"]), QUANTS.build("none:dtype=float32")
    )
    for part in ("expert_gate", "expert_up", "expert_down"):
        found = decoder.matrix(f"layers.2.{part}")
        assert found.dtype == "codes"
        assert np.array_equal(unpack(found), unpack(plain.matrix(f"layers.2.{part}"))), part


@pytest.mark.parametrize("heads", [slice(None), slice(0, 1)])
def test_a_spare_logit_takes_its_share(heads: slice, folders: dict[str, Path]) -> None:
    """With a huge one, attention gives nothing but what its output's bias does."""
    decoder = TorchDecoder.from_checkpoint(
        open_checkpoint(folders["plain"]), QUANTS.build("none:dtype=float32")
    )
    weights = dict(decoder.weights)
    for index in range(3):
        name = f"layers.{index}.spare"
        weights[name] = np.array(weights[name])
        weights[name][heads] = 200.0
    changed = TorchDecoder(decoder.config, weights)
    cache = cache_for(changed, "float32", growth="upfront", limit=64)
    expected = changed.forward(TOKENS, cache, logits="all")
    assert expected is not None
    found = logits_of(changed)
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-4)
    assert np.abs(found - logits_of(decoder)).max() > 0.1


@pytest.mark.parametrize(("gate", "up"), [(30.0, 30.0), (-30.0, -30.0), (0.3, -0.2), (7.1, 6.9)])
def test_the_activation_is_clamped(gate: float, up: float) -> None:
    from suffice.quantize.torch_layers import gated

    found = gated("clamped_swish", torch.tensor(gate), torch.tensor(up))
    limited, other = min(gate, 7.0), max(min(up, 7.0), -7.0)
    expected = (other + 1) * limited / (1 + np.exp(-1.702 * limited))
    assert float(found) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_native_experts_are_clamped(folders: dict[str, Path]) -> None:
    """Biases far beyond the clamp: the native logits are the reference's."""
    decoder = TorchDecoder.from_checkpoint(
        open_checkpoint(folders["plain"]), QUANTS.build("none:dtype=float32")
    )
    for part in ("expert_gate", "expert_up"):
        bias = decoder.matrix("layers.1." + part).bias
        assert bias is not None
        bias *= 60
    single = hf_of(decoder, folders["plain"], torch.float32)
    double = hf_of(decoder, folders["plain"], torch.float64)
    exact, same = (hf_reference.logits(model, TOKENS) for model in (double, single))
    assert_matches(torch.from_numpy(logits_of(decoder)), exact, same, factor=4)


def hf_of(decoder: TorchDecoder, folder: Path, dtype: torch.dtype) -> Any:
    model = hf_reference.load(folder, dtype)
    own = model.model.layers[1].mlp.experts.gate_up_proj_bias
    with torch.no_grad():
        for at, part in enumerate(("expert_gate", "expert_up")):
            bias = decoder.matrix("layers.1." + part).bias
            assert bias is not None
            own[:, at::2] = torch.from_numpy(bias).view(own.shape[0], -1)
    return model


@pytest.mark.parametrize("variant", ["gemma2", "gpt-oss"])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("attention", "certified:eps=0.1"),
        ("attention", "art"),
        ("policy", "quest:ratio=0.5"),
        ("policy", "snapkv"),
    ],
)
def test_techniques_that_do_not_know_the_softmax_are_refused(
    variant: str, option: str, value: str
) -> None:
    from suffice.engine.config import Config
    from suffice.engine.options import EngineOptions

    config = tiny_config(variant)
    given = Config.built(EngineOptions("some-model", **{option: value}))
    with pytest.raises(InputError, match=r"^some-model (caps its scores|has a spare logit)"):
        given.check_model(config)
    Config.built(EngineOptions("some-model", policy="streaming")).check_model(config)


def tiny_config(variant: str) -> Any:
    from suffice.decoder.families import family_of

    family, fields = tiny.VARIANTS[variant]
    return family_of({"architectures": [f"{family}ForCausalLM"]}).read(
        {"architectures": [f"{family}ForCausalLM"], **fields}
    )


def test_a_scale_that_is_no_number(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "bad"
    shutil.copytree(folders["coded"], folder)
    stored = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.experts.down_proj_scales"
    stored[name][0, 0, 0] = 255
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="'scales' has NaN entries"):
        TorchDecoder.from_checkpoint(open_checkpoint(folder), QUANTS.build("file"))
