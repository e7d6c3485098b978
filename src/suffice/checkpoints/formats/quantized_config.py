"""The configuration in a file of `suffice quantize`: the fields of `DecoderConfig` as JSON."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import Any

from suffice.decoder.blocks import ACTIVATIONS
from suffice.decoder.checks import check_number, check_size
from suffice.decoder.config import PLACEMENTS, SCALES, DecoderConfig, LayerConfig
from suffice.decoder.latent import Latent
from suffice.decoder.rotation import Rope
from suffice.decoder.routing import Experts, is_rule
from suffice.decoder.states import Convolution, Recurrence, StateBlock
from suffice.errors import InputError

CHOICES: dict[str, tuple[Any, ...]] = {
    "norm": ("rms", "layer"),
    "placement": PLACEMENTS,
    "activation": ACTIVATIONS,
    "drafts": (None,),  # heads have files of their own
    **dict.fromkeys(("gated", "qk_norm", "tied", "final_norm", "parallel"), (False, True)),
    **dict.fromkeys(
        ("rounds_embed_scale", "shared_norm", "spare_logits", "embed_norm"), (False, True)
    ),
    **dict.fromkeys(("whole_qk_norm", "late_qk_norm", "norm_biases", "paired"), (False, True)),
    "adaptable": (False, True),
}
# fields that the first files of this schema lack: they have these values
_LATER = {
    "adaptable": True,
    "drafts": None,
    "embed_norm": False,
    "experts": None,
    "late_qk_norm": False,
    "latent": None,
    "logit_cap": 0.0,
    "logit_scale": 1.0,
    "norm_biases": True,
    "paired": False,
    "parallel": False,
    "query_growth": None,
    "residual_scale": 1.0,
    "attention_output_scale": 1.0,
    "mlp_output_scale": 1.0,
    "mlp_gate_scale": 1.0,
    "rounds_embed_scale": True,
    "score_cap": 0.0,
    "shared_norm": False,
    "spare_logits": False,
    "state": None,
    "whole_qk_norm": False,
}
_STATES: dict[str, type[StateBlock]] = {"convolution": Convolution, "recurrence": Recurrence}
_LATER_OF_EXPERTS = {
    **{"biased": False, "margin": 0.0, "before": False},
    **{"groups": 1, "kept_groups": 1, "gated": True, "narrow": 0},
}
_TRUTHS_OF_EXPERTS = ("gated_share", "biased", "before", "gated")
_LATER_OF_STATES: dict[str, Any] = {  # scales of what matrices give
    f"{part}_scale": 1.0 for part in ("query", "key", "value", "gate", "decay", "output")
}


def described_config(config: DecoderConfig) -> dict[str, Any]:
    """Return a configuration as a JSON object."""
    found = asdict(replace(config, biases=frozenset())) | {"biases": sorted(config.biases)}
    if config.state is not None:
        kinds = {block: kind for kind, block in _STATES.items()}
        found["state"]["kind"] = kinds[type(config.state)]
    return found


def read_config(stored: dict[str, Any]) -> DecoderConfig:
    """Return the configuration that `described_config` described.

    Raises:
        KeyError, TypeError, ValueError: A field is missing, or has another form.
    """
    stored = _LATER | stored
    layers = tuple(LayerConfig(**layer) for layer in stored["layers"])
    ropes = tuple(
        Rope(
            rope["kind"],
            rope["theta"],
            tuple((key, value) for key, value in rope["parameters"]),
            tuple(rope["divisors"]),
            rope.get("partial", 1.0),
            backward=bool(rope.get("backward", False)),
        )
        for rope in stored["ropes"]
    )
    for field, allowed in CHOICES.items():
        if stored[field] not in allowed:
            raise InputError(f"{field}={stored[field]}; allowed: {', '.join(map(str, allowed))}")
    for field in SCALES:
        check_number(field, stored[field])
    if stored["parallel"] and stored["placement"] != "pre":
        raise InputError(f"parallel blocks with placement={stored['placement']}; allowed: pre")
    if any(layer.rope is not None and not 0 <= layer.rope < len(ropes) for layer in layers):
        raise InputError("a layer refers to a rope that does not exist")
    growth = stored["query_growth"]
    if growth is not None:
        check_number("query_growth", growth[0])
        check_size("query_growth", growth[1])
        first = growth[2] if len(growth) > 2 else 0  # of the first files, which lack it
        if first:
            check_size("query_growth", first)
        stored["query_growth"] = float(growth[0]), growth[1], first
    own: dict[str, Any] = {"layers": layers, "ropes": ropes, "biases": frozenset(stored["biases"])}
    own |= {"experts": _experts(stored["experts"]), "latent": _latent(stored["latent"])}
    own["state"] = _state(stored["state"])
    if own["state"] is None and any(layer.keeps_state for layer in layers):
        raise InputError("layers with states, but no sizes of them")
    return DecoderConfig(**(stored | own))


def _latent(stored: Any) -> Latent | None:
    """Return the sizes of a configuration's latent attention.

    Raises:
        TypeError, ValueError: They have another form.
    """
    if stored is None:
        return None
    if not isinstance(stored, dict) or {each.name for each in fields(Latent)} != stored.keys():
        raise ValueError("latent attention has other fields")
    for name in ("rank", "plain", "rotated", "value"):
        check_size(name, stored[name])
    if stored["low"]:
        check_size("low", stored["low"])
    check_number("norm_eps", stored["norm_eps"])
    if not isinstance(stored["adjacent"], bool):
        raise TypeError("a truth value has another form")
    return Latent(**stored)


def _state(stored: Any) -> StateBlock | None:
    """Return what layers have that keep states.

    Raises:
        KeyError, TypeError, ValueError: It has another form.
    """
    if stored is None:
        return None
    given = dict(stored)
    block = _STATES[given.pop("kind")]
    later = {field.name for field in fields(block)} & {*_LATER_OF_STATES}
    given = {**{name: _LATER_OF_STATES[name] for name in later}, **given}
    for field in fields(block):
        value, kind = given[field.name], str(field.type)
        if field.name in later:
            check_number(field.name, value)
        if kind == "bool" and not isinstance(value, bool):
            raise ValueError(f"{field.name}={value}, which is no truth value")
        if kind == "int" and field.name not in ("norm_size", "low"):
            check_size(field.name, value)
    if "order" in given:
        given["order"] = tuple(given["order"])
        if sorted(given["order"]) != ["keys", "queries", "values"]:
            raise ValueError("states that have other parts than queries, keys and values")
    return block(**given)


def _experts(stored: Any) -> Experts | None:
    """Return the experts of a configuration.

    Raises:
        TypeError, ValueError: It has another form.
    """
    if stored is None:
        return None
    if isinstance(stored, dict):
        stored = _LATER_OF_EXPERTS | stored
    if not isinstance(stored, dict) or {each.name for each in fields(Experts)} != stored.keys():
        raise ValueError("experts have other fields")
    steps = tuple(stored["steps"])
    if not is_rule(steps):
        raise InputError(f"experts have the steps {', '.join(map(str, steps))}, which are no rule")
    for name in ("count", "chosen", "inner", "groups", "kept_groups"):
        check_size(name, stored[name])
    for name in ("shared", "narrow"):
        if stored[name]:
            check_size(name, stored[name])
    check_number("scale", stored["scale"])
    if stored["margin"]:
        check_number("margin", stored["margin"])
    if not all(isinstance(stored[name], bool) for name in _TRUTHS_OF_EXPERTS):
        raise ValueError(f"{', '.join(_TRUTHS_OF_EXPERTS)} are truth values")
    return Experts(**(stored | {"steps": steps}))
