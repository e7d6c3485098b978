"""Strict reading of a checkpoint's `config.json`.

Every field must be read by the family, be known not to matter for inference, or have the one value
that the decoder supports. Any other field is refused by name: silently ignoring it would silently
compute another model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from suffice.decoder.checks import check_layers, check_number, check_size
from suffice.decoder.config import LayerConfig
from suffice.decoder.ignored import SILENT, has_no_effect, tell
from suffice.errors import InputError, brief, unknown

# Optional fields of any family with only these supported values; null is none.
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "add_cross_attention": (False, None),
    "is_decoder": (False, True, None),
    "is_encoder_decoder": (False, None),
    "pruned_heads": ({}, None),
    "rope_interleaved": (False, None),
    "tie_encoder_decoder": (False, None),
    "use_bfloat16": (False, None),
    "use_mrope": (False, None),
}
_SIZES = frozenset(
    {
        "decoder_sparse_step",
        "dim_model_base",
        "ffn_dim",
        "ffn_hidden_size",
        "floor_scale",
        "head_dim",
        "hidden_size",
        "interleave_moe_layer_step",
        "intermediate_size",
        "block_multiple_of",
        "conv_L_cache",
        "conv_kernel",
        "full_attention_interval",
        "linear_conv_kernel_dim",
        "linear_key_head_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_value_head_dim",
        "n_groups",
        "ssm_state_size",
        "mamba_d_conv",
        "mamba_d_ssm",
        "mamba_d_state",
        "mamba_expand",
        "mamba_head_dim",
        "mamba_n_groups",
        "mamba_n_heads",
        "mamba_num_heads",
        "intermediate_size_mlp",
        "kv_lora_rank",
        "max_position_embeddings",
        "moe_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "moe_k",
        "moe_latent_size",
        "moe_layer_interval",
        "moe_num_experts",
        "moe_topk",
        "n_embd",
        "n_group",
        "n_head",
        "n_inner",
        "n_layer",
        "n_positions",
        "n_routed_experts",
        "no_rope_layer_interval",
        "num_attention_heads",
        "num_experts",
        "num_experts_per_tok",
        "num_hidden_layers",
        "num_key_value_heads",
        "num_local_experts",
        "original_max_position_embeddings",
        "q_lora_rank",
        "qk_head_dim",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "rotary_dim",
        "shared_expert_intermediate_size",
        "sliding_window",
        "sliding_window_pattern",
        "topk_group",
        "v_head_dim",
        "vocab_size",
        "word_embed_proj_dim",
    }
)
_NUMBERS = {  # and their exclusive lower bounds
    **dict.fromkeys(("attention_in_multiplier", "attention_out_multiplier"), 0.0),
    **dict.fromkeys(("key_multiplier", "lm_head_multiplier"), 0.0),
    **dict.fromkeys(("ssm_in_multiplier", "ssm_out_multiplier"), 0.0),
    "attn_logit_softcapping": 0.0,
    "time_step_min": 0.0,
    "block_ffn_dim_multiplier": 0.0,
    "attention_multiplier": 0.0,
    "embedding_multiplier": 0.0,
    "final_logit_softcapping": 0.0,
    "layer_norm_eps": 0.0,
    "layer_norm_epsilon": 0.0,
    "logit_scale": 0.0,
    "logits_scaling": 0.0,
    "norm_epsilon": 0.0,
    "query_pre_attn_scalar": 0.0,
    "residual_multiplier": 0.0,
    "routed_scaling_factor": 0.0,
    "rms_norm_eps": 0.0,
    "rope_local_base_freq": 1.0,
    "rope_theta": 1.0,
    "rotary_emb_base": 1.0,
    "rotary_pct": 0.0,
    "scale_depth": 0.0,
    "scale_emb": 0.0,
}
_LAYER_COUNTS = ("num_hidden_layers", "n_layer")
_NULLABLE = ("rope_local_base_freq", "rope_theta")  # the objects of rotations may have them
_MOST_FIELDS = 1000
_OLD_LAYERS = {"attention": "full_attention"}  # older names of kinds of layers

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "squared_relu",
}


def read_fields(
    raw: Mapping[str, Any],
    defaults: Mapping[str, Any],
    nullable: Collection[str] = (),
    only: Mapping[str, tuple[Any, ...]] | None = None,
    silent: Collection[str] = (),
) -> dict[str, Any]:
    """Return the fields in `defaults`, each with its value in `raw` or else its default.

    A default of None stands for a value that the family derives. `nullable` are further fields that
    may be null, `only` those with a single supported value (or a few), `silent` those of the family
    that change nothing. Others that change nothing are ignored, with a warning where transformers
    does not write them.

    Raises:
        InputError: A field that is neither read nor known, or an unsupported value.
    """
    if len(raw) > _MOST_FIELDS:
        raise InputError(f"config.json has {len(raw)} fields; allowed: {_MOST_FIELDS}")
    allowed, ignored = {**_ONLY, **(only or {})}, []
    for name, value in raw.items():
        if name in allowed:
            _require(name, value, allowed[name])
        elif name in defaults or name in SILENT or name in silent or value is None:
            continue
        elif has_no_effect(name, value, defaults):
            ignored.append(name)
        else:
            raise _unsupported(name, value, {*defaults, *allowed})
    fields = {name: raw.get(name, default) for name, default in defaults.items()}
    may_be_null = {*_NULLABLE, *nullable}
    for name, value in fields.items():
        if value is not None or not (defaults[name] is None or name in may_be_null):
            _check(name, value, defaults[name])
    for name in _LAYER_COUNTS:
        if name in fields:
            check_layers(fields[name], name)
    tell(ignored)
    return fields


def under_own_name(raw: Mapping[str, Any], own: str, other: str) -> dict[str, Any]:
    """Return a configuration whose field `other` is called `own`, unless both are there."""
    return {own if name == other and own not in raw else name: each for name, each in raw.items()}


def _check(name: str, value: Any, default: Any) -> None:
    """Refuse a value of the wrong type; objects and lists are checked where they are read."""
    if name in _SIZES:
        check_size(name, value)
    elif name in _NUMBERS:
        check_number(name, value, _NUMBERS[name])
    elif isinstance(default, bool) and not isinstance(value, bool):
        raise InputError(f"config field '{name}' = {brief(value)} must be true or false")
    elif isinstance(default, int) and type(value) is not type(default):
        raise InputError(f"config field '{name}' = {brief(value)} must be a whole number")


def _unsupported(name: str, value: Any, known: Collection[str]) -> InputError:
    near = get_close_matches(name[:100], known, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return InputError(f"config field {brief(name)} = {brief(value)} is not supported.{hint}")


def head_size(fields: Mapping[str, Any], *, whole: bool = False) -> int:
    """Return the head size; old configurations leave it out, and it is derived.

    Raises:
        InputError: There are more heads than the hidden size has entries; or, if `whole`, it is not
            a multiple of the heads.
    """
    width, heads = fields["hidden_size"], fields["num_attention_heads"]
    size = fields.get("head_dim") or width // heads
    check_size("head_dim", size)
    if whole and fields.get("head_dim") is None and width % heads:
        raise InputError(
            f"config field 'hidden_size' = {width} must be a multiple of "
            f"'num_attention_heads' = {heads}"
        )
    return int(size)


def layers_by_kind(
    fields: Mapping[str, Any],
    derived: Callable[[int], bool],
    sliding: LayerConfig,
    full: LayerConfig,
) -> tuple[LayerConfig, ...]:
    """Read which layers have a sliding window from `layer_types`.

    Without that field, `derived` tells it from a layer's index.

    Raises:
        InputError: A kind of layer other than full and sliding attention, a missing window, or
            another number of layers.
    """
    found = layers_of_kinds(
        fields,
        lambda index: "sliding_attention" if derived(index) else "full_attention",
        {"full_attention": full, "sliding_attention": sliding},
    )
    if sliding.window is None and any(each is sliding for each in found):
        raise InputError("config field 'sliding_window' is missing, but 'layer_types' uses it")
    return found


def layers_of_kinds(
    fields: Mapping[str, Any], derived: Callable[[int], str], known: Mapping[str, LayerConfig]
) -> tuple[LayerConfig, ...]:
    """Read the layers' kinds from `layer_types`; without it, `derived` gives that of an index.

    Raises:
        InputError: An unknown kind, or another number of layers.
    """
    count, kinds = fields["num_hidden_layers"], fields["layer_types"]
    if kinds is None:
        kinds = [derived(index) for index in range(count)]
    elif not isinstance(kinds, list):
        raise InputError(f"config field 'layer_types' = {brief(kinds)} must be a list")
    elif len(kinds) != count:
        raise InputError(
            f"config field 'layer_types' has {len(kinds)} entries for 'num_hidden_layers' = {count}"
        )
    return tuple(known[_kind(kind, known)] for kind in kinds)


def some_layers(fields: Mapping[str, Any], field: str) -> list[int] | None:
    """Return the layers that a field lists; None without it.

    Raises:
        InputError: It is no list of whole numbers.
    """
    given = fields[field]
    if given is None:
        return None
    if not isinstance(given, list) or not all(type(each) is int for each in given):
        raise InputError(f"config field '{field}' = {brief(given)} must be a list of whole numbers")
    return given


def layers_with_experts(
    fields: Mapping[str, Any], layers: Sequence[LayerConfig]
) -> tuple[LayerConfig, ...]:
    """Return layers, those dense that `mlp_only_layers` and `decoder_sparse_step` say.

    Raises:
        InputError: `mlp_only_layers` is no list of layers.
    """
    given, step = some_layers(fields, "mlp_only_layers") or [], fields["decoder_sparse_step"]
    return tuple(
        replace(layer, dense=index in given or (index + 1) % step != 0)
        for index, layer in enumerate(layers)
    )


def _kind(kind: Any, known: Collection[str]) -> str:
    found = _OLD_LAYERS.get(kind, kind) if isinstance(kind, str) else None
    if found not in known:
        raise unknown("kind in 'layer_types'", _text(kind), known)
    return str(found)


def activation(fields: Mapping[str, Any], field: str) -> str:
    """Return the decoder's name for the activation function in a field of a checkpoint's config.

    Raises:
        InputError: An unknown function.
    """
    name = fields[field]
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise unknown(f"value of config field '{field}'", _text(name), _ACTIVATIONS)
    return _ACTIVATIONS[name]


def _require(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        values = ", ".join(repr(choice) for choice in allowed)
        raise InputError(
            f"config field '{name}' = {brief(value)} is not supported; supported: {values}"
        )


def _text(value: Any) -> str:
    """Return a value as the text of a name."""
    return value if isinstance(value, str) else brief(value)
