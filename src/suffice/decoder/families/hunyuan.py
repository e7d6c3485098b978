"""Hunyuan, dense: Llama with norms of queries and keys after their rotation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.decoder.config import DecoderConfig, LayerConfig, check_number
from suffice.decoder.families import Family
from suffice.decoder.families.llama import WEIGHTS, sizes
from suffice.decoder.fields import activation, head_size, read_fields
from suffice.decoder.rope_fields import ROPE_DEFAULTS, read_rope

DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "vocab_size": 290943,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,  # num_attention_heads
    "head_dim": None,  # hidden_size // num_attention_heads
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "attention_bias": False,
}
SILENT = frozenset({"eod_token_id"})
_WEIGHTS = {
    **WEIGHTS,
    "layers.q_norm": "model.layers.{i}.self_attn.query_layernorm",
    "layers.k_norm": "model.layers.{i}.self_attn.key_layernorm",
}
_NOTES = ("alpha", "beta_fast", "beta_slow", "factor", "mscale", "mscale_all_dim")


def _stretched(fields: dict[str, Any], size: int) -> dict[str, Any]:
    """Return fields whose rotation has the base that a fixed `alpha` makes: theta a^(D/(D-2))."""
    for name in ("rope_scaling", "rope_parameters"):
        given = fields[name]
        if not isinstance(given, Mapping) or not given.get("alpha"):
            continue
        check_number(f"{name}.alpha", given["alpha"])
        theta = given.get("rope_theta", fields["rope_theta"])
        check_number("rope_theta", theta, above=1)
        plain = {key: value for key, value in given.items() if key not in _NOTES}
        plain |= {"rope_type": "default", "type": "default"}
        plain["rope_theta"] = theta * given["alpha"] ** (size / (size - 2))
        return fields | {name: plain}
    return fields


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS, silent=SILENT)
    size = head_size(fields)
    return DecoderConfig(
        **sizes(fields, size),
        layers=(LayerConfig(),) * fields["num_hidden_layers"],
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(_stretched(fields, size)),),
        qk_norm=True,
        late_qk_norm=True,
        biases=frozenset("qkvo" if fields["attention_bias"] else ""),
    )


HUNYUAN = Family("hunyuan_v1_dense", _read, _WEIGHTS)
