"""Quantized folders with latent attention: halves of `kv_b_proj`, and what stays in codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import quantized_folders
import tiny
from quantized_folders import PROGRAMS
from suffice import LLM, SamplingParams
from suffice.backends.cpu.linear import unpack
from suffice.checkpoints.open import open_checkpoint
from suffice.decoder.weights import DecoderWeights
from suffice.quant import QUANTS

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "kv_lora_rank": 128,
    "q_lora_rank": 128,
    "qk_nope_head_dim": 48,  # a block of 128 rows has parts of two heads
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "moe_intermediate_size": 128,
}


@pytest.mark.parametrize("program", ["fp8-blocks", "gptq-sym", "awq", "compressed-4"])
def test_heads_are_found_in_quantized_matrices(program: str, tmp_path: Path) -> None:
    tiny.make(tmp_path, "deepseek-v3", **SIZES, tokenizer=True)
    weights = quantized_folders.write(tmp_path, PROGRAMS[program])
    decoder = DecoderWeights.from_checkpoint(open_checkpoint(tmp_path), QUANTS.build("file"))
    own = "model.layers.1.self_attn."
    heads = weights[own + "kv_b_proj.weight"].reshape(4, 48 + 32, 128)
    expected = {
        "key_up": heads[:, :48].swapaxes(1, 2).reshape(-1, 48),
        "value_up": heads[:, 48:].reshape(-1, 128),
    }
    for name, values in expected.items():
        found = unpack(decoder.matrix(f"layers.1.{name}"))
        np.testing.assert_allclose(found, values, rtol=2**-8, atol=0)  # in bfloat16
    for name, part in (("q_low", "q_a"), ("q", "q_b"), ("o", "o")):
        matrix = decoder.matrix(f"layers.1.{name}")
        assert matrix.dtype == ("float8" if program == "fp8-blocks" else "codes")
        assert np.array_equal(unpack(matrix), weights[f"{own}{part}_proj.weight"])
    (output,) = LLM(tmp_path, dtype="float32").generate(
        [[5, 9, 40]], SamplingParams(temperature=0, max_tokens=4)
    )
    assert len(output.outputs[0].token_ids) == 4
