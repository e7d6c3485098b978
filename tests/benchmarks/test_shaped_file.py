"""Files of random codes: a model that every reader takes, of the stated size and spread."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest

from benchmarks.harness import shaped_file, shaped_models
from suffice.checkpoints.open import open_checkpoint
from suffice.errors import InputError
from suffice.text.tokenizer import load_tokenizer

TINY = shaped_file.TINY


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_the_file_is_a_model_of_the_shape(kind: str, tmp_path: Path) -> None:
    path = shaped_file.write(tmp_path / "tiny.gguf", TINY, kind)
    config = open_checkpoint(path).config
    assert (config.vocab, config.width, len(config.layers)) == (320, 64, 2)
    assert (config.heads, config.kv_heads, config.mlp_width) == (4, 2, 96)
    assert not config.tied
    stored = gguf.GGUFReader(path).tensors
    assert {each.name: tuple(map(int, each.shape[::-1])) for each in stored} == (
        shaped_file.tensors(TINY)
    )
    assert sum(each.n_bytes for each in stored) == shaped_file.data_bytes(TINY, kind)
    assert sum(each.n_elements for each in stored) == shaped_file.weight_count(TINY)
    for each in stored:
        values = gguf.dequantize(each.data, each.tensor_type)
        if values.ndim == 1:
            assert (values == 1).all(), "a norm"
        else:
            assert each.tensor_type.name == kind
            spread = 1 if each.name == shaped_file.EMBEDDING else values.shape[1] ** -0.5
            assert np.std(values) / spread == pytest.approx(1, abs=0.05)
            assert abs(np.mean(values)) / spread < 5 * values.size**-0.5, "no mean"
            assert len(np.unique(values, axis=0)) == len(values), "no row is like another"


def test_a_mixed_file_has_the_types_that_llama_cpp_gives_its_tensors(tmp_path: Path) -> None:
    shape = dataclasses.replace(TINY, layers=16, width=256, hidden=512)
    path = shaped_file.write(tmp_path / "mixed.gguf", shape, "Q4_K_M")
    stored = {each.name: each for each in gguf.GGUFReader(path).tensors}
    better = {name for name, each in stored.items() if each.tensor_type.name == "Q6_K"}
    layers = (0, 1, 4, 7, 10, 13, 14, 15)  # of 16
    parts = [f"blk.{layer}.{part}.weight" for layer in layers for part in ("attn_v", "ffn_down")]
    assert better == {"output.weight", *parts}
    assert sum(each.n_bytes for each in stored.values()) == shaped_file.data_bytes(shape, "Q4_K_M")
    for each in stored.values():
        if each.name not in better and len(each.shape) == 2:
            assert each.tensor_type.name == "Q4_K"
        if len(each.shape) == 2:
            values = gguf.dequantize(each.data, each.tensor_type)
            spread = 1 if each.name == shaped_file.EMBEDDING else values.shape[1] ** -0.5
            assert np.std(values) / spread == pytest.approx(1, abs=0.1)
            assert abs(np.mean(values)) / spread < 0.1
    assert load_tokenizer(path).encode(shaped_file.PROMPT)
    open_checkpoint(path)


@pytest.mark.parametrize("kind", shaped_file.LOW)
def test_a_file_of_few_bits_has_a_head_of_six(kind: str, tmp_path: Path) -> None:
    path = shaped_models.write(tmp_path / "low.gguf", shaped_models.TINY, kind)
    stored = {each.name: each for each in gguf.GGUFReader(path).tensors}
    size = sum(each.n_bytes for each in stored.values())
    assert size == shaped_models.data_bytes(shaped_models.TINY, kind)
    assert stored.pop(shaped_file.EMBEDDING).tensor_type.name == "Q6_K", "the head as well"
    for each in stored.values():
        if len(each.shape) == 2:
            assert each.tensor_type.name == kind
            values = gguf.dequantize(each.data, each.tensor_type)
            spread = values.shape[1] ** -0.5
            assert np.std(values) / spread == pytest.approx(1, abs=0.1)
            assert abs(np.mean(values)) / spread < 0.05
    if kind == "TQ2_0":
        assert len(np.unique(values)) == 3
    open_checkpoint(path)


def test_the_prompt_is_one_token_of_the_vocabulary(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(shaped_file.write(tmp_path / "tiny.gguf", TINY, "Q4_0"))
    assert len(tokenizer.encode(shaped_file.PROMPT)) == 1
    text = "Any text, also naïve ones: 日本語!"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("!#") == [tokenizer.encode("!!")[0] + 2], "pairs of bytes are tokens"


@pytest.mark.parametrize("vocabulary", [100, 256])
def test_a_vocabulary_without_a_token_for_each_byte_is_refused(
    vocabulary: int, tmp_path: Path
) -> None:
    shape = dataclasses.replace(TINY, vocabulary=vocabulary)
    with pytest.raises(InputError, match=r"must be from 257 to 16843009 tokens"):
        shaped_file.write(tmp_path / "bad.gguf", shape, "Q4_0")
    assert not list(tmp_path.iterdir())


def test_a_file_that_the_disk_cannot_hold_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5 << 30))
    shape = shaped_file.SHAPES["llama-2-7b"]
    with pytest.raises(InputError) as caught:
        shaped_file.write(tmp_path / "big.gguf", shape, "Q4_0")
    assert str(caught.value) == (
        "big.gguf: needs 5.5 GiB of disk, some to spare included; 5.0 GiB are free"
    )
    assert not list(tmp_path.iterdir())
