"""The weights of decoders that draft. Tests draft_head.py."""

from __future__ import annotations

from dataclasses import replace

from suffice.cache import LayerRows
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


def test_a_plain_pair_has_the_other_model_s_width() -> None:
    head = DraftHead(64, 90, joined=True, plain=True, groups=5, kept_groups=2)
    found = shapes(replace(PLAIN, drafts=head, embed_width=64))
    assert found["embed"] == (90, 64) and found["head"] == (90, 32)
    assert found["join"] == (32, 128) and found["hand_on"] == (64, 32)
    assert found["groups"] == (5, 32) and "embed_norm" not in found and "project_in" not in found


def test_a_decoder_that_reads_another_s_caches_has_their_rows() -> None:
    rows = (LayerRows(1, 16), LayerRows(2, 32), LayerRows(2, 32, shares=1))
    layers = (LayerConfig(shares=1, head_size=32), LayerConfig(shares=0, kv_heads=1))
    config = replace(PLAIN, layers=layers, head_size=32, drafts=DraftHead(32, 90, rows=rows))
    assert config.rows == rows
    assert [config.blocks(at)[0].shares for at in range(2)] == [1, 0]  # type: ignore[union-attr]
    assert [name for name in shapes(config) if name.endswith((".k", ".v"))] == []


def test_what_is_the_other_model_s_is_not_its_own() -> None:
    own = shapes(replace(PLAIN, drafts=DraftHead(96, 90, shared=frozenset({"embed", "head"}))))
    assert "embed" not in own and "head" not in own
