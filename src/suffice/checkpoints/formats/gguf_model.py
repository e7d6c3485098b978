"""Models in GGUF files: metadata as a Hugging Face configuration, and the names of weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffice.checkpoints.checkpoint import Checkpoint, assemble
from suffice.checkpoints.formats.gguf_file import GGUF, unpaired
from suffice.checkpoints.formats.gguf_latent import LATENT, renamed, variant
from suffice.checkpoints.formats.gguf_names import (
    ARCHITECTURES,
    CURVE,
    WITH_KEY,
    Architecture,
)
from suffice.checkpoints.formats.gguf_types import CODES, file_type
from suffice.checkpoints.given import with_given
from suffice.checkpoints.matching import check_finite, check_layers, not_finite
from suffice.checkpoints.source import UnreadCodes
from suffice.checkpoints.stored_file import FLOATS, Array
from suffice.decoder.config import DecoderConfig
from suffice.decoder.families import family_of
from suffice.errors import InputError, shown, unknown
from suffice.native import PANEL

_ROPE_DIVISORS = "rope_freqs.weight"
_ROPE_LISTS = {
    "short_factor": "rope_factors_short.weight",
    "long_factor": "rope_factors_long.weight",
}
_LONG_ROPE = {
    "attn_factor": "attention_factor",
    "original_context_length": "original_max_position_embeddings",
}
_OF_ROPE = (_ROPE_DIVISORS, *_ROPE_LISTS.values())
_FUSED = "attn_qkv"
_ROW = "ffn_gate_inp_shexp.weight"
_WITHOUT_NORMS = 128
# of the one size, 27B, whose attention scale does not follow from its head size
_GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}

_NEEDED = ("embedding_length", "block_count", "attention.head_count", "feed_forward_length")
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
    config = family.read(raw)
    if _ROPE_DIVISORS in file.tensors:
        divisors = _divisors(file, config.head_size)
        config = replace(config, ropes=tuple(replace(r, divisors=divisors) for r in config.ropes))
    source = with_given(_Source(file, config, interleaved=own.paired), _curves(file, config))
    # llama.cpp stores 1 + w for the families that add 1
    return assemble(
        path, family, config, source, own.weights, norm_offset=0.0, metadata=file.metadata
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
    values = np.array(_numbers(file, _ROPE_DIVISORS), np.float32)
    if values.shape != (head_size // 2,) or values.min() <= 0:
        raise InputError(
            f"{file.path}: tensor '{_ROPE_DIVISORS}' of shape {list(values.shape)} "
            f"must hold {head_size // 2} positive numbers"
        )
    return tuple(values.tolist())


class _Source:
    """The tensors of a file under their own names, in Hugging Face's order of rows.

    Queries, keys and values in that order cannot be parts of one tensor, and have names of their
    own.
    """

    def __init__(self, file: GGUF, config: DecoderConfig, *, interleaved: bool) -> None:
        self._file, self._size = file, config.head_size
        self._parts = _parts(file, config) if interleaved else {}
        self._heads = {"attn_q": config.heads, "attn_k": config.kv_heads} if interleaved else {}
        self._rotated = config.ropes[0].rotated(config.head_size) if interleaved else 0

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every stored weight except those of rotations."""
        tensors = self._file.tensors
        left_out = {*_OF_ROPE, *(whole for whole, _, _ in self._parts.values())}
        own = {name: info.shape for name, info in tensors.items() if name not in left_out}
        for name, (whole, _, rows) in self._parts.items():
            own[name] = (rows, *tensors[whole].shape[1:])
        return {name: _shape(name, shape) for name, shape in own.items()}

    def _place(self, name: str) -> tuple[str, int, int]:
        """Return the tensor of a weight, the weight's first row there, and its rows."""
        return self._parts.get(name) or (name, 0, self._file.tensors[name].shape[0])

    def dtype(self, name: str) -> str:
        """Return the name of a weight's type; bfloat16 for blocks of integers."""
        stored = self._file.tensors[self._place(name)[0]].type
        return str(FLOATS[stored]) if stored in FLOATS else "bfloat16"

    def stored(self, name: str) -> tuple[str, int]:
        """Return the ggml type of a weight, and its bytes."""
        whole, _, rows = self._place(name)
        info = self._file.tensors[whole]
        return info.type, info.size * rows // info.shape[0]

    @property
    def label(self) -> str | None:
        """The file's name for its storage, such as Q4_K_M; None if missing or wrong."""
        return file_type(self._file.metadata.get("general.file_type"))

    def load(self, name: str) -> Array:
        """Read one weight, decoded to float32 if it is stored in blocks."""
        whole, first, rows = self._place(name)
        info, (paired, rotated) = self._file.tensors[whole], self._paired(name)
        part = name in self._parts
        if len(info.shape) == 2 and (paired or part or info.type not in FLOATS):
            values = np.empty((rows, info.shape[1]), np.float32)
            self.load_rows(name, 0, values)
            return values
        found = self._file.load(whole)[first : first + rows]
        check_finite(self._file.path, name, found)
        if paired:  # a bias
            found = unpaired(found, paired, rotated)
        return found.reshape(_shape(name, (rows, *info.shape[1:])))

    def load_rows(self, name: str, first: int, out: NDArray[np.float32]) -> None:
        """Decode rows `first`, ... of a matrix into `out` [rows, K]."""
        whole, before, _ = self._place(name)
        if not self._file.read_rows(whole, before + first, out, *self._paired(name)):
            raise not_finite(self._file.path, name)

    def in_codes(self, name: str) -> bool:
        """Return whether a matrix is stored in codes."""
        return self._file.tensors[self._place(name)[0]].type in CODES

    def codes(self, name: str) -> UnreadCodes:
        """Return a matrix that is stored in codes."""
        whole, first, _ = self._place(name)
        info = self._file.tensors[whole]
        layout, levels = CODES[info.type]

        def fill(out: NDArray[np.uint8]) -> None:
            panels = out
            if name in self._parts:
                panels = np.empty((info.shape[0] // PANEL, out.shape[1]), np.uint8)
            if not self._file.read_panels(whole, panels, *self._paired(name)):
                raise not_finite(self._file.path, name)
            if panels is not out:
                out[...] = panels[first // PANEL :][: len(out)]

        return UnreadCodes(layout, levels, fill)

    def _paired(self, name: str) -> tuple[int, int]:
        """Return the rows of a head, and how many of them llama.cpp stores in pairs; 0: none.

        The two rows that a rotation mixes are next to each other there.
        """
        heads = next((n for part, n in self._heads.items() if f".{part}." in name), 0)
        return (self._size, self._rotated) if heads else (0, 0)


def _parts(file: GGUF, config: DecoderConfig) -> dict[str, tuple[str, int, int]]:
    """Return queries, keys and values that are one tensor: its name, their first row, their rows.

    Raises:
        InputError: The tensor has other rows than they.
    """
    heads = {"attn_q": config.heads, "attn_k": config.kv_heads, "attn_v": config.kv_heads}
    found = {}
    for whole in [name for name in file.tensors if f".{_FUSED}." in name]:
        first = 0
        for part, count in heads.items():
            rows = count * config.head_size
            found[whole.replace(_FUSED, part)] = whole, first, rows
            first += rows
        if (rows := file.tensors[whole].shape[0]) != first:
            raise InputError(
                f"{file.path}: weight '{shown(whole)}' has {rows} rows, "
                f"but the metadata say {first}"
            )
    return found


def _shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a tensor, also where a matrix of one row is stored as a vector."""
    return (1, *shape) if len(shape) == 1 and name.endswith(_ROW) else shape


def _configuration(file: GGUF, name: str, own: Architecture) -> dict[str, Any]:
    """Return the metadata as the fields of a `config.json`."""
    prefix, fields = name + ".", own.fields
    keys = {
        key.removeprefix(prefix): _one(value)
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
    for key in (*_NEEDED, *own.needed, *keys):
        _check_number(file, prefix + key, keys.get(key), fields[key][1])
    check_layers(f"{file.path}: '{prefix}block_count'", keys["block_count"], len(file.tensors))
    raw: dict[str, Any] = {fields[key][0]: value for key, value in keys.items()}
    raw = {**own.lacking, **raw}
    if isinstance(slides := raw.get("layer_types"), list):  # a truth value for each layer
        raw["layer_types"] = ["sliding_attention" if each else "full_attention" for each in slides]
    raw.setdefault("num_key_value_heads", raw["num_attention_heads"])
    raw.setdefault("head_dim", raw["hidden_size"] // raw["num_attention_heads"])
    raw |= {"architectures": [own.name], "vocab_size": _vocabulary(file)}
    raw["tie_word_embeddings"] = "output.weight" not in file.tensors
    rope = _rope_scaling(file, scaling)
    raw |= {name: value | own.scaled for name, value in rope.items()}
    if name in _GEMMA_27B_LAYERS:
        raw["query_pre_attn_scalar"] = _gemma_scalar(raw, _GEMMA_27B_LAYERS[name])
    if name == "llama4":  # all but those of 128 experts, as llama.cpp has it
        raw["use_qk_norm"] = raw.get("num_local_experts") != _WITHOUT_NORMS
    if own.bias:
        raw[own.bias] = any(f"blk.0.attn_{part}.bias" in file.tensors for part in ("q", "qkv"))
    raw |= {field: tensor in file.tensors for field, tensor in own.stored.items()}
    raw["num_hidden_layers"] -= raw.get("num_nextn_predict_layers", 0)  # which draft
    if own.partial and "rope.dimension_count" in checked:
        rotated = checked.pop("rope.dimension_count")
        _check_number(file, prefix + "rope.dimension_count", rotated, int)
        raw[own.partial] = rotated / raw["head_dim"]
    _check_implied(checked, raw, prefix)
    called = {own.renamed.get(field, field): value for field, value in raw.items()}
    given = _nested({field: value for field, value in called.items() if field})
    return own.finished(given | dict(own.fixed))


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


def _one(value: Any) -> Any:
    """Return the number of all layers, where a list has the same for each."""
    same = isinstance(value, list) and {type(each) for each in value} == {int}
    return value[0] if same and len(set(value)) == 1 else value


def _rope_scaling(file: GGUF, keys: Mapping[str, Any]) -> dict[str, Any]:
    values = {key.removeprefix("rope.scaling."): value for key, value in keys.items()}
    kind = values.pop("type", "none")
    values.pop("finetuned", None)  # the origin of the model
    if all(name in file.tensors for name in _ROPE_LISTS.values()):
        lists = {field: _numbers(file, name) for field, name in _ROPE_LISTS.items()}
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
