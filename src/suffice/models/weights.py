"""The weights that a decoder needs, and strict matching with the stored ones.

Canonical names: `embed`, `positions`, `project_in`, `project_out`, `final_norm`, `head`, and for
each layer `layers.0.q`, ...; a bias is the name of its matrix or norm and `.bias`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from suffice.errors import InputError, shown
from suffice.models.config import DecoderConfig
from suffice.models.stored_file import Array, is_finite

__all__ = [
    "LINEARS",
    "check_finite",
    "check_layers",
    "is_linear",
    "is_norm",
    "match",
    "not_finite",
    "shapes",
]

LINEARS = ("q", "k", "v", "o", "gate", "up", "down", "embed", "head", "project_in", "project_out")
_BASE = "model."  # prefix of names that checkpoints without a head leave out
_LISTED = 4  # names in an error message


def is_linear(name: str) -> bool:
    """Return whether a canonical name, without `.bias`, is a matrix [N, K] to pack."""
    return name.rpartition(".")[2] in LINEARS


def is_norm(name: str) -> bool:
    """Return whether a canonical name is the weight of a norm."""
    return name.endswith("norm")


def shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight of a decoder; a bias comes before its matrix."""
    width, embed_width = config.width, config.embed_width
    found: dict[str, tuple[int, ...]] = {"embed": (config.vocab, embed_width)}
    if config.position_rows:
        found["positions"] = (config.position_rows, width)
    if config.projected:
        found["project_in"] = (width, embed_width)
        found["project_out"] = (embed_width, width)
    layer = _layer_shapes(config)
    for index in range(len(config.layers)):
        found.update({f"layers.{index}.{name}": shape for name, shape in layer.items()})
    if config.final_norm:
        found.update(_norm(config, "final_norm"))
    if not config.tied:
        found["head"] = (config.vocab, embed_width)
    return found


def _layer_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
    width, mlp = config.width, config.mlp_width
    linears = {"q": (queries, width), "k": (keys, width), "v": (keys, width), "o": (width, queries)}
    if config.gated:
        linears["gate"] = (mlp, width)
    linears |= {"up": (mlp, width), "down": (width, mlp)}

    found: dict[str, tuple[int, ...]] = {}
    norms = ["attn_norm", "mlp_norm"]
    if config.placement == "sandwich":
        norms += ["post_attn_norm", "post_mlp_norm"]
    for name in norms:
        found.update(_norm(config, name))
    if config.qk_norm:
        found["q_norm"] = found["k_norm"] = (config.head_size,)
    for name, shape in linears.items():
        if name in config.biases:
            found[f"{name}.bias"] = shape[:1]
        found[name] = shape
    return found


def _norm(config: DecoderConfig, name: str) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {name: (config.width,)}
    if config.norm == "layer":
        found[f"{name}.bias"] = (config.width,)
    return found


def match(
    wanted: Mapping[str, tuple[int, ...]],
    templates: Mapping[str, str],
    stored: Mapping[str, tuple[int, ...]],
    *,
    surplus: Iterable[str] = (),
    where: str,
) -> dict[str, str]:
    """Return the stored name of every wanted weight.

    `templates` is a family's name map, `stored` has the shapes of the checkpoint's weights, and
    stored weights that match one of the patterns `surplus` may be left over.

    Raises:
        InputError: Weights that are missing, left over or of another shape; lists their names.
    """
    based = not any(name.startswith(_BASE) for name in stored)
    names = {name: _stored_name(name, templates) for name in wanted}
    if based:
        names = {name: full.removeprefix(_BASE) for name, full in names.items()}
    missing = [name for name in names.values() if name not in stored]
    patterns = [re.compile(pattern) for pattern in surplus]
    used = set(names.values())
    left_over = [
        name
        for name in stored
        if name not in used and not any(pattern.fullmatch(name) for pattern in patterns)
    ]
    if missing or left_over:
        parts = [("missing", missing), ("unknown", left_over)]
        lists = "; ".join(f"{kind}: {_list(items)}" for kind, items in parts if items)
        raise InputError(f"{where}: the weights do not match the configuration; {lists}")
    for name, full in names.items():
        if tuple(stored[full]) != wanted[name]:
            raise InputError(
                f"{where}: weight '{shown(full)}' has shape {list(stored[full])}, "
                f"but the configuration says {list(wanted[name])}"
            )
    return names


def check_finite(path: Path, name: str, weight: Array) -> None:
    """Refuse a stored weight, contiguous and of a floating-point type, with NaN or an infinity.

    Raises:
        InputError: It has one.
    """
    if not is_finite(weight):
        raise not_finite(path, name)


def not_finite(path: Path, name: str) -> InputError:
    """Build the error for a stored weight with NaN or an infinity."""
    return InputError(
        f"{path}: weight '{shown(name)}' has NaN or infinite entries; all must be finite"
    )


def check_layers(where: str, layers: object, stored: int) -> None:
    """Refuse more layers than there are stored weights, before anything is made for each layer.

    `layers` is what a configuration states, a number or not; `where` says where it does.

    Raises:
        InputError: There are more.
    """
    if isinstance(layers, int) and layers > stored:
        raise InputError(f"{where} = {layers} layers, but only {stored} weights are stored")


def _stored_name(name: str, templates: Mapping[str, str]) -> str:
    plain = name.removesuffix(".bias")
    suffix = ".weight" if plain == name else ".bias"
    parts = plain.split(".")
    if len(parts) == 1:
        return templates[plain] + suffix
    return templates[f"layers.{parts[2]}"].format(i=parts[1]) + suffix


def _list(names: list[str]) -> str:
    first = ", ".join(shown(name) for name in sorted(names)[:_LISTED])
    more = len(names) - _LISTED
    return f"{first} and {more} more" if more > 0 else first
