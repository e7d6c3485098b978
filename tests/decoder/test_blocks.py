"""Tests of blocks.py and layer_config.py: the matrices and norms of a layer's blocks."""

from __future__ import annotations

from typing import Any

import pytest

from suffice.checkpoints.open import open_checkpoint
from suffice.decoder.blocks import MATRICES, Attention, DenseMLP, ExpertMLP
from suffice.decoder.names import is_linear, shapes


def test_the_blocks_of_a_layer(checkpoints: Any) -> None:
    config = open_checkpoint(checkpoints("smollm3-window")).config
    for index, layer in enumerate(config.layers):
        attention, mlp = config.blocks(index)
        assert isinstance(attention, Attention)
        assert (attention.window, attention.rope) == (layer.window, layer.rope)
        assert attention.matrices == {"q": (64, 64), "k": (32, 64), "v": (32, 64), "o": (64, 64)}
        assert mlp == DenseMLP(64, 96, True, "silu")
        assert mlp.matrices == {"gate": (96, 64), "up": (96, 64), "down": (64, 96)}
    assert config.input_sizes == [64, 96]
    assert DenseMLP(64, 96, False, "relu").matrices == {"up": (96, 64), "down": (64, 96)}


def test_the_blocks_of_layers_with_experts(checkpoints: Any) -> None:
    config = open_checkpoint(checkpoints("qwen2-moe-mixed")).config
    kinds = [type(config.blocks(index)[1]) for index in range(3)]
    assert kinds == [DenseMLP, ExpertMLP, DenseMLP]
    assert config.blocks(1)[1].matrices == {
        "router": (4, 64),
        "expert_gate": (4 * 48, 64),
        "expert_up": (4 * 48, 64),
        "expert_down": (4 * 64, 48),
        "shared_gate": (32, 64),
        "shared_up": (32, 64),
        "shared_down": (64, 32),
        "shared_router": (1, 64),
    }
    other = open_checkpoint(checkpoints("mixtral")).config.blocks(2)[1]
    assert set(other.matrices) == {"router", "expert_gate", "expert_up", "expert_down"}


@pytest.mark.parametrize(
    ("variant", "norms", "vectors"),
    [
        ("llama", [{"before": "attn_norm"}, {"before": "mlp_norm"}], {}),
        ("opt-post", [{"whole": "attn_norm"}, {"whole": "mlp_norm"}], {}),
        (
            "gemma3",
            [
                {"before": "attn_norm", "after": "post_attn_norm"},
                {"before": "mlp_norm", "after": "post_mlp_norm"},
            ],
            {"q_norm": (16,), "k_norm": (16,)},
        ),
        (
            "olmo2",
            [{"after": "post_attn_norm"}, {"after": "post_mlp_norm"}],
            {"q_norm": (64,), "k_norm": (32,)},
        ),
        ("phi", [{"before": "attn_norm"}, {"before": "attn_norm"}], {}),
    ],
)
def test_norms_around_and_inside_blocks(
    variant: str, norms: list[dict[str, str]], vectors: dict[str, Any], checkpoints: Any
) -> None:
    config = open_checkpoint(checkpoints(variant)).config
    blocks = config.blocks(1)
    assert [config.norms(block, 0) for block in blocks] == norms
    assert [dict(block.vectors) for block in blocks] == [vectors, {}]
    needed = {name.removeprefix("layers.1.") for name in shapes(config) if "layers.1." in name}
    around = {name for places in norms for name in places.values()}
    biased = {f"{name}.bias" for name in config.biases - {"head"}}
    biased |= {f"{name}.bias" for name in around} if config.norm == "layer" else set()
    matrices = {name for block in blocks for name in block.matrices}
    assert matrices <= set(MATRICES) and all(map(is_linear, matrices))
    assert needed == around | set(vectors) | matrices | biased
