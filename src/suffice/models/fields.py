"""Strict reading of a checkpoint's `config.json`.

Every field must be read by the family, be known not to matter for inference, or have the one value
that the decoder supports. Any other field is refused by name: silently ignoring it would silently
compute another model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from copy import deepcopy
from difflib import get_close_matches
from typing import Any

from suffice.errors import InputError, unknown
from suffice.models.config import LayerConfig, Rope, check_number, check_size

__all__ = ["activation", "layer_windows", "normalise", "read_rope", "sliding_layers"]

# Training, bookkeeping and generation defaults: nothing here changes the logits.
_IRRELEVANT = frozenset(
    {
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_name_or_path",
        "activation_dropout",
        "architectures",
        "attention_dropout",
        "attn_implementation",
        "auto_map",
        "bad_words_ids",
        "begin_suppress_tokens",
        "bos_token_id",
        "cache_implementation",
        "chunk_size_feed_forward",
        "classifier_dropout",
        "decoder_start_token_id",
        "diversity_penalty",
        "do_sample",
        "dropout",
        "dtype",
        "early_stopping",
        "encoder_no_repeat_ngram_size",
        "eos_token_id",
        "exponential_decay_length_penalty",
        "finetuning_task",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "gradient_checkpointing",
        "hidden_dropout",
        "id2label",
        "init_std",
        "initializer_range",
        "is_llama_config",
        "keys_to_ignore_at_inference",
        "label2id",
        "layerdrop",
        "length_penalty",
        "max_length",
        "min_length",
        "model_type",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_beams",
        "num_return_sequences",
        "output_attentions",
        "output_hidden_states",
        "output_scores",
        "pad_token_id",
        "prefix",
        "pretraining_tp",
        "problem_type",
        "remove_invalid_values",
        "repetition_penalty",
        "return_dict",
        "return_dict_in_generate",
        "sep_token_id",
        "suppress_tokens",
        "task_specific_params",
        "temperature",
        "tf_legacy_loss",
        "tokenizer_class",
        "top_k",
        "top_p",
        "torch_dtype",
        "torchscript",
        "transformers.js_config",
        "transformers_version",
        "typical_p",
        "unsloth_fixed",
        "unsloth_version",
        "use_cache",
    }
)
# Optional fields of any family with only one supported value.
_ONLY: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "is_decoder": (False, True),
    "is_encoder_decoder": (False,),
    "pruned_heads": ({},),
    "rope_interleaved": (False,),
    "tie_encoder_decoder": (False,),
    "use_bfloat16": (False,),
    "use_mrope": (False,),
}

# Checked before transformers reads them, since it divides by some.
_SIZES = (
    "ffn_dim",
    "head_dim",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "original_max_position_embeddings",
    "sliding_window",
    "vocab_size",
    "word_embed_proj_dim",
)
_NUMBERS = {  # and their exclusive lower bounds
    "attention_factor": 0.0,
    "beta_fast": 0.0,
    "beta_slow": 0.0,
    "factor": 0.0,
    "high_freq_factor": 0.0,
    "low_freq_factor": 0.0,
    "mscale": -math.inf,
    "mscale_all_dim": -math.inf,
    "query_pre_attn_scalar": 0.0,
    "rms_norm_eps": 0.0,
    "rope_local_base_freq": 1.0,
    "rope_theta": 1.0,
}
_ROPES = ("rope_parameters", "rope_scaling", "full_attention", "sliding_attention")

_ROPE_FIELDS: dict[str, tuple[frozenset[str], frozenset[str]]] = {  # kind: required, optional
    "default": (frozenset(), frozenset()),
    "linear": (frozenset({"factor"}), frozenset()),
    "dynamic": (frozenset({"factor"}), frozenset()),
    "llama3": (
        frozenset(
            {
                "factor",
                "low_freq_factor",
                "high_freq_factor",
                "original_max_position_embeddings",
            }
        ),
        frozenset(),
    ),
    "yarn": (
        frozenset({"factor", "original_max_position_embeddings"}),
        frozenset(
            {
                "attention_factor",
                "beta_fast",
                "beta_slow",
                "mscale",
                "mscale_all_dim",
                "truncate",
            }
        ),
    ),
}
_ROPE_ANY = ("original_max_position_embeddings", "partial_rotary_factor")  # of any kind
_ROPE_SINGLE = {"partial_rotary_factor": (1.0, None), "truncate": (False, True, None)}

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


def normalise(
    raw: Mapping[str, Any],
    config_class: type[Any],
    used: Iterable[str],
    only: Mapping[str, tuple[Any, ...]],
) -> Any:
    """Return transformers' own reading of a configuration, old or new in format.

    `used` are the fields that the caller reads, `only` those with a single supported value (or a
    few).

    Raises:
        InputError: A field that is neither read nor known, an unsupported value, or one that
            transformers itself refuses.
    """
    allowed = {**_ONLY, **only}
    known = {*used, *allowed, *_IRRELEVANT}
    for name, value in raw.items():
        if name not in known and value is not None:
            near = get_close_matches(name, known, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise InputError(f"config field '{name}' = {_short(value)} is not supported.{hint}")
        if name in _ONLY:
            _require(name, value, _ONLY[name])
    _check_numbers(raw)
    config = _transformers_config(raw, config_class)
    for name, values in only.items():
        if hasattr(config, name):
            _require(name, getattr(config, name), values)
    return config


def _check_numbers(raw: Mapping[str, Any], within: str = "") -> None:
    for name, value in raw.items():
        if name in _ROPES and isinstance(value, Mapping):
            _check_numbers(value, f"{within}{name}.")
        elif value is not None and name in _SIZES:
            check_size(within + name, value)
        elif value is not None and name in _NUMBERS:
            check_number(within + name, value, _NUMBERS[name])


def _transformers_config(raw: Mapping[str, Any], config_class: type[Any]) -> Any:
    from huggingface_hub.errors import StrictDataclassError

    # Ignored fields must not cause errors. transformers edits nested dictionaries in place.
    relevant = deepcopy({name: raw[name] for name in raw if name not in _IRRELEVANT})
    try:
        return config_class.from_dict(relevant)
    except (StrictDataclassError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = " ".join(str(error).split()).partition(" Errors: ")[0]
        raise InputError(f"config.json is not a valid {config_class.__name__}: {reason}") from None


def read_rope(parameters: Mapping[str, Any], kinds: Iterable[str] = tuple(_ROPE_FIELDS)) -> Rope:
    """Read a rotary embedding from the normalised `rope_parameters`.

    Raises:
        InputError: A kind that is not in `kinds`, or a parameter that its kind lacks.
    """
    kind = parameters.get("rope_type", "default")
    if kind not in tuple(kinds):
        raise unknown("rope_type", str(kind), kinds)
    required, optional = _ROPE_FIELDS[kind]
    values = []
    for name, value in parameters.items():
        if name in ("rope_type", "type", "rope_theta"):
            continue
        if name in _ROPE_SINGLE:
            _require(f"rope_parameters.{name}", value, _ROPE_SINGLE[name])
        if name in required | optional:
            if value is not None:
                values.append((name, value))
        elif name not in _ROPE_ANY and value is not None:
            raise unknown(f"parameter of rope_type '{kind}'", name, required | optional)
    missing = sorted(required - {name for name, _ in values})
    if missing:
        raise InputError(f"rope_type '{kind}' needs the parameter '{missing[0]}'")
    _check_bands(dict(values))
    check_number("rope_theta", parameters.get("rope_theta"), above=1)
    return Rope(kind, float(parameters["rope_theta"]), tuple(sorted(values)))


def _check_bands(values: Mapping[str, float]) -> None:
    for low, high in (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast")):
        if low in values and high in values:
            check_number(f"rope_parameters.{high}", values[high], above=values[low])


def layer_windows(config: Any) -> tuple[LayerConfig, ...]:
    """Read which layers have a sliding window, for families with one rotary embedding.

    Raises:
        InputError: A kind of layer other than full and sliding attention, or a missing window.
    """
    return tuple(
        LayerConfig(config.sliding_window if slides else None) for slides in sliding_layers(config)
    )


def sliding_layers(config: Any) -> list[bool]:
    """Return for each layer whether it has a sliding window.

    Raises:
        InputError: A kind of layer other than full and sliding attention, or a missing window.
    """
    kinds = list(config.layer_types)
    if len(kinds) != config.num_hidden_layers:
        raise InputError(
            f"config field 'layer_types' has {len(kinds)} entries "
            f"for 'num_hidden_layers' = {config.num_hidden_layers}"
        )
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise unknown("kind in 'layer_types'", kind, ("full_attention", "sliding_attention"))
    sliding = [kind == "sliding_attention" for kind in kinds]
    if any(sliding) and config.sliding_window is None:
        raise InputError("config field 'sliding_window' is missing, but 'layer_types' uses it")
    return sliding


def activation(config: Any, field: str) -> str:
    """Return the decoder's name for the activation function in a field of a checkpoint's config.

    Raises:
        InputError: An unknown function.
    """
    name = getattr(config, field)
    if name not in _ACTIVATIONS:
        raise unknown(f"value of config field '{field}'", name, _ACTIVATIONS)
    return _ACTIVATIONS[name]


def _require(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        values = ", ".join(repr(choice) for choice in allowed)
        raise InputError(
            f"config field '{name}' = {_short(value)} is not supported; supported: {values}"
        )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
