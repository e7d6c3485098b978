"""Tests of folders that other programs have quantized: what they hold, bit for bit."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import code_panels
import quantized_folders
import tiny
from quantized_folders import PROGRAMS, change, refusal, say
from suffice import LLM, SamplingParams
from suffice.backends.cpu.linear import unpack
from suffice.checkpoints.formats.hf_folder import FolderTensors, read_json
from suffice.checkpoints.formats.hf_quantized import QuantizedFolder
from suffice.checkpoints.formats.hf_readers import reader_of
from suffice.checkpoints.open import open_checkpoint
from suffice.checkpoints.source import UnreadCodes
from suffice.decoder.weights import DecoderWeights
from suffice.errors import InputError
from suffice.quant import QUANTS
from suffice.quant.packed_float8 import StoredFloat8, pack_float8

Q = "model.layers.1.self_attn.q_proj"
WIDE = {"hidden_size": 160, "intermediate_size": 288, "head_dim": 32}  # blocks of 128, cut


def quantized(folder: Path, program: str, **changes: int) -> dict[str, np.ndarray]:
    """Write a tiny quantized model, and return its matrices; what was made once is copied."""
    key = program, *changes.items()
    if key not in _made:
        with tempfile.TemporaryDirectory() as name:
            tiny.make(Path(name), **WIDE, **changes)
            weights = quantized_folders.write(Path(name), PROGRAMS[program])
            _made[key] = {path.name: path.read_bytes() for path in Path(name).iterdir()}, weights
    files, weights = _made[key]
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return weights


_made: dict[Any, tuple[dict[str, bytes], dict[str, np.ndarray]]] = {}


def source(folder: Path) -> QuantizedFolder:
    raw = read_json(folder / "config.json")
    return QuantizedFolder(FolderTensors(folder), reader_of(raw, str(folder)))


@pytest.mark.parametrize("program", PROGRAMS)
def test_values_are_those_of_the_programs_formula(program: str, tmp_path: Path) -> None:
    weights = quantized(tmp_path, program)
    folder = source(tmp_path)
    assert len(weights) == 21
    for name, weight in weights.items():
        assert np.array_equal(folder.load(name), weight), name
        part = np.empty((7, weight.shape[1]), np.float32)
        folder.load_rows(name, 3, part)
        assert np.array_equal(part, weight[3:10])
    checkpoint = open_checkpoint(tmp_path)
    assert {name for name, _ in checkpoint.tensors()} == set(checkpoint.names)


@pytest.mark.parametrize(
    ("program", "bits", "scales", "minima", "ordered"),
    [
        ("gptq-2", 2, "float16", "zero", False),
        ("gptq-3", 3, "float16", "zero", False),
        ("gptq-8", 8, "float16", "zero", False),
        ("gptq-sym", 4, "float16", "none", False),
        ("gptq-8-sym", 8, "float16", "none", False),
        ("gptq-act-order", 4, "float16", "zero", True),
        ("gptq-float32", 4, "float32", "zero", False),
        ("awq", 4, "float16", "zero", False),
        ("compressed-4", 4, "bfloat16", "none", False),
        ("compressed-4-act-order", 4, "bfloat16", "none", True),
        ("compressed-bytes", 8, "bfloat16", "none", False),
        ("compressed-bytes-float32", 8, "float32", "none", False),
    ],
)
def test_layouts(
    program: str, bits: int, scales: str, minima: str, ordered: bool, tmp_path: Path
) -> None:
    (name, *_) = quantized(tmp_path, program)
    found = source(tmp_path).codes(name)
    assert isinstance(found, UnreadCodes)
    assert (found.layout.bits, found.layout.scales, found.layout.minima) == (bits, scales, minima)
    assert (found.order is not None) == ordered


@pytest.mark.parametrize("program", PROGRAMS)
def test_panels_have_the_same_values(program: str, tmp_path: Path) -> None:
    weights = quantized(tmp_path, program)
    for name in [f"{Q}.weight", "model.layers.0.mlp.down_proj.weight"]:
        found = source(tmp_path).codes(name)
        if isinstance(found, StoredFloat8):
            assert np.array_equal(unpack(pack_float8(found)), weights[name])
            continue
        rows, columns = weights[name].shape
        panels = np.empty((-(-rows // 16), found.layout.panel_bytes(columns)), np.uint8)
        found.fill(panels)
        ours = code_panels.dense(panels, found.layout, found.levels, rows, columns)
        order = slice(None) if found.order is None else found.order
        assert np.array_equal(ours, weights[name][:, order])


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_same_tokens_as_the_float32_weights(program: str, tmp_path: Path) -> None:
    weights = quantized(tmp_path / "codes", program, tokenizer=True)
    tiny.make(tmp_path / "floats", **WIDE, tokenizer=True)
    quantized_folders.make_float(tmp_path / "floats", weights)
    texts = []
    for folder in ("codes", "floats"):
        llm = LLM(tmp_path / folder, dtype="float32", quantization="none:dtype=float32")
        (found,) = llm.generate([[5, 9, 40]], SamplingParams(temperature=0, max_tokens=12))
        texts.append(found.outputs[0].token_ids)
    assert texts[0] == texts[1]


SCALES = np.array([6e-8, -6e-8, 65504, -65504, 0, 1e-3])


@pytest.mark.parametrize(
    "program", ["gptq-4", "gptq-8", "gptq-sym", "gptq-3-act-order", "awq", "compressed-4-zeros"]
)
def test_extreme_scales(program: str, tmp_path: Path) -> None:
    weights = quantized(tmp_path, program)
    name = "scales" if "weight_scale" not in program and "compressed" not in program else ""
    name = name or "weight_scale"
    stored = load_file(tmp_path / "model.safetensors")
    scale = stored[f"{Q}.{name}"]
    plain = scale.float().numpy().T if name == "scales" else scale.float().numpy()
    changed = np.resize(SCALES, plain.shape).astype(np.float32)
    new = torch.from_numpy(changed.T if name == "scales" else changed).to(scale.dtype)
    change(tmp_path, {f"{Q}.{name}": new.contiguous()})
    rounded = new.float().numpy().T if name == "scales" else new.float().numpy()
    group_of = np.arange(160) // 32
    if f"{Q}.g_idx" in stored:
        group_of = stored[f"{Q}.g_idx"].numpy()
    with np.errstate(over="ignore"):
        levels = np.rint(weights[f"{Q}.weight"] / plain[:, group_of])
    exact = levels * rounded[:, group_of]
    assert np.array_equal(source(tmp_path).load(f"{Q}.weight"), exact)


def test_every_8_bit_float_with_extreme_scales(tmp_path: Path) -> None:
    quantized(tmp_path, "fp8-blocks")
    bytes_ = np.resize(np.array([b for b in range(256) if b & 0x7F != 0x7F], np.uint8), (160, 160))
    scales = np.array([[2.0**-149, 7e35], [-1e-30, 0.0]], np.float32)
    change(
        tmp_path,
        {
            f"{Q}.weight": quantized_folders.tensor(bytes_.view(quantized_folders.FLOAT8)),
            f"{Q}.weight_scale_inv": torch.from_numpy(scales),
        },
    )
    wide = np.repeat(np.repeat(scales, 128, 0), 128, 1)[:160, :160]
    values = [float8_value(byte) for byte in range(256)]
    exact = (np.array(values)[bytes_] * wide.astype(np.float64)).astype(np.float32)
    found = source(tmp_path).codes(f"{Q}.weight")
    assert isinstance(found, StoredFloat8)
    assert np.array_equal(source(tmp_path).load(f"{Q}.weight"), exact)
    assert np.array_equal(pack_float8(found).unpack(), exact)


def float8_value(byte: int) -> float:
    """Return the value of an 8-bit float by the format's definition."""
    sign, exponent, mantissa = byte >> 7, byte >> 3 & 15, byte & 7
    size = 2.0**-9 * mantissa if exponent == 0 else 2.0 ** (exponent - 7) * (1 + mantissa / 8)
    return -size if sign else size


@pytest.mark.parametrize("shape", [(1, 1), (16, 128), (40, 130), (17, 259), (100, 512)])
def test_8_bit_floats_survive_packing(shape: tuple[int, int]) -> None:
    random = np.random.default_rng(1)
    data = random.integers(0x7F, size=shape).astype(np.uint8) | 0x80 * random.integers(
        2, size=shape
    ).astype(np.uint8)
    scales = random.normal(size=(shape[0], -(-shape[1] // 128))).astype(np.float32)
    stored = StoredFloat8(data, scales)
    dense = np.empty(shape, np.float32)
    stored.rows(0, dense)
    packed = pack_float8(stored, bias=np.ones(shape[0], np.float16))
    assert np.array_equal(packed.unpack(), dense)
    assert packed.bytes == packed.data.size + 4 * shape[0]


def test_layers_left_in_float_are_found_by_their_tensors(tmp_path: Path) -> None:
    tiny.make(tmp_path, **WIDE)
    program, kept = PROGRAMS["gptq-4"], load_file(tmp_path / "model.safetensors")
    weights = quantized_folders.write(tmp_path, program, keep=("layers.1", "down_proj"))
    assert len(weights) == 12
    folder = source(tmp_path)
    assert not folder.in_codes(f"{Q}.weight")
    assert folder.in_codes(f"{Q}.weight".replace("layers.1", "layers.0"))
    assert np.array_equal(folder.load(f"{Q}.weight"), kept[f"{Q}.weight"].numpy())
    types = {matrix.name: matrix.type for matrix in open_checkpoint(tmp_path).matrices}
    assert (types["layers.0.q"], types["layers.1.q"]) == ("GPTQ-4", "float32")


def test_biases_of_zeros_that_the_configuration_does_not_mention(tmp_path: Path) -> None:
    quantized(tmp_path, "gptq-4")
    change(tmp_path, {f"{Q}.bias": torch.zeros(128).half()})
    assert "layers.1.q.bias" not in open_checkpoint(tmp_path).names
    change(tmp_path, {f"{Q}.bias": torch.ones(128).half()})
    assert refusal(tmp_path).endswith(f"unknown: {Q}.bias")


def test_scales_of_activations_are_not_needed(tmp_path: Path) -> None:
    weights = quantized(tmp_path, "fp8-tensor")
    change(tmp_path, {f"{Q}.input_scale": torch.ones(1), f"{Q[:-7]}.k_scale": torch.ones(1)})
    assert np.array_equal(source(tmp_path).load(f"{Q}.weight"), weights[f"{Q}.weight"])
    assert len(dict(open_checkpoint(tmp_path).tensors())) == len(open_checkpoint(tmp_path).names)


def test_layers_with_bits_of_their_own(tmp_path: Path) -> None:
    weights = quantized(tmp_path, "gptq-8")
    say(tmp_path, bits=4, group_size=128, dynamic={r"+:.*": {"bits": 8, "group_size": 32}})
    assert np.array_equal(source(tmp_path).load(f"{Q}.weight"), weights[f"{Q}.weight"])


@pytest.mark.parametrize("program", ["awq", "gptq-sym", "compressed-4", "fp8-blocks"])
def test_experts_stay_in_their_codes(program: str, tmp_path: Path) -> None:
    """A stack has the values of all experts' matrices, in codes that a step can run."""
    experts = {"num_experts": 3, "moe_intermediate_size": 288, "mlp_only_layers": []}
    tiny.make(tmp_path, "qwen3-moe", **WIDE, **experts, tokenizer=True)
    weights = quantized_folders.write(tmp_path, PROGRAMS[program])
    decoder = DecoderWeights.from_checkpoint(open_checkpoint(tmp_path), QUANTS.build("file"))
    for part in ("gate", "up", "down"):
        stack = decoder.matrix(f"layers.2.expert_{part}")
        assert stack.dtype == ("float8" if program == "fp8-blocks" else "codes")
        names = [f"model.layers.2.mlp.experts.{e}.{part}_proj.weight" for e in range(3)]
        assert np.array_equal(unpack(stack), np.concatenate([weights[name] for name in names]))
    llm = LLM(tmp_path, dtype="float32")
    (found,) = llm.generate([[5, 9, 40]], SamplingParams(temperature=0, max_tokens=4))
    assert len(found.outputs[0].token_ids) == 4


def test_experts_with_orders_of_their_own_are_refused(tmp_path: Path) -> None:
    tiny.make(tmp_path, "qwen3-moe", **WIDE, moe_intermediate_size=288, mlp_only_layers=[])
    weights = quantized_folders.write(tmp_path, PROGRAMS["gptq-act-order"])
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(InputError, match="experts of a layer have codes in different layouts or"):
        DecoderWeights.from_checkpoint(checkpoint, QUANTS.build("file"))
    floats = DecoderWeights.from_checkpoint(checkpoint, QUANTS.build("none:dtype=float32"))
    up = np.concatenate(
        [weights[f"model.layers.0.mlp.experts.{e}.up_proj.weight"] for e in range(8)]
    )
    assert np.array_equal(unpack(floats.matrix("layers.0.expert_up")), up)
