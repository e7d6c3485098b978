"""Tests of folders that other programs have quantized, and that are refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import quantized_folders
import tiny
from quantized_folders import PROGRAMS, change, refusal, say

Q = "model.layers.1.self_attn.q_proj"
ANY = "*: "  # some layer
WIDE = {"hidden_size": 160, "intermediate_size": 288, "head_dim": 32}


def quantized(folder: Path, program: str) -> None:
    """Write a tiny quantized model."""
    tiny.make(folder, **WIDE)
    quantized_folders.write(folder, PROGRAMS[program])


I32 = torch.int32
LAYER = f"layer '{Q}': "
NOT_PERMUTATION = (
    "'g_idx' must give each of 5 groups 32 columns, so that act-order is a permutation"
)


@pytest.mark.parametrize(
    ("program", "tensors", "message"),
    [
        ("gptq-4", {"qzeros": None}, "its 'qzeros' is missing"),
        ("gptq-4", {"scales": None}, "its 'scales' is missing"),
        ("gptq-4", {"scales": torch.ones(5)}, "'scales' has shape [5]; 2 dimensions expected"),
        (
            "gptq-4",
            {"scales": torch.ones(4, 128).half(), "qzeros": torch.ones(4, 16, dtype=I32)},
            "it has scales for 4 groups, but 160 columns in groups of 32 are 5",
        ),
        (
            "gptq-4",
            {"qzeros": torch.ones(5, 15, dtype=I32)},
            "'qzeros' has shape [5, 15]; [5, 16] expected",
        ),
        (
            "gptq-4",
            {"qweight": torch.ones(20, 128, dtype=torch.int64)},
            "'qweight' has type I64; supported: I32",
        ),
        (
            "gptq-4",
            {"qweight": torch.ones(15, 128, dtype=I32)},
            "'qweight' has 15 words for 160 columns, 3 bits each; 4 bits expected",
        ),
        ("gptq-4", {"g_idx": torch.zeros(160, dtype=I32)}, NOT_PERMUTATION),
        ("gptq-4", {"g_idx": torch.arange(160, dtype=I32) // 32 - 1}, NOT_PERMUTATION),
        ("gptq-4", {"g_idx": torch.arange(160, dtype=I32) // 32 + 1}, NOT_PERMUTATION),
        (
            "gptq-4",
            {"scales": torch.full((5, 128), np.inf).half()},
            "'scales' has NaN or infinite entries; scales must be finite",
        ),
        ("awq", {"qzeros": None}, "its 'qzeros' is missing"),
        (
            "awq",
            {"scales": torch.ones(5, 120).half()},
            "'scales' has shape [5, 120]; [5, 128] expected",
        ),
        (
            "awq",
            {"scales": torch.full((5, 128), np.nan).half()},
            "'scales' has NaN or infinite entries; scales must be finite",
        ),
        (
            "compressed-4",
            {"weight_shape": torch.tensor([128, 200])},
            "'weight_packed' has shape [128, 20], which does not hold [128, 200] codes of 4 bits",
        ),
        ("compressed-4", {"weight_shape": None}, "its 'weight_shape' is missing"),
        (
            "compressed-4",
            {"weight_scale": torch.ones(128, 3).bfloat16()},
            "it has scales for 3 groups, but 160 columns in groups of 32 are 5",
        ),
        (
            "compressed-4-zeros",
            {"weight_zero_point": torch.full((128, 5), 8, dtype=torch.int8)},
            "'weight_zero_point' has values from 8 to 8; -8 to 7 are possible with 4 bits",
        ),
        (
            "compressed-4-zeros",
            {"weight_zero_point": torch.ones(15, 5, dtype=I32)},
            "'weight_zero_point' has shape [15, 5]; [16, 5] expected",
        ),
        (
            "compressed-4-act-order",
            {"weight_g_idx": torch.zeros(160, dtype=I32)},
            NOT_PERMUTATION.replace("g_idx", "weight_g_idx"),
        ),
        (
            "compressed-bytes",
            {"weight_scale": torch.full((128, 1), np.inf)},
            "'weight_scale' has NaN or infinite entries; scales must be finite",
        ),
        (
            "fp8-blocks",
            {"weight_scale_inv": torch.ones(1, 1)},
            "'weight_scale_inv' has shape [1, 1]; [1, 2] expected",
        ),
        (
            "fp8-blocks",
            {"weight_scale_inv": torch.full((1, 2), 1e36)},
            "'weight_scale_inv' makes weights infinite; all must be finite",
        ),
        ("fp8-blocks", {"weight_scale_inv": None}, "its 'weight_scale' is missing"),
        (
            "fp8-blocks",
            {"weight": torch.full((128, 160), 127, dtype=torch.uint8).view(torch.float8_e4m3fn)},
            "'weight' has NaN entries; all must be finite",
        ),
    ],
)
def test_tensors_that_are_refused(
    program: str, tensors: dict[str, torch.Tensor | None], message: str, tmp_path: Path
) -> None:
    quantized(tmp_path, program)
    change(tmp_path, {f"{Q}.{part}": values for part, values in tensors.items()})
    assert refusal(tmp_path) == LAYER + message


ALTERNATIVES = (
    " (supported: gptq, awq, compressed-tensors, fp8, mxfp4): give the model's float weights, and "
    "--quant int8 or a file of `suffice quantize` to make it small; or a GGUF file of the model"
)


@pytest.mark.parametrize(
    ("program", "said", "message"),
    [
        *[
            (
                "gptq-4",
                {"quant_method": name},
                f"its weights are quantized by {name}, which is not supported{ALTERNATIVES}",
            )
            for name in ("bitsandbytes", "hqq", "aqlm", "eetq", "fbgemm_fp8")
        ],
        (
            "gptq-4",
            {"quant_method": []},
            f"its weights are quantized by another program, which is not supported{ALTERNATIVES}",
        ),
        ("gptq-4", {"bits": 5}, "gptq: bits = 5 is not supported; supported: 2, 3, 4, 8"),
        ("gptq-4", {"bits": 4.0}, "gptq: bits = 4.0 is not supported; supported: 2, 3, 4, 8"),
        (
            "gptq-4",
            {"checkpoint_format": "marlin"},
            "gptq: checkpoint_format = 'marlin' is not supported; supported: gptq, gptq_v2",
        ),
        (
            "gptq-4",
            {"is_marlin_format": True},
            "gptq: is_marlin_format = True is not supported; supported: False",
        ),
        (
            "gptq-4",
            {"group_size": 0},
            "gptq: group_size = 0 must be a whole number of at least 1, or -1",
        ),
        (
            "gptq-4",
            {"group_size": 48},
            f"{ANY}it has scales for 9 groups, but 288 columns in groups of 48",
        ),
        ("gptq-4", {"group_size": 80}, f"{ANY}groups of 80 columns do not divide its 288 columns"),
        ("awq", {"version": "gemv"}, "awq: version = 'gemv' is not supported; supported: gemm"),
        ("awq", {"bits": 8}, "awq: bits = 8 is not supported; supported: 4"),
        ("awq", {"zero_point": False}, "awq: zero_point = False is not supported; supported: True"),
        (
            "compressed-4",
            {"config_groups": {"a": {"weights": {"num_bits": 6}}}},
            "compressed-tensors: config_groups: a.weights: num_bits = 6 is not supported; "
            "supported: 4, 8",
        ),
        (
            "compressed-4",
            {"config_groups": {"a": {"weights": {"num_bits": 4, "strategy": "token"}}}},
            "compressed-tensors: config_groups: a.weights: strategy = 'token' is not supported; "
            "supported: tensor, channel, group",
        ),
        (
            "compressed-4",
            {"config_groups": []},
            "compressed-tensors: config_groups = [] must be an object",
        ),
        (
            "compressed-4",
            {"sparsity_config": {"format": "sparse-24-bitmask"}},
            "compressed-tensors: sparsity_config: format = 'sparse-24-bitmask' is not supported; "
            "supported: dense",
        ),
        (
            "fp8-blocks",
            {"weight_block_size": [128]},
            "fp8: weight_block_size = [128] must be two whole numbers, such as [128, 128]",
        ),
        (
            "fp8-blocks",
            {"weight_block_size": [128, 64]},
            f"{ANY}scales for 64 columns; a multiple of 128 is supported",
        ),
        ("fp8-blocks", {"fmt": "e5m2"}, "fp8: fmt = 'e5m2' is not supported; supported: e4m3"),
    ],
)
def test_settings_that_are_refused(
    program: str, said: dict[str, Any], message: str, tmp_path: Path
) -> None:
    quantized(tmp_path, program)
    say(tmp_path, **said)
    line = refusal(tmp_path)
    if message.startswith(ANY):
        assert line.startswith("layer 'model.layers.")
        line = line.partition("': ")[2]
    assert line.startswith(message.removeprefix(ANY))
