"""Llama 4, text: experts whose weights multiply what they read; some layers without positions.

Layers with positions attend within chunks of the text. Texts of one chunk are supported, in which
that makes no difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.decoder.checks import check_number, check_size
from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.llama import WEIGHTS, sizes
from suffice.decoder.families.mixtral import SILENT as SILENT_OF_EXPERTS
from suffice.decoder.fields import activation, head_size, read_fields
from suffice.decoder.name_maps import Filled, Templates, stored_together
from suffice.decoder.rope_fields import ROPE_DEFAULTS, read_rope
from suffice.decoder.routing import Experts
from suffice.errors import InputError, brief

DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "rope_theta": 500_000.0,
    "vocab_size": 202048,
    "hidden_size": 5120,
    "intermediate_size": 8192,  # of experts
    "intermediate_size_mlp": 16384,  # of layers without
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "num_experts_per_tok": 1,
    "num_local_experts": 16,
    "moe_layers": None,  # every interleave_moe_layer_step-th one
    "interleave_moe_layer_step": 1,
    "use_qk_norm": True,
    "no_rope_layers": None,  # 0: without positions, as every no_rope_layer_interval-th one
    "no_rope_layer_interval": 4,
    "attention_chunk_size": 8192,  # null: layers attend to all
    "layer_types": None,  # those with positions attend within chunks
    "attn_temperature_tuning": True,  # of queries in layers without positions
    "floor_scale": 8192,
    "attn_scale": 0.1,
    "attention_bias": False,
}
_MLP = "model.layers.{i}.feed_forward."
_PARTS = ("gate", "up", "down")
_WEIGHTS: Templates = {
    **WEIGHTS,
    **dict.fromkeys(("layers.q_norm", "layers.k_norm"), Filled(1.0)),
    **{f"layers.{part}": f"{_MLP}{part}_proj" for part in _PARTS},
    "layers.router": _MLP + "router",
    **stored_together(
        *(_MLP + "experts.gate_up_proj", "expert_gate", "expert_up"),
        by_expert=True,
        transposed=True,
    ),
    **stored_together(_MLP + "experts.down_proj", "expert_down", by_expert=True, transposed=True),
    **{f"layers.shared_{part}": f"{_MLP}shared_expert.{part}_proj" for part in _PARTS},
}
_CALLED = ((r"(.*\.feed_forward\.experts\.(?:gate_up|down)_proj)", r"\1.weight"),)
_CHUNKS, _FULL = "chunked_attention", "full_attention"


def _of_layers(name: str, given: Any, count: int, allowed: tuple[Any, ...]) -> list[Any]:
    """Return a list with one of the `allowed` values for each layer."""
    known = isinstance(given, list) and len(given) >= count
    if not known or any(each not in allowed for each in given):
        listed = ", ".join(map(repr, allowed))
        raise InputError(
            f"config field '{name}' = {brief(given)} must have one of {listed} for each of "
            f"{count} layers"
        )
    found: list[Any] = given[:count]
    return found


def _with_experts(fields: Mapping[str, Any]) -> list[int]:
    """Return the layers that have experts."""
    given, step = fields["moe_layers"], fields["interleave_moe_layer_step"]
    if given is None:
        return list(range(step - 1, fields["num_hidden_layers"], step))
    if not isinstance(given, list) or not all(type(each) is int for each in given):
        raise InputError(
            f"config field 'moe_layers' = {brief(given)} must be a list of whole numbers"
        )
    return given


def _positions(fields: Mapping[str, Any], rotated: list[int]) -> int:
    """Return the tokens of a text: one chunk at most, if there are layers with chunks."""
    longest, chunk = fields["max_position_embeddings"], fields["attention_chunk_size"]
    kinds = fields["layer_types"]
    if kinds is None:
        kinds = [_CHUNKS if each and chunk is not None else _FULL for each in rotated]
    if _CHUNKS not in _of_layers("layer_types", kinds, len(rotated), (_CHUNKS, _FULL)):
        return int(longest)
    check_size("attention_chunk_size", chunk)
    return int(min(longest, chunk))


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS, ("attention_chunk_size",), silent=SILENT_OF_EXPERTS)
    count, step = fields["num_hidden_layers"], fields["no_rope_layer_interval"]
    given = fields["no_rope_layers"] or [int((at + 1) % step > 0) for at in range(count)]
    rotated = _of_layers("no_rope_layers", given, count, (0, 1))
    mixed, inner = _with_experts(fields), fields["intermediate_size"]
    own = {"mlp_width": fields["intermediate_size_mlp"]}
    growth = None
    if fields["attn_temperature_tuning"]:
        check_number("attn_scale", fields["attn_scale"])
        growth = float(fields["attn_scale"]), fields["floor_scale"], 1
    return DecoderConfig(
        **sizes(fields, head_size(fields))
        | own
        | {"trained_positions": _positions(fields, rotated)},
        layers=tuple(
            LayerConfig(None, 0 if turns else None, at not in mixed, bool(turns), not turns)
            for at, turns in enumerate(rotated)
        ),
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields),),
        qk_norm=fields["use_qk_norm"],
        late_qk_norm=True,
        query_growth=growth,
        paired=True,
        biases=frozenset("qkvo" if fields["attention_bias"] else ""),
        experts=Experts(
            fields["num_local_experts"],
            fields["num_experts_per_tok"],
            inner,
            ("top", "sigmoid"),
            shared=inner,
            before=True,
        ),
    )


LLAMA4 = Family("llama4_text", _read, _WEIGHTS, called=_CALLED)
