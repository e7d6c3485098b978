"""Models in GGUF files: metadata as a Hugging Face configuration, and the names of weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffice.checkpoints.checkpoint import Checkpoint, assemble
from suffice.checkpoints.formats.gguf_architecture import Architecture
from suffice.checkpoints.formats.gguf_file import GGUF
from suffice.checkpoints.formats.gguf_latent import LATENT, renamed, variant
from suffice.checkpoints.formats.gguf_names import ARCHITECTURES, CURVE, WITH_KEY
from suffice.checkpoints.formats.gguf_source import ROPE_DIVISORS, ROPE_LISTS, Tensors
from suffice.checkpoints.given import with_given
from suffice.checkpoints.matching import check_finite, check_layers
from suffice.decoder.config import DecoderConfig
from suffice.decoder.families import family_of
from suffice.decoder.states import Recurrence
from suffice.errors import InputError, unknown

_LONG_ROPE = {
    "attn_factor": "attention_factor",
    "original_context_length": "original_max_position_embeddings",
}
# of the one size, 27B, whose attention scale does not follow from its head size
_GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}

_NEEDED = ("embedding_length", "block_count", "attention.head_count", "feed_forward_length")
_OF_STATES = ("ssm.", "shortconv.")  # needed where a model has them
_BY_LAYER = ("attention.head_count_kv", "feed_forward_length")
_ATTENTION = "full_attention"
_TOKENS = "tokenizer.ggml.tokens"
# metadata keys that are optional but fixed: their value follows from other keys
_EMBEDS = ("pooling_type",)  # see `checkpoints.pooled`
_CHECKED = ("rope.dimension_count", "attention.value_length", "vocab_size", "expert_count")


def open_gguf(path: Path) -> Checkpoint:
    """Open the model in a `.gguf` file.

    Raises:
        InputError: A damaged file, an unsupported architecture, key or tensor type, or weights
            that do not match the metadata.
    """
    file = GGUF.open(path)
    name = file.metadata.get("general.architecture")
    known = {**ARCHITECTURES, **LATENT}
    if not isinstance(name, str) or name not in known:
        raise unknown("GGUF architecture", f"{name!s:.200}", known, close=0.85)
    own = known[name]
    if name in LATENT:
        file = replace(file, tensors=renamed(file.tensors))
        own = variant(name, own, file.metadata, file.tensors)
    for (of, key), other in WITH_KEY.items():
        if of == name and file.metadata.get(f"{name}.{key}"):
            own = other
    raw = _configuration(file, name, own)
    family = family_of(raw)
    config = replace(family.read(raw), adaptable=own.adaptable)
    if ROPE_DIVISORS in file.tensors and not own.divisors:
        divisors = _divisors(file, config.head_size)
        config = replace(config, ropes=tuple(replace(r, divisors=divisors) for r in config.ropes))
    if own.tiled and isinstance(config.state, Recurrence):
        in_turn = config.state.heads != config.state.key_heads
        config = replace(config, state=replace(config.state, tiled=in_turn))
    if file.metadata.get(f"{name}.nextn_predict_layers"):
        family = replace(family, predicts=True)
    weights = dict(own.weights)
    for pattern, others in own.instead.items():
        weights |= others if _has(file, pattern) else {}
    tensors = Tensors(file, config, interleaved=own.paired, whole=own.whole)
    return assemble(
        path,
        family,
        config,
        with_given(tensors, _curves(file, config)),
        weights,
        norm_offset=0.0,  # llama.cpp stores 1 + w for the families that add 1
        changes=own.changes,
        metadata=file.metadata,
    )


def _numbers(file: GGUF, name: str) -> list[float]:
    """Return the numbers of a tensor, whatever its shape is."""
    values = file.load(name).astype(np.float32)
    check_finite(file.path, name, values)
    found: list[float] = values.reshape(-1).tolist()
    return found


def _curves(file: GGUF, config: DecoderConfig) -> dict[str, NDArray[np.float32]]:
    """Return the parameters of each layer's activation, as vectors by the names of weights.

    A key has a number for each layer, or one for all of them.

    Raises:
        InputError: It has anything else.
    """
    if config.activation != "xielu":
        return {}
    count, found = len(config.layers), {}
    for key in CURVE.values():
        value = file.metadata.get(key)
        each = value if isinstance(value, list) else [value] * count
        if len(each) != count or not all(type(v) is float and math.isfinite(v) for v in each):
            raise InputError(
                f"{file.path}: the GGUF key '{key}' = {value!r:.60} must be {count} finite numbers"
            )
        for layer, number in enumerate(each):
            found[f"blk.{layer}.{key}.weight"] = np.array([number], np.float32)
    return found


def _divisors(file: GGUF, head_size: int) -> tuple[float, ...]:
    values = np.array(_numbers(file, ROPE_DIVISORS), np.float32)
    if values.shape != (head_size // 2,) or values.min() <= 0:
        raise InputError(
            f"{file.path}: tensor '{ROPE_DIVISORS}' of shape {list(values.shape)} "
            f"must hold {head_size // 2} positive numbers"
        )
    return tuple(values.tolist())


def _configuration(file: GGUF, name: str, own: Architecture) -> dict[str, Any]:
    """Return the metadata as the fields of a `config.json`."""
    prefix, fields = name + ".", own.fields
    layers = file.metadata.get(f"{prefix}block_count")
    keys = {
        key.removeprefix(prefix): _one(value, layers)
        for key, value in file.metadata.items()
        if key.startswith(prefix)
        and key.removeprefix(prefix) not in _EMBEDS
        and own.absent.get(key.removeprefix(prefix)) != value
        and not key.removeprefix(prefix).startswith(own.unread)
    }
    scaling = {key: keys.pop(key) for key in list(keys) if key.startswith("rope.scaling.")}
    checked = {key: keys.pop(key) for key in _CHECKED if key in keys and key not in fields}
    for key in keys:
        if key not in fields:
            raise unknown(f"GGUF key of '{name}'", prefix + key, [prefix + f for f in fields])
    _check_number(file, f"{prefix}block_count", keys.get("block_count"), int)
    check_layers(f"{file.path}: '{prefix}block_count'", keys["block_count"], len(file.tensors))
    kinds = _kinds(file, prefix, keys, own) if own.state else None
    lists = {key: _listed(file, prefix, keys, key) for key in own.listed if key in keys}
    needed = (key for key in fields if key in _NEEDED or key.startswith(_OF_STATES))
    for key in (*needed, *own.needed, *keys):
        _check_number(file, prefix + key, keys.get(key), fields[key][1])
    raw: dict[str, Any] = {fields[key][0]: value for key, value in keys.items()}
    raw = {**own.lacking, **raw, **{fields[key][0]: each for key, each in lists.items()}}
    if own.divisors:
        raw[own.divisors] = _numbers(file, ROPE_DIVISORS) if ROPE_DIVISORS in file.tensors else []
    if isinstance(slides := raw.get("layer_types"), list):  # a truth value for each layer
        raw["layer_types"] = ["sliding_attention" if each else _ATTENTION for each in slides]
    if own.attending and kinds is not None:
        raw[own.attending] = [at for at, kind in enumerate(kinds) if kind == _ATTENTION]
    elif kinds is not None:
        raw["layer_types"] = kinds
    if "mamba_inner" in raw:
        raw |= _heads_with_states(file, prefix, raw.pop("mamba_inner"), raw)
    raw.setdefault("num_key_value_heads", raw["num_attention_heads"])
    raw.setdefault("head_dim", raw["hidden_size"] // raw["num_attention_heads"])
    raw |= {"architectures": [own.name], "vocab_size": _vocabulary(file)}
    raw["tie_word_embeddings"] = "output.weight" not in file.tensors
    rope = _rope_scaling(file, scaling)
    raw |= {name: value | own.scaled for name, value in rope.items()}
    if name in _GEMMA_27B_LAYERS:
        raw["query_pre_attn_scalar"] = _gemma_scalar(raw, _GEMMA_27B_LAYERS[name])
    if own.bias:
        raw[own.bias] = any(_has(file, f"blk.*.attn_{part}.bias") for part in ("q", "qkv"))
    places = range(raw["num_hidden_layers"])
    for field, tensor in own.stored.items():
        each = [_has(file, tensor.format(i=at)) for at in places] if "{i}" in tensor else None
        raw[field] = _has(file, tensor) if each is None else each
    raw["num_hidden_layers"] -= raw.get("num_nextn_predict_layers", 0)  # which draft
    if own.partial and "rope.dimension_count" in checked:
        rotated = checked.pop("rope.dimension_count")
        _check_number(file, prefix + "rope.dimension_count", rotated, int)
        raw[own.partial] = rotated / raw["head_dim"]
    _check_implied(checked, raw, prefix)
    called = {own.renamed.get(field, field): value for field, value in raw.items()}
    given = _nested({field: value for field, value in called.items() if field})
    return own.finished(given | dict(own.fixed))


def _listed(file: GGUF, prefix: str, keys: dict[str, Any], key: str) -> Any:
    """Return a key's number, or its list of one for each layer; `keys` gets the first of these.

    Raises:
        InputError: It has other numbers, or others than there are layers.
    """
    each = keys[key]
    if not isinstance(each, list):
        return each
    if len(each) != keys["block_count"] or any(type(n) is not int or n < 1 for n in each):
        raise InputError(
            f"{file.path}: the GGUF key '{prefix}{key}' = {each!r:.60} must be, for each of "
            f"{keys['block_count']} layers, a whole number of at least 1"
        )
    keys[key] = each[0]
    return each


def _has(file: GGUF, pattern: str) -> bool:
    """Return whether a tensor has a name, in which a `*` stands for anything."""
    return any(fnmatchcase(name, pattern) for name in file.tensors)


def _kinds(file: GGUF, prefix: str, keys: dict[str, Any], own: Architecture) -> list[str]:
    """Return the kind of each layer: with attention, of an MLP alone, or with a state.

    The lists that tell it are replaced in `keys` by their one number that is not 0.

    Raises:
        InputError: A list has other numbers, or others than there are layers.
    """
    count = keys["block_count"]
    lists: dict[str, list[Any]] = {key: [0] * count for key in _BY_LAYER}
    if not isinstance(keys.get(_BY_LAYER[0]), list):
        lists[_BY_LAYER[0]] = [1] * count
    for key in _BY_LAYER:
        each = keys.get(key)
        if not isinstance(each, list):
            continue
        numbers = {number for number in each if number != 0} if len(each) == count else set()
        if len(numbers) != 1 or {type(number) for number in each} != {int}:
            raise InputError(
                f"{file.path}: the GGUF key '{prefix}{key}' = {each!r:.60} must be, for each of "
                f"{count} layers, 0 or the same whole number"
            )
        keys[key], lists[key] = numbers.pop(), each
    attends, alone = (lists[key] for key in _BY_LAYER)
    return [
        _ATTENTION if heads else own.alone if width else own.state
        for heads, width in zip(attends, alone, strict=True)
    ]


def _heads_with_states(
    file: GGUF, prefix: str, inner: int, raw: Mapping[str, Any]
) -> dict[str, int]:
    """Return the size of a head with states, and how wide all of them are next to the model.

    Raises:
        InputError: `inner`, the width of all, is no multiple of their number.
    """
    heads = raw["mamba_n_heads"]
    if inner % heads:
        raise InputError(
            f"{file.path}: the GGUF key '{prefix}ssm.inner_size' = {inner} must be a multiple of "
            f"'{prefix}ssm.time_step_rank' = {heads}"
        )
    return {"mamba_d_head": inner // heads, "mamba_expand": inner // raw["hidden_size"]}


def _nested(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields, those whose names have a dot within the object of the name before it."""
    found: dict[str, Any] = {name: value for name, value in fields.items() if "." not in name}
    for name, value in fields.items():
        outer, dot, inner = name.partition(".")
        if dot:
            found.setdefault(outer, {})[inner] = value
    return found


def _check_number(file: GGUF, key: str, value: object, kind: type) -> None:
    """Refuse values of another type than `kind`, and whole numbers below 1.

    Raises:
        InputError: It is one.
    """
    if kind is int and not (type(value) is int and value >= 1):
        allowed = "a whole number of at least 1"
    elif kind is bool and type(value) is not bool:
        allowed = "true or false"
    elif kind is float and type(value) not in (int, float):
        allowed = "a number"
    elif kind is list and not (isinstance(value, list) and {type(v) for v in value} <= {bool}):
        allowed = "a truth value for each layer"
    else:
        return
    raise InputError(f"{file.path}: the GGUF key '{key}' = {value!r:.60} must be {allowed}")


def _vocabulary(file: GGUF) -> int:
    info = file.tensors.get("token_embd.weight")
    if info is None or len(info.shape) != 2:
        raise InputError(f"{file.path}: the tensor 'token_embd.weight' is missing or no matrix")
    tokens = file.metadata.get(_TOKENS)
    if isinstance(tokens, list) and len(tokens) != info.shape[0]:
        raise InputError(
            f"{file.path}: its vocabulary has {len(tokens)} tokens, "
            f"but its embedding has {info.shape[0]} rows"
        )
    return info.shape[0]


def _gemma_scalar(raw: Mapping[str, Any], layers_of_27b: int) -> int:
    if raw["num_hidden_layers"] == layers_of_27b:
        return int(raw["hidden_size"]) // int(raw["num_attention_heads"])
    return int(raw["head_dim"])


def _one(value: Any, layers: Any) -> Any:
    """Return the number of all `layers`, where a list has the same for each."""
    same = isinstance(value, list) and {type(each) for each in value} == {int}
    return value[0] if same and len(set(value)) == 1 and len(value) == layers else value


def _rope_scaling(file: GGUF, keys: Mapping[str, Any]) -> dict[str, Any]:
    values = {key.removeprefix("rope.scaling."): value for key, value in keys.items()}
    kind = values.pop("type", "none")
    values.pop("finetuned", None)  # the origin of the model
    if all(name in file.tensors for name in ROPE_LISTS.values()):
        lists = {field: _numbers(file, name) for field, name in ROPE_LISTS.items()}
        own = {field: values[key] for key, field in _LONG_ROPE.items() if key in values}
        return {"rope_scaling": {"rope_type": "longrope", **lists, **own}}
    if kind == "none":
        return {}
    names: dict[str, dict[str, str | None]] = {
        "linear": {"factor": "factor", "original_context_length": None},
        "yarn": {
            "factor": "factor",
            "original_context_length": "original_max_position_embeddings",
            "yarn_beta_fast": "beta_fast",
            "yarn_beta_slow": "beta_slow",
            "yarn_log_multiplier": "mscale",
        },
    }
    if not isinstance(kind, str) or kind not in names:
        raise unknown("GGUF rope.scaling.type", f"{kind!s:.200}", ["none", *names])
    for key, value in values.items():
        if key not in names[kind]:
            known = [f"rope.scaling.{name}" for name in names[kind]]
            raise unknown("GGUF key", f"rope.scaling.{key}", known)
        whole = key == "original_context_length"
        _check_number(file, f"rope.scaling.{key}", value, int if whole else float)
    fields = {field: values[key] for key, field in names[kind].items() if field and key in values}
    if "mscale" in fields:  # llama.cpp has one number for both
        fields["mscale_all_dim"] = fields["mscale"]
    return {"rope_scaling": {"rope_type": kind, **fields}}


def _check_implied(checked: Mapping[str, Any], raw: Mapping[str, Any], prefix: str) -> None:
    implied = {
        "rope.dimension_count": raw["head_dim"],
        "attention.value_length": raw["head_dim"],
        "vocab_size": raw["vocab_size"],
        "expert_count": 0,
    }
    for key, value in checked.items():
        if value != implied[key]:
            raise InputError(
                f"GGUF key '{prefix}{key}' = {value!r:.60} is not supported; "
                f"supported: {implied[key]}"
            )
