"""Tests of gguf_file.py, gguf_model.py and gguf_tokenizer.py."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import tiny
from suffice.checkpoints.checkpoint import Checkpoint
from suffice.checkpoints.formats.gguf_file import GGUF
from suffice.checkpoints.open import open_checkpoint
from suffice.decoder.rope import rope_table
from suffice.errors import InputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.make(tmp_path / "tiny", "llama", rms_norm_eps=1e-5)


def write(path: Path, arch: str, keys: dict[str, Any], tensors: dict[str, Any]) -> Path:
    """Write a GGUF file from metadata (types taken from Python's) and float32 arrays."""
    writer = gguf.GGUFWriter(path, arch)
    for key, value in keys.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_uint32(key, value)
    for name, values in tensors.items():
        writer.add_tensor(name, np.asarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def rewrite(source: Path, path: Path, arch: str, add: dict[str, Any], drop: str = "") -> Path:
    """Copy a GGUF file under another architecture, with keys added and one tensor dropped."""
    file = GGUF.open(source)
    keys = {k.replace("llama.", arch + "."): v for k, v in file.metadata.items() if "llama." in k}
    tensors = {name: file.load(name) for name in file.tensors if name != drop}
    return write(path, arch, {**keys, **add}, tensors)


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        open_checkpoint(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def same_up_to_eps(one: Checkpoint, other: Checkpoint) -> bool:
    # GGUF holds the epsilon in float32
    assert one.config.norm_eps == pytest.approx(other.config.norm_eps, rel=1e-6)
    return one.config == dataclasses.replace(other.config, norm_eps=one.config.norm_eps)


@pytest.mark.parametrize("tied", [False, True])
def test_the_same_model_as_in_safetensors(tied: bool, tmp_path: Path) -> None:
    folder = tiny.make(tmp_path / "tiny", "llama", tie_word_embeddings=tied)
    original = open_checkpoint(folder)
    converted = open_checkpoint(tiny.write_gguf(folder, tmp_path / "tiny.gguf"))
    assert same_up_to_eps(original, converted)
    expected = dict(original.tensors())
    tensors = dict(converted.tensors())
    assert expected.keys() == tensors.keys()
    for name, tensor in expected.items():
        assert np.array_equal(tensor, tensors[name]), name
    assert converted.dtype == "float32"


@pytest.mark.parametrize(("kind", "bits"), [("F16", 10), ("BF16", 7), ("Q8_0", 7), ("Q4_1", 3)])
def test_smaller_types(kind: str, bits: int, folder: Path, tmp_path: Path) -> None:
    converted = open_checkpoint(tiny.write_gguf(folder, tmp_path / "tiny.gguf", kind))
    exact = dict(open_checkpoint(folder).tensors())
    for name, tensor in converted.tensors():
        error = np.abs(tensor.astype(np.float32) - exact[name]).max() / np.abs(exact[name]).max()
        assert error < 2.0**-bits, name
        assert (error > 0) == (tensor.ndim == 2), name
    assert converted.dtype == ("float16" if kind == "F16" else "bfloat16")


def test_rotary_divisors_stand_for_llama3_scaling(tmp_path: Path) -> None:
    folder = tiny.make(tmp_path / "tiny", "llama-llama3")
    original = open_checkpoint(folder).config
    plain = tiny.write_gguf(folder, tmp_path / "plain.gguf")
    rope = original.ropes[0]
    default = rope_table(dataclasses.replace(rope, kind="default", parameters=()), 16, 128, 2)
    scaled = rope_table(rope, 16, 128, 2)
    # at position 1 the angle is the frequency
    divisors = np.arctan2(default[1][1], default[0][1]) / np.arctan2(scaled[1][1], scaled[0][1])
    file = GGUF.open(plain)
    tensors = {name: file.load(name) for name in file.tensors}
    keys = {key: value for key, value in file.metadata.items() if key.startswith("llama.")}
    path = write(
        tmp_path / "scaled.gguf", "llama", keys, {**tensors, "rope_freqs.weight": divisors}
    )
    converted = open_checkpoint(path).config
    for ours, theirs in zip(
        rope_table(converted.ropes[0], 16, 128, 100), rope_table(rope, 16, 128, 100), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


def test_rope_scaling(folder: Path, tmp_path: Path) -> None:
    plain = tiny.write_gguf(folder, tmp_path / "plain.gguf")
    scaling = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 32,
    }
    config = open_checkpoint(rewrite(plain, tmp_path / "yarn.gguf", "llama", scaling)).config
    assert config.ropes[0].kind == "yarn"
    parameters = (("factor", 4.0), ("original_max_position_embeddings", 32))
    assert config.ropes[0].parameters == parameters
    scaling["llama.rope.scaling.type"] = "longrope"
    assert refusal(rewrite(plain, tmp_path / "long.gguf", "llama", scaling)) == (
        "unknown GGUF rope.scaling.type 'longrope'. Known: linear, none, yarn"
    )


def test_gemma_of_a_gguf_file(tmp_path: Path) -> None:
    folder = tiny.make(tmp_path / "tiny", "gemma3", query_pre_attn_scalar=16)
    original = open_checkpoint(folder)
    gguf_names = {
        "embed": "token_embd",
        "final_norm": "output_norm",
        "attn_norm": "attn_norm",
        "q": "attn_q",
        "k": "attn_k",
        "v": "attn_v",
        "o": "attn_output",
        "q_norm": "attn_q_norm",
        "k_norm": "attn_k_norm",
        "post_attn_norm": "post_attention_norm",
        "mlp_norm": "ffn_norm",
        "gate": "ffn_gate",
        "up": "ffn_up",
        "down": "ffn_down",
        "post_mlp_norm": "post_ffw_norm",
    }
    tensors = {}
    for name, tensor in original.tensors():
        *layer, last = name.split(".")
        prefix = f"blk.{layer[1]}." if layer else ""
        tensors[f"{prefix}{gguf_names[last]}.weight"] = tensor
    keys = {
        "context_length": 128,
        "embedding_length": 48,
        "block_count": 7,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 1,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.key_length": 16,
        "attention.value_length": 16,
        "attention.sliding_window": 8,
        "rope.freq_base": 1e6,
    }
    keys = {f"gemma3.{key}": value for key, value in keys.items()}
    converted = open_checkpoint(write(tmp_path / "gemma.gguf", "gemma3", keys, tensors))
    assert same_up_to_eps(original, converted)
    expected = dict(original.tensors())
    for name, tensor in converted.tensors():
        assert np.array_equal(tensor, expected[name]), name


def test_refused_files(folder: Path, tmp_path: Path) -> None:
    plain = tiny.write_gguf(folder, tmp_path / "plain.gguf")
    other = tmp_path / "other.gguf"
    assert refusal(rewrite(plain, other, "mamba", {})).startswith(
        "unknown GGUF architecture 'mamba'. Known: arcee, cohere2, command-r, deepseek2, ernie4_5, "
    )
    assert refusal(rewrite(plain, other, "llama", {"llama.logit_scale": 2.0})).startswith(
        "unknown GGUF key of 'llama' 'llama.logit_scale'."
    )
    assert refusal(rewrite(plain, other, "qwen2", {"qwen2.expert_count": 8})) == (
        "GGUF key 'qwen2.expert_count' = 8 is not supported; supported: 0"
    )
    assert refusal(rewrite(plain, other, "llama", {"llama.expert_count": 8})).startswith(
        f"{other}: the weights do not match the configuration; missing: blk.0.ffn_down_exps.weight"
    )
    assert refusal(rewrite(plain, other, "llama", {"llama.rope.dimension_count": 8})) == (
        "GGUF key 'llama.rope.dimension_count' = 8 is not supported; supported: 16"
    )
    assert refusal(rewrite(plain, other, "llama", {"split.count": 3})) == (
        f"{other} is one of 3 parts of a split GGUF file, whose names must end with "
        "-00001-of-3.gguf, each with five digits"
    )
    assert refusal(rewrite(plain, other, "llama", {}, drop="blk.1.ffn_up.weight")) == (
        f"{other}: the weights do not match the configuration; missing: blk.1.ffn_up.weight"
    )
    assert refusal(rewrite(plain, other, "llama", {}, drop="token_embd.weight")) == (
        f"{other}: the tensor 'token_embd.weight' is missing or no matrix"
    )


def test_numbers_that_cannot_be(folder: Path, tmp_path: Path) -> None:
    plain, other = tiny.write_gguf(folder, tmp_path / "plain.gguf"), tmp_path / "other.gguf"
    assert refusal(rewrite(plain, other, "llama", {"llama.attention.head_count": 0})) == (
        f"{other}: the GGUF key 'llama.attention.head_count' = 0 "
        "must be a whole number of at least 1"
    )
    assert refusal(rewrite(plain, other, "llama", {"llama.rope.freq_base": 0.0})) == (
        "config field 'rope_theta' = 0.0 must be a finite number above 1"
    )
    file = GGUF.open(plain)
    keys = {key: value for key, value in file.metadata.items() if key.startswith("llama.")}
    tensors = {name: file.load(name) for name in file.tensors}
    for divisors in ([0.0] * 8, [1.0] * 7):
        write(other, "llama", keys, {**tensors, "rope_freqs.weight": divisors})
        assert refusal(other) == (
            f"{other}: tensor 'rope_freqs.weight' of shape [{len(divisors)}] "
            "must hold 8 positive numbers"
        )


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0"])
def test_weights_that_are_not_finite(kind: str, folder: Path, tmp_path: Path) -> None:
    path = tiny.write_gguf(folder, tmp_path / "tiny.gguf", kind)
    info = GGUF.open(path).tensors["blk.1.attn_q.weight"]
    data = bytearray(path.read_bytes())
    infinite = np.array([np.inf], np.float32 if kind == "F32" else np.float16).tobytes()
    data[info.offset : info.offset + len(infinite)] = infinite  # of Q8_0: a scale
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        list(open_checkpoint(path).tensors())
    assert str(caught.value) == (
        f"{path}: weight 'blk.1.attn_q.weight' has NaN or infinite entries; all must be finite"
    )


def test_damaged_files(folder: Path, tmp_path: Path) -> None:
    path = tiny.write_gguf(folder, tmp_path / "tiny.gguf")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - 5000])
    assert refusal(path).startswith(f"{path} is cut short: tensor '")
    for size in (12, 40, 300, 1000):
        path.write_bytes(data[:size])
        assert refusal(path) == f"{path} is damaged or cut short: its header is not readable"
    path.write_bytes(b"")
    assert refusal(path) == f"{path} is empty, not a GGUF file"
    path.write_bytes(b"PK\x03\x04" + data[4:])
    assert refusal(path) == f"{path} is not a GGUF file: it does not start with 'GGUF'"
    path.write_bytes(data[:4] + b"\x01\0\0\0" + data[8:])
    assert refusal(path) == f"{path} has GGUF version 1; supported: 2 and 3, little-endian"
    path.write_bytes(data[:8] + b"\xff" * 16 + data[24:])
    assert refusal(path).startswith(f"{path} is damaged")


def test_an_unknown_tensor_type(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("x", np.zeros((2, 16), np.int8))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert refusal(tmp_path / "x.gguf").startswith(
        f"{tmp_path / 'x.gguf'}: tensor 'x' has the unsupported ggml type I8; supported: BF16, F16"
    )
