"""The rotary fields of a `config.json`, in the formats that transformers has had.

Old: `rope_theta` and `rope_scaling` (null or an object with `type` or `rope_type`). New:
`rope_parameters`, which has the base too, in Gemma 3 one object for each kind of layer. Priorities
are those of transformers: `rope_scaling` before `rope_parameters`; a base in the object before
`rope_theta`; `original_max_position_embeddings` outside of the object before one in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from suffice.decoder.checks import check_number
from suffice.decoder.rope_kinds import ROPE_KINDS
from suffice.decoder.rotation import Rope, check_rope_parameter
from suffice.errors import InputError, brief, unknown

# transformers' defaults of the fields that every family with rotary positions reads
ROPE_DEFAULTS: Mapping[str, Any] = {
    "rope_theta": 10_000.0,
    "rope_scaling": None,
    "rope_parameters": None,
    "partial_rotary_factor": None,
    "original_max_position_embeddings": None,
}
_OWN_LENGTH = ("llama3", "longrope", "yarn")  # kinds that have an original length
_LENGTH = "original_max_position_embeddings"
_PART = "partial_rotary_factor"
_ZERO_IS_NONE = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
_ORIGIN = "finetuned"  # whether the model was trained further with this rotation
_NOTHING: tuple[Any, ...] = (None, {}, [], False, 0, "")
_AXES = ("mrope_section", "mrope_interleaved")


def of_one_axis(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields whose rotation, of positions along three axes, is one of positions along one.

    Positions of text are the same number along all three axes of a rotation for images.
    """
    found = dict(fields)
    for key in ("rope_parameters", "rope_scaling"):
        if isinstance(given := fields.get(key), Mapping):
            own = {name: value for name, value in given.items() if name not in _AXES}
            found[key] = {k: "default" if value == "mrope" else value for k, value in own.items()}
    return found


def read_rope(fields: Mapping[str, Any], *, partial: bool = False) -> Rope:
    """Read a model's one rotary embedding from its fields; `partial`: of a part of each head.

    Raises:
        InputError: An unknown kind, a parameter that its kind lacks, or an impossible value.
    """
    name = "rope_scaling" if fields["rope_scaling"] not in _NOTHING else "rope_parameters"
    given = _mapping(name, fields[name])
    return _rope(given, fields["rope_theta"], fields, f"{name}.", partial=partial)


def layer_ropes(
    fields: Mapping[str, Any],
    thetas: Mapping[str, float],
    kinds: Iterable[str],
    *,
    partial: bool = False,
) -> dict[str, Rope]:
    """Read a rotary embedding for each kind of layer; `partial`: perhaps of a part of each head.

    `thetas` has the base of each kind of layer if its object has none. `rope_scaling` changes the
    rotation of `full_attention`.

    Raises:
        InputError: As `read_rope`, or a kind of rotation that is not in `kinds`.
    """
    nested = _mapping("rope_parameters", fields["rope_parameters"])
    for name, value in nested.items():
        if name not in thetas and value is not None:
            raise unknown("entry of config field 'rope_parameters'", name, thetas)
    scaling = _mapping("rope_scaling", fields["rope_scaling"])
    found = {}
    for layer, theta in thetas.items():
        name = f"rope_parameters.{layer}"
        own = _mapping(name, nested.get(layer))
        if layer == "full_attention" and scaling:
            own, name = {**own, **scaling}, "rope_scaling"
        found[layer] = _rope(own, theta, fields, f"{name}.", partial=partial)
        if found[layer].kind not in kinds:
            raise unknown("rope_type", found[layer].kind, kinds)
    return found


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if value in _NOTHING:
        return {}
    if not isinstance(value, Mapping):
        raise InputError(f"config field '{name}' = {brief(value)} must be an object")
    return value


def _rope(
    given: Mapping[str, Any],
    theta: Any,
    fields: Mapping[str, Any],
    within: str,
    *,
    partial: bool = False,
) -> Rope:
    """Return the rotation of an object; `theta` is its base unless the object has one."""
    values = dict(given)
    older = values.pop("type", "default")
    kind = values.pop("rope_type", older)
    if not isinstance(kind, str) or kind not in ROPE_KINDS:
        raise unknown("rope_type", kind if isinstance(kind, str) else brief(kind), ROPE_KINDS)
    theta_name = f"{within}rope_theta" if "rope_theta" in values else "rope_theta"
    theta = values.pop("rope_theta", theta)
    check_number(theta_name, theta, above=1)
    part = values.pop(_PART, fields[_PART])
    if partial and part is not None:
        check_number(f"{within}{_PART}", part)
    elif part not in (None, 1):
        raise InputError(
            f"config field '{within}{_PART}' = {brief(part)} is not supported; supported: 1.0"
        )
    values.pop(_ORIGIN, None)
    parameters = tuple(_parameters(kind, values, fields, within).items())
    return Rope(kind, float(theta), parameters, partial=1.0 if part is None else float(part))


def _parameters(
    kind: str, values: dict[str, Any], fields: Mapping[str, Any], within: str
) -> dict[str, Any]:
    """Return the parameters of a rotation, those that transformers derives included."""
    trained, inner = fields["max_position_embeddings"], values.pop(_LENGTH, None)
    if inner is not None:
        check_rope_parameter(_LENGTH, inner, within)
    if kind in _OWN_LENGTH:
        outer = fields[_LENGTH]
        values[_LENGTH] = next(n for n in (outer, inner, trained) if n is not None)
    ratio_if_null = kind == "yarn" and "factor" in values
    if values.get("factor") is None and (kind == "longrope" or ratio_if_null):
        values["factor"] = trained / values[_LENGTH]
    if kind == "yarn" and "truncate" in values:
        values["truncate"] = values["truncate"] or False  # null is no
    found, known = {}, ROPE_KINDS[kind][0] | ROPE_KINDS[kind][1]
    for name, value in values.items():
        if value is None or (name in _ZERO_IS_NONE and value == 0 and value is not False):
            continue
        if name not in known:
            raise unknown(f"parameter of rope_type '{kind}'", name, known)
        check_rope_parameter(name, value, within)
        found[name] = value
    return found
