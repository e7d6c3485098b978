"""The weights of decoders that draft. Tests draft_head.py."""

from __future__ import annotations

from dataclasses import replace

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.draft_head import DraftHead
from suffice.decoder.names import shapes

PLAIN = DecoderConfig(
    vocab=90,
    width=32,
    heads=4,
    kv_heads=2,
    head_size=16,
    mlp_width=48,
    layers=(LayerConfig(),) * 2,
    norm="rms",
    norm_eps=1e-6,
    placement="pre",
    activation="silu",
    gated=True,
    attention_scale=0.25,
    trained_positions=64,
)


def test_a_pair_is_read_by_the_first_layer_or_joined() -> None:
    fused = shapes(replace(PLAIN, drafts=DraftHead(96, 200)))
    assert fused["embed"] == (200, 32) and fused["head"] == (90, 32)
    assert fused["fuse"] == (32, 96) and fused["hidden_norm"] == fused["embed_norm"] == (32,)
    assert fused["layers.0.q"] == (64, 64) and fused["layers.1.q"] == (64, 32)
    assert fused["layers.0.o"] == (32, 64)
    assert "layers.0.attn_norm" not in fused and "layers.1.attn_norm" in fused
    joined = shapes(replace(PLAIN, drafts=DraftHead(32, 90, fused=False, joined=True)))
    assert joined["join"] == (32, 64) and "fuse" not in joined
    assert joined["layers.0.q"] == (64, 32) and "layers.0.attn_norm" in joined


def test_what_is_the_other_model_s_is_not_its_own() -> None:
    own = shapes(replace(PLAIN, drafts=DraftHead(96, 90, shared=frozenset({"embed", "head"}))))
    assert "embed" not in own and "head" not in own
