"""Tests of gguf_latent.py: older files, files in codes, and files that contradict themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import gguf_families
import tiny
from native_steps import new_cache, run
from suffice.backends.cpu.linear import unpack
from suffice.checkpoints.formats import gguf_model
from suffice.checkpoints.formats.gguf_file import GGUF
from suffice.checkpoints.open import open_checkpoint
from suffice.decoder.native_model import NativeModel
from suffice.errors import InputError, SufficeWarning
from suffice.quant import QUANTS
from suffice.quantize.torch_decoder import TorchDecoder

WIDE: dict[str, Any] = {  # whole blocks of 32 in every row
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 64,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "moe_intermediate_size": 32,
}


@pytest.mark.parametrize("variant", ["deepseek-v2", "deepseek-v2-lite", "deepseek-v3", "minicpm3"])
def test_an_older_file_is_the_same_model(variant: str, tmp_path: Path) -> None:
    """It has the heads' sizes, one matrix for keys and values, and no kind of scores."""
    changes: dict[str, Any] = {}
    if variant == "minicpm3":
        changes = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}
    folder = tiny.make(tmp_path / "tiny", variant, **changes)
    newer, older = (
        open_checkpoint(gguf_families.write(folder, tmp_path / f"{each}.gguf", together=each))
        for each in (False, True)
    )
    assert older.config == newer.config
    expected, found = (
        {name: np.asarray(values) for name, values in each.tensors()} for each in (newer, older)
    )
    assert expected.keys() == found.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name].reshape(values.shape), values)


@pytest.mark.parametrize("together", [False, True])
def test_a_file_in_codes_runs_in_them(together: bool, tmp_path: Path) -> None:
    folder = tiny.make(tmp_path / "tiny", "deepseek-v3", **WIDE)
    path = gguf_families.write(folder, tmp_path / "x.gguf", "Q8_0", together=together)
    file = open_checkpoint(path)
    decoder = TorchDecoder.from_checkpoint(file, QUANTS.build("file"))
    plain = TorchDecoder.from_checkpoint(file, QUANTS.build("none:dtype=float32"))
    for name in ("q_low", "q", "kv", "o", "value_up", *(() if together else ("key_up",))):
        matrix = decoder.matrix(f"layers.1.{name}")
        assert matrix.dtype == "codes", name
        np.testing.assert_array_equal(unpack(matrix), unpack(plain.matrix(f"layers.1.{name}")))
    if together:  # its blocks go along the other dimension
        assert decoder.matrix("layers.1.key_up").dtype == "bfloat16"
    tokens = torch.arange(20)
    expected = plain.forward(tokens, new_cache(plain), logits="all")
    assert expected is not None
    found = run(NativeModel(decoder, 64), new_cache(decoder), tokens.tolist())
    error = np.abs(found - expected.numpy())  # the choice of experts may jump
    assert np.median(error) < 0.02 * expected.std()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention.value_length": 32}, "'attention.value_length' = 32 are not those of rows"),
        ({"expert_gating_func": 3}, "'deepseek2.expert_gating_func' = 3 is not supported"),
        ({"attention.kv_lora_rank": None}, "'deepseek2.attention.kv_lora_rank' = None must be"),
        ({"rope.dimension_count": None}, "'deepseek2.rope.dimension_count' = None must be"),
        ({"attention.key_length_mla": 16}, "'qk_nope_head_dim' = 0 must be a whole number"),
    ],
)
def test_files_that_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny.make(tmp_path / "tiny", "deepseek-v2")
    file = GGUF.open(gguf_families.write(folder, tmp_path / "x.gguf"))
    metadata = {**file.metadata, **{f"deepseek2.{key}": value for key, value in changes.items()}}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    monkeypatch.setattr(
        gguf_model.GGUF, "open", classmethod(lambda _, path: replace(file, metadata=metadata))
    )
    with pytest.raises(InputError, match=message) as caught:
        open_checkpoint(tmp_path / "x.gguf")
    assert "\n" not in str(caught.value)


def test_layers_that_draft_are_left_out(tmp_path: Path) -> None:
    folder = tiny.make(tmp_path / "tiny", "deepseek-v3")
    expected = {name: np.asarray(values) for name, values in open_checkpoint(folder).tensors()}
    weights = load_file(folder / "model.safetensors")
    more = {
        name.replace(".layers.2.", ".layers.3."): values.clone()
        for name, values in weights.items()
        if ".layers.2." in name
    }
    more["model.layers.3.eh_proj.weight"] = torch.zeros(64, 128)
    save_file({**weights, **more}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.warns(SufficeWarning, match="weights of layers 3 and later, which only draft, are"):
        opened = open_checkpoint(folder)
    found = {name: np.asarray(values) for name, values in opened.tensors()}
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], values) for name, values in expected.items())
