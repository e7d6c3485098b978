"""ERNIE 4.5 with experts: a bias of the choice, and several experts that all rows share as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.decoder.checks import check_size
from suffice.decoder.config import DecoderConfig, LayerConfig
from suffice.decoder.families import Family
from suffice.decoder.families.ernie import DEFAULTS as DENSE_DEFAULTS
from suffice.decoder.families.llama import WEIGHTS, llama_biases, sizes
from suffice.decoder.families.mixtral import SILENT as SILENT_OF_EXPERTS
from suffice.decoder.fields import activation, head_size, read_fields
from suffice.decoder.name_maps import Templates, stored_together
from suffice.decoder.rope_fields import read_rope
from suffice.decoder.routing import Experts

DEFAULTS: Mapping[str, Any] = {
    **DENSE_DEFAULTS,
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "num_hidden_layers": 28,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "head_dim": None,  # hidden_size // num_attention_heads
    "moe_intermediate_size": 1536,
    "moe_k": 6,
    "moe_num_experts": 64,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": -1,  # the last one
    "moe_layer_interval": 1,
}
ONLY = {
    "moe_gate": ("topk",),  # of published files
    "moe_norm_min": (1e-12,),  # far below any sum of a softmax's greatest values
    "moe_use_aux_free": (True,),
}
SILENT = SILENT_OF_EXPERTS | {"is_moe", "moe_capacity", "num_nextn_predict_layers"}
_MLP = "model.layers.{i}.mlp."
_PARTS = ("gate", "up", "down")
_WEIGHTS: Templates = {
    **WEIGHTS,
    "layers.router": _MLP + "gate",
    **stored_together(_MLP + "moe_statics.e_score_correction_bias", "choice", dims=(1, -1)),
    **{f"layers.expert_{part}": f"{_MLP}experts.{{e}}.{part}_proj" for part in _PARTS},
    **{f"layers.shared_{part}": f"{_MLP}shared_experts.{part}_proj" for part in _PARTS},
}
_CALLED = ((r"(.*\.e_score_correction_bias)", r"\1.weight"),)
_SURPLUS = (r"model\.mtp_.*",)  # of layers that draft


def _read(raw: dict[str, Any]) -> DecoderConfig:
    fields = read_fields(raw, DEFAULTS, ("num_key_value_heads", "use_bias"), ONLY, SILENT)
    biased = bool(fields["use_bias"])
    shared, inner = fields["moe_num_shared_experts"], fields["moe_intermediate_size"]
    if shared:
        check_size("moe_num_shared_experts", shared)
    first, last = fields["moe_layer_start_index"], fields["moe_layer_end_index"]
    count, step = fields["num_hidden_layers"], fields["moe_layer_interval"]
    mixed = range(first, (count if last == -1 else last + 1))
    return DecoderConfig(
        **sizes(fields, head_size(fields)),
        layers=tuple(
            LayerConfig(dense=at not in mixed or (at + 1) % step > 0) for at in range(count)
        ),
        activation=activation(fields, "hidden_act"),
        ropes=(read_rope(fields),),
        paired=True,
        biases=llama_biases({"attention_bias": biased, "mlp_bias": biased}),
        experts=Experts(
            fields["moe_num_experts"],
            fields["moe_k"],
            inner,
            ("softmax", "top", "normalize"),
            shared=inner * shared,
            biased=True,
        ),
    )


ERNIE_MOE = Family("ernie4_5_moe", _read, _WEIGHTS, surplus=_SURPLUS, called=_CALLED)
