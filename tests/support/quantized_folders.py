"""Folders as programs that quantize write them, with the float32 weights that they stand for.

Codes are random. They are packed here bit by bit, from what the programs' documentation says, by
other code than suffice reads them with.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from suffice.checkpoints.open import open_checkpoint
from suffice.errors import InputError

AWQ_ROWS = (0, 2, 4, 6, 1, 3, 5, 7)  # of the codes of a word, from its lowest bits on
FLOAT8 = ml_dtypes.float8_e4m3fn


@dataclass
class Layer:
    """The tensors of one layer, by the last part of their names, and its weight [N, K]."""

    tensors: dict[str, np.ndarray]
    weight: np.ndarray


@dataclass
class Program:
    """A way to quantize: what `config.json` says, and how a layer [N, K] is stored."""

    said: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)

    def layer(self, rows: int, columns: int, random: np.random.Generator) -> Layer:
        """Return a layer of random codes."""
        kind = self.said.get("quant_method", "compressed-tensors")
        make = {"gptq": gptq, "awq": awq, "fp8": float8, "compressed-tensors": compressed}[kind]
        return make(rows, columns, random, **self.options)


def words(codes: np.ndarray, bits: int) -> np.ndarray:
    """Pack [N, K] into int32 [N, K bits / 32]: bit i of a row is bit i % 32 of word i / 32."""
    flat = (codes[:, :, None] >> np.arange(bits) & 1).reshape(len(codes), -1).astype(np.uint8)
    return np.packbits(flat, axis=1, bitorder="little").view("<i4")


def random_scales(random: np.random.Generator, shape: tuple[int, ...], kind: Any) -> np.ndarray:
    """Return positive scales of a model's size."""
    return (random.random(shape) * 0.02 + 0.005).astype(kind)


def by_group(values: np.ndarray, columns: int) -> np.ndarray:
    """Repeat values [N, G] for the columns [N, K] of their groups."""
    return np.repeat(values, columns // values.shape[1], 1)


def dequantized(codes: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    """Return scale (code - zero) [N, K] in float32."""
    levels = codes.astype(np.int64) - zero.astype(np.int64)
    return scale.astype(np.float32) * levels.astype(np.float32)


def gptq(
    rows: int,
    columns: int,
    random: np.random.Generator,
    bits: int = 4,
    group: int = 32,
    sym: bool = False,
    act_order: bool = False,
    v2: bool = False,
    kind: Any = np.float16,
) -> Layer:
    """Return a layer of AutoGPTQ or GPTQModel."""
    size = columns if group == -1 else group
    groups = columns // size
    codes = random.integers(2**bits, size=(rows, columns))
    zeros = random.integers(2**bits, size=(rows, groups))
    if sym:
        zeros[:] = 2 ** (bits - 1)
    scales = random_scales(random, (rows, groups), kind)
    group_of = np.arange(columns) // size
    if act_order:
        group_of = random.permutation(group_of)
    stored = zeros if v2 else (zeros - 1) % 2**bits
    tensors = {
        "qweight": words(codes, bits).T,
        "qzeros": words(stored.T, bits),
        "scales": scales.T,
        "g_idx": group_of.astype(np.int32),
    }
    return Layer(tensors, dequantized(codes, scales[:, group_of], zeros[:, group_of]))


def awq(rows: int, columns: int, random: np.random.Generator, group: int = 32) -> Layer:
    """Return a layer of AutoAWQ's gemm version."""
    codes = random.integers(16, size=(rows, columns))
    zeros = random.integers(16, size=(rows, columns // group))
    scales = random_scales(random, zeros.shape, np.float16)

    def along_rows(values: np.ndarray) -> np.ndarray:
        eights = values.T.reshape(values.shape[1], -1, 8)[:, :, list(AWQ_ROWS)]
        return words(eights.reshape(values.shape[1], -1), 4)

    tensors = {"qweight": along_rows(codes), "qzeros": along_rows(zeros), "scales": scales.T}
    return Layer(tensors, dequantized(codes, by_group(scales, columns), by_group(zeros, columns)))


def compressed(
    rows: int,
    columns: int,
    random: np.random.Generator,
    bits: int = 4,
    group: int | None = 32,
    sym: bool = True,
    packed: bool = True,
    act_order: bool = False,
    kind: Any = ml_dtypes.bfloat16,
    float_block: tuple[int, int] | bool | None = False,
) -> Layer:
    """Return a layer of compressed-tensors; `group` None: a scale for a row."""
    if float_block is not False:
        return float8(rows, columns, random, block=float_block, kind=kind, name="weight_scale")
    groups = columns // (group or columns)
    half = 2 ** (bits - 1)
    values = random.integers(-half, half, size=(rows, columns))
    zeros = (
        np.zeros((rows, groups), np.int64) if sym else random.integers(-half, half, (rows, groups))
    )
    scales = random_scales(random, (rows, groups), kind)
    group_of = np.arange(columns) // (columns // groups)
    if act_order:
        group_of = random.permutation(group_of)
    tensors: dict[str, np.ndarray] = {"weight_scale": scales}
    if packed:
        tensors["weight_packed"] = words(values + half, bits)
        tensors["weight_shape"] = np.array([rows, columns])
    else:
        tensors["weight"] = values.astype(np.int8)
    if not sym:
        plain = zeros.astype(np.int8)
        tensors["weight_zero_point"] = words(zeros.T + half, bits).T if packed else plain
    if act_order:
        tensors["weight_g_idx"] = group_of.astype(np.int32)
    return Layer(tensors, dequantized(values, scales[:, group_of], zeros[:, group_of]))


def float8(
    rows: int,
    columns: int,
    random: np.random.Generator,
    block: tuple[int, int] | None = (128, 128),
    kind: Any = np.float32,
    name: str = "weight_scale_inv",
    per_tensor: bool = False,
) -> Layer:
    """Return a layer in 8-bit floats, whose values include those below the least normal one."""
    bytes_ = random.integers(256, size=(rows, columns)).astype(np.uint8)
    bytes_[bytes_ & 0x7F == 0x7F] = 1
    values = bytes_.view(FLOAT8).astype(np.float32)
    if block is None:
        scales = random_scales(random, (1,) if per_tensor else (rows, 1), kind) / 40
        wide = np.broadcast_to(scales.reshape(-1, 1), values.shape)
    else:
        shape = -(-rows // block[0]), -(-columns // block[1])
        scales = random_scales(random, shape, kind) / 40
        wide = np.repeat(np.repeat(scales, block[0], 0)[:rows], block[1], 1)[:, :columns]
    scales = scales.astype(kind)
    wide = wide.astype(kind)
    return Layer({"weight": bytes_.view(FLOAT8), name: scales}, values * wide.astype(np.float32))


def write(
    folder: Path, program: Program, *, seed: int = 0, keep: tuple[str, ...] = ()
) -> dict[str, np.ndarray]:
    """Quantize the layers' matrices of a folder in place; return their float32 weights by name.

    Layers whose name contains one of `keep` stay as they are.
    """
    path, random = folder / "model.safetensors", np.random.default_rng(seed)
    stored = load_file(path)
    weights: dict[str, np.ndarray] = {}
    for name in sorted(stored):
        if not name.endswith("_proj.weight") or any(part in name for part in keep):
            continue
        layer = program.layer(*stored.pop(name).shape, random)
        weights[name] = layer.weight
        base = name.removesuffix("weight")
        stored.update({base + part: tensor(values) for part, values in layer.tensors.items()})
    save_file(stored, path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": program.said}))
    return weights


def make_float(folder: Path, weights: dict[str, np.ndarray]) -> None:
    """Replace matrices of a folder that is not quantized by given ones."""
    path = folder / "model.safetensors"
    given = {name: torch.from_numpy(values) for name, values in weights.items()}
    save_file(load_file(path) | given, path, metadata={"format": "pt"})


def tensor(values: np.ndarray) -> torch.Tensor:
    """Return an array as a tensor, bfloat16 and 8-bit floats included."""
    values = np.ascontiguousarray(values)
    if values.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    if values.dtype == FLOAT8:
        return torch.from_numpy(values.view(np.uint8)).view(torch.float8_e4m3fn)
    return torch.from_numpy(values)


def change(folder: Path, tensors: dict[str, torch.Tensor | None]) -> None:
    """Replace tensors of a folder; None removes one."""
    path = folder / "model.safetensors"
    stored = load_file(path) | tensors
    kept = {name: values for name, values in stored.items() if values is not None}
    save_file(kept, path, metadata={"format": "pt"})


def say(folder: Path, **changes: Any) -> None:
    """Change fields of a folder's `quantization_config`."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] |= changes
    path.write_text(json.dumps(config))


def refusal(folder: Path) -> str:
    """Return the one line with which a folder is refused when it is opened or read."""
    with pytest.raises(InputError) as caught:
        dict(open_checkpoint(folder).tensors())
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith(f"{folder}: ")
    return line.removeprefix(f"{folder}: ")


def gptq_said(bits: int = 4, group: int = 32, **more: Any) -> dict[str, Any]:
    """Return what GPTQ's programs write."""
    plain = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": False}
    return {**plain, "sym": False, "damp_percent": 0.1, **more}


def awq_said(**more: Any) -> dict[str, Any]:
    """Return what AutoAWQ writes."""
    plain = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}
    return {**plain, "version": "gemm", "modules_to_not_convert": None, **more}


def compressed_said(
    form: str, *, ignore: list[str] | None = None, **weights: Any
) -> dict[str, Any]:
    """Return what compressed-tensors writes for one group of layers."""
    kind = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
    group = {
        "targets": ["Linear"],
        "weights": {**kind, "dynamic": False, "actorder": None, **weights},
        "input_activations": None,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ignore if ignore is not None else ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
    }


def float8_said(block: list[int] | None) -> dict[str, Any]:
    """Return what FP8 checkpoints say."""
    said: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
    return said | ({"weight_block_size": block} if block else {})


CHANNEL = {"strategy": "channel", "group_size": None}
_BYTES = {"num_bits": 8, **CHANNEL}
_FLOATS = {"num_bits": 8, "type": "float", "group_size": None}
PROGRAMS: dict[str, Program] = {
    **{f"gptq-{bits}": Program(gptq_said(bits), {"bits": bits}) for bits in (2, 3, 4, 8)},
    "gptq-sym": Program(gptq_said(sym=True), {"sym": True}),
    "gptq-8-sym": Program(gptq_said(8, sym=True), {"bits": 8, "sym": True}),
    "gptq-row": Program(gptq_said(group=-1), {"group": -1}),
    "gptq-act-order": Program(gptq_said(desc_act=True), {"act_order": True}),
    "gptq-3-act-order": Program(gptq_said(3, desc_act=True), {"bits": 3, "act_order": True}),
    "gptq-v2": Program(gptq_said(checkpoint_format="gptq_v2"), {"v2": True}),
    "gptq-bfloat16": Program(gptq_said(), {"kind": ml_dtypes.bfloat16}),
    "gptq-float32": Program(gptq_said(), {"kind": np.float32}),
    "awq": Program(awq_said()),
    "compressed-4": Program(compressed_said("pack-quantized")),
    "compressed-4-row": Program(compressed_said("pack-quantized", **CHANNEL), {"group": None}),
    "compressed-4-zeros": Program(
        compressed_said("pack-quantized", symmetric=False), {"sym": False}
    ),
    "compressed-4-act-order": Program(
        compressed_said("pack-quantized", actorder="group"), {"act_order": True}
    ),
    "compressed-8": Program(compressed_said("pack-quantized", num_bits=8), {"bits": 8}),
    "compressed-8-zeros": Program(
        compressed_said("pack-quantized", num_bits=8, symmetric=False), {"bits": 8, "sym": False}
    ),
    "compressed-bytes": Program(
        compressed_said("int-quantized", **_BYTES), {"bits": 8, "group": None, "packed": False}
    ),
    "compressed-bytes-float32": Program(
        compressed_said("int-quantized", **_BYTES),
        {"bits": 8, "group": None, "packed": False, "kind": np.float32},
    ),
    "compressed-bytes-zeros": Program(
        compressed_said("int-quantized", **_BYTES, symmetric=False),
        {"bits": 8, "group": None, "packed": False, "sym": False},
    ),
    "compressed-float8": Program(
        compressed_said("float-quantized", **_FLOATS, strategy="channel"), {"float_block": None}
    ),
    "compressed-float8-blocks": Program(
        compressed_said("float-quantized", **_FLOATS, strategy="block", block_structure=[128, 128]),
        {"float_block": (128, 128)},
    ),
    "fp8-blocks": Program(float8_said([128, 128])),
    "fp8-blocks-bfloat16": Program(float8_said([128, 128]), {"kind": ml_dtypes.bfloat16}),
    "fp8-tensor": Program(
        float8_said(None), {"block": None, "per_tensor": True, "name": "weight_scale"}
    ),
}
