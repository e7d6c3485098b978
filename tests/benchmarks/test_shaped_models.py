"""Files in the shapes of models that people run: sizes, rotations, heads and types are theirs."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness import shaped_models
from suffice.checkpoints.open import open_checkpoint
from suffice.decoder.rope import rope_table
from suffice.decoder.rotation import Rope

TINY = shaped_models.TINY


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-3.2-1b", 1.236),
        ("qwen3-4b", 4.022),
        ("llama-3.1-8b", 8.030),
        ("mistral-7b", 7.242),
        ("llama-2-7b", 6.738),
        ("llama-2-13b", 13.016),
    ],
)
def test_a_shape_has_as_many_weights_as_its_model(name: str, billions: float) -> None:
    found = shaped_models.MODELS[name].tensors()
    assert sum(map(math.prod, found.values())) / 1e9 == pytest.approx(billions, abs=5e-4)


@pytest.mark.parametrize(("kind", "head"), [("Q4_0", "Q6_K"), ("Q4_K_M", "Q6_K"), ("Q8_0", "Q8_0")])
@pytest.mark.parametrize("tied", [True, False])
def test_the_file_is_a_model_of_the_shape(kind: str, head: str, tied: bool, tmp_path: Path) -> None:
    model = dataclasses.replace(
        TINY, head=128, tied=tied, architecture=shaped_models.QWEN3, rope_factor=1.0, rope_base=1e6
    )
    path = shaped_models.write(tmp_path / "tiny.gguf", model, kind)
    checkpoint = open_checkpoint(path)
    config = checkpoint.config
    assert (config.heads, config.kv_heads, config.head_size, config.width) == (4, 2, 128, 256)
    assert config.tied == tied and config.norm_eps == pytest.approx(1e-5)
    assert config.ropes[0].theta == 1e6 and not config.ropes[0].divisors
    kinds = {each.name: each.type for each in checkpoint.matrices}
    assert kinds["embed" if tied else "head"] == head
    assert ("head" in kinds) != tied
    assert kinds["layers.0.q"] == {"Q4_K_M": "Q4_K"}.get(kind, kind)
    assert any("q_norm" in name for name, _ in checkpoint.weights())
    assert path.stat().st_size > shaped_models.data_bytes(model, kind)


def test_the_rotation_is_that_of_llama_3(tmp_path: Path) -> None:
    model = dataclasses.replace(shaped_models.MODELS["llama-3.2-1b"], **sizes(TINY))
    path = shaped_models.write(tmp_path / "tiny.gguf", model, "Q8_0")
    (own,) = open_checkpoint(path).config.ropes
    given = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    given["original_max_position_embeddings"] = 8192
    theirs = Rope("llama3", 5e5, tuple(sorted(given.items())))
    tables = (rope_table(rope, 64, model.context, 3000) for rope in (own, theirs))
    for ours, expected in zip(*tables, strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-3)
    assert own.divisors[0] == 1 and own.divisors[-1] == 32


def sizes(model: shaped_models.Model) -> dict[str, int]:
    names = ("layers", "width", "hidden", "heads", "kv_heads", "vocabulary", "head")
    return {name: getattr(model, name) for name in names}


def test_a_vocabulary_beyond_pairs_of_bytes_has_triples(tmp_path: Path) -> None:
    from suffice.text.tokenizer import load_tokenizer

    model = dataclasses.replace(TINY, layers=1, vocabulary=1 + 256 + 256**2 + 256)
    tokenizer = load_tokenizer(shaped_models.write(tmp_path / "tiny.gguf", model, "Q4_0"))
    assert tokenizer.decode(tokenizer.encode("naïve!!!")) == "naïve!!!"
    assert len(tokenizer.encode("!!!")) == 1 < len(tokenizer.encode("zzz")) == 2
