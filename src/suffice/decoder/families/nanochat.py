"""nanochat: norms without weights, one of them of embeddings; heads are rotated backward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.llama import WEIGHTS, sizes
from suffice.decoder.fields import activation, head_size, read_fields
from suffice.decoder.name_maps import Filled, Templates
from suffice.decoder.rope_fields import ROPE_DEFAULTS, read_rope

DEFAULTS: Mapping[str, Any] = {
    **ROPE_DEFAULTS,
    "vocab_size": 50304,
    "hidden_size": 768,
    "intermediate_size": 8192,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "num_key_value_heads": None,  # num_attention_heads
    "hidden_act": "relu2",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "final_logit_softcapping": 15.0,
    "attention_bias": False,
}
_CAP = "final_logit_softcapping"
_NORMS = ("embed_norm", "final_norm", "layers.attn_norm", "layers.mlp_norm")
_HEAD_NORMS = ("layers.q_norm", "layers.k_norm")
_WEIGHTS: Templates = {
    **{name: stored for name, stored in WEIGHTS.items() if name != "layers.gate"},
    **dict.fromkeys((*_NORMS, *_HEAD_NORMS), Filled(1.0)),
    "layers.up": "model.layers.{i}.mlp.fc1",
    "layers.down": "model.layers.{i}.mlp.fc2",
}


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS, (_CAP,))
    return DecoderConfig(
        **sizes(fields, head_size(fields, whole=True)) | {"gated": False},
        layers=(LayerConfig(),) * fields["num_hidden_layers"],
        activation=activation(fields, "hidden_act"),
        ropes=(replace(read_rope(fields), backward=True),),
        qk_norm=True,
        late_qk_norm=True,
        embed_norm=True,
        logit_cap=fields[_CAP] or 0.0,
        biases=frozenset("qkvo" if fields["attention_bias"] else ""),
    )


NANOCHAT = Family("nanochat", _read, _WEIGHTS)
