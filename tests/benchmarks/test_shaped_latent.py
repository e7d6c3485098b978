"""Files of random codes in the shape of a model with latent attention can be read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.harness import shaped_latent, shaped_models
from suffice.checkpoints.open import open_checkpoint

SMALL = replace(
    shaped_latent.MODELS["deepseek-v2-lite-16"],
    layers=2, width=256, hidden=256, vocabulary=512, experts=4, chosen=2, inner=256, shared=512,
)  # fmt: skip


@pytest.mark.parametrize("kind", ["Q4_K_M", "Q8_0"])
def test_a_file_has_the_shape(kind: str, tmp_path: Path) -> None:
    path = shaped_models.write(tmp_path / "x.gguf", SMALL, kind)
    config = open_checkpoint(path).config
    assert (config.joint, config.head_size, config.kv_heads) == (512, 576, 1)
    assert [layer.dense for layer in config.layers] == [True, False]
    assert config.experts is not None
    assert (config.experts.count, config.experts.chosen, config.experts.shared) == (4, 2, 512)
