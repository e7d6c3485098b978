"""Gemma 4 in files of llama.cpp, whose layers differ; see `gguf_names`.

Numbers that differ from layer to layer are lists there. The divisors of the global rotation are
1 where a pair of entries turns, and so large elsewhere that it does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffice.checkpoints.formats.gguf_architecture import (
    GATES_AND_VALUES,
    INNER,
    LAYER,
    RMS,
    WEIGHTS,
    Architecture,
)
from suffice.errors import InputError, brief

_STILL = 1e10  # divisors from here on stop a rotation
_AS_LONG = {  # as the keys of local layers
    "local_values": "attention.value_length_swa",
    "local_rotated": "rope.dimension_count_swa",
}
_LOCAL, _GLOBAL = "sliding_attention", "full_attention"


def _heads(fields: Mapping[str, Any], kinds: list[str]) -> dict[str, int]:
    """Return the key/value heads of each kind of layer."""
    each = fields["num_key_value_heads"]
    each = each if isinstance(each, list) else [each] * len(kinds)
    found = {kind: {n for n, own in zip(each, kinds, strict=True) if own == kind} for kind in kinds}
    if any(len(own) > 1 for own in found.values()):
        raise InputError(
            f"GGUF key 'gemma4.attention.head_count_kv' = {brief(each)}: layers of one kind must "
            "have the same number"
        )
    return {kind: own.pop() for kind, own in found.items()}


def _widths(fields: Mapping[str, Any], count: int, first: int) -> tuple[int, bool]:
    """Return the width of the MLPs, and whether they are twice as wide from layer `first` on."""
    each = fields["intermediate_size"]
    each = each if isinstance(each, list) else [each] * count
    wide = first < count and each[-1] != each[0]
    if each != [each[0]] * first + [(2 if wide else 1) * each[0]] * (count - first):
        raise InputError(
            f"GGUF key 'gemma4.feed_forward_length' = {brief(each)}: those of the last "
            f"{count - first} layers may be twice the others, and no others may differ"
        )
    return each[0], wide


def _turning(divisors: list[float]) -> float:
    """Return the share of pairs that turn."""
    turn = [each < _STILL for each in divisors]
    count = sum(turn)
    if divisors[:count] != [1.0] * count or any(turn[count:]):
        raise InputError("the tensor 'rope_freqs.weight' must have ones, and then vast numbers")
    return count / len(divisors) if divisors else 1.0


def _finished(given: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the class."""
    fields = dict(given)
    count, kinds = fields["num_hidden_layers"], fields["layer_types"]
    size, values = fields["head_dim"], fields.pop("values")
    owners = zip(kinds, values[: count - fields["num_kv_shared_layers"]], strict=False)
    heads, local = _heads(fields, kinds), fields.pop("local_head_dim")
    for field, key in _AS_LONG.items():
        if (given_size := fields.pop(field, local)) != local:
            raise InputError(
                f"GGUF key 'gemma4.{key}' = {given_size} is not supported; supported: {local}"
            )
    width, wide = _widths(fields, count, count - fields["num_kv_shared_layers"])
    rotations = {
        _LOCAL: {"rope_type": "default", "rope_theta": fields.pop("local_theta")},
        _GLOBAL: {
            "rope_type": "proportional",
            "partial_rotary_factor": _turning(fields.pop("divisors")),
            "rope_theta": fields.pop("rope_theta"),
        },
    }
    one = {"head_dim": size, "num_key_value_heads": heads.get(_GLOBAL, 1)}
    return fields | {
        "head_dim": local,
        "num_key_value_heads": heads.get(_LOCAL, heads.get(_GLOBAL)),
        "per_layer_config": {str(at): one for at, kind in enumerate(kinds) if kind == _GLOBAL},
        "intermediate_size": width,
        "use_double_wide_mlp": wide,
        "rope_parameters": rotations,
        "attention_k_eq_v": (_GLOBAL, False) in owners,
        "vocab_size_per_layer_input": fields["vocab_size"],
        "enable_moe_block": "num_experts" in fields,
    }


GEMMA4 = Architecture(
    "Gemma4ForCausalLM",
    {
        **RMS,
        **INNER,
        "attention.key_length_swa": ("local_head_dim", int),
        "attention.value_length_swa": ("local_values", int),
        "rope.dimension_count_swa": ("local_rotated", int),
        "attention.shared_kv_layers": ("num_kv_shared_layers", int),
        "attention.sliding_window": ("sliding_window", int),
        "attention.sliding_window_pattern": ("layer_types", list),
        "embedding_length_per_layer_input": ("hidden_size_per_layer_input", int),
        "expert_count": ("num_experts", int),
        "expert_used_count": ("top_k_experts", int),
        "final_logit_softcapping": ("final_logit_softcapping", float),
        "rope.freq_base_swa": ("local_theta", float),
    },
    {
        **WEIGHTS,
        "layer_embed": "per_layer_token_embd",
        "layer_embed_project": "per_layer_model_proj",
        "layer_embed_norm": "per_layer_proj_norm",
        "layers.layer_gate": LAYER + "inp_gate",
        "layers.layer_out": LAYER + "proj",
        "layers.post_layer_embed_norm": LAYER + "post_norm",
        "layers.scale": LAYER + "layer_output_scale",
        "layers.router_norm": LAYER + "ffn_gate_inp.scale",
        "layers.factors": LAYER + "ffn_down_exps.scale",
        "layers.post_dense_norm": LAYER + "post_ffw_norm_1",
        "layers.experts_norm": LAYER + "pre_ffw_norm_2",
        "layers.post_experts_norm": LAYER + "post_ffw_norm_2",
    },
    lacking={"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "local_theta": 1e4},
    absent={
        "attention.shared_kv_layers": 0,
        "embedding_length_per_layer_input": 0,
        "expert_count": 0,
        "expert_used_count": 0,
    },
    bias="",
    needed=(
        *("attention.key_length", "attention.key_length_swa", "attention.sliding_window"),
        "attention.sliding_window_pattern",
    ),
    listed=("attention.head_count_kv", "feed_forward_length"),
    divisors="divisors",
    stored={"values": LAYER + "attn_v.weight"},
    instead=GATES_AND_VALUES,
    finished=_finished,
)
