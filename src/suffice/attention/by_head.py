"""A technique with its own thresholds in each layer and key/value head, from a calibration.

Some heads are far more sensitive to unread rows than others. `suffice calibrate --budget` measures
which; the most sensitive heads stay exact.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from suffice.attention import ATTENTIONS, Attention, rule_of
from suffice.errors import InputError
from suffice.registry import CALIBRATED, next_to_calibrated

if TYPE_CHECKING:
    from suffice.attention.calibration import Calibration, Level
    from suffice.attention.rule import AttentionRule

Levels = Sequence[Sequence["Level | None"]]  # [L][G], None: exact


def check(attention: Attention, calibration: Calibration | None) -> None:
    """Require a calibration with the thresholds that a technique needs.

    Raises:
        InputError: The calibration lacks them, there is none, or options are given as well.
    """
    name = ATTENTIONS.name_of(attention)
    own: Any = attention
    for each in dataclasses.fields(own):
        if each.name != CALIBRATED and getattr(own, each.name) != each.default:
            raise next_to_calibrated(name, each.name, getattr(own, each.name))
    again = f"make one with `suffice calibrate --text FILE --budget 0.5% --attention {name}`"
    if calibration is None:
        raise InputError(f"attention={name}:calibrated: needs a calibration of the model: {again}")
    if name not in calibration.attention:
        raise InputError(
            f"calibration {calibration.name}: has no thresholds of attention '{name}': {again}"
        )


def applied(attention: Attention, calibration: Calibration | None) -> Attention:
    """Return a technique with the options that its calibration sets, if it has one.

    Raises:
        InputError: The technique has no such option, or the value is out of its range.
    """
    if calibration is None or not attention.calibrated:
        return attention
    name = ATTENTIONS.name_of(attention)
    try:
        made: Attention = ATTENTIONS.make(name, calibration.attention[name].options)
    except InputError as error:
        raise InputError(f"calibration {calibration.name}: {error}") from None
    return made


def rules(
    attention: Attention, calibration: Calibration | None, layers: int, kv_heads: int
) -> list[list[AttentionRule | None]]:
    """Return the rule of each layer and key/value head, [L][G].

    Raises:
        InputError: The thresholds have another shape, or one is out of the technique's range.
    """
    if calibration is None or not attention.calibrated:
        return [[rule_of(attention)] * kv_heads for _ in range(layers)]
    name = ATTENTIONS.name_of(attention)
    found = calibration.attention[name]
    if (len(found.by_head), len(found.by_head[0])) != (layers, kv_heads):
        raise InputError(
            f"calibration {calibration.name}: has {len(found.by_head)} layers of "
            f"{len(found.by_head[0])} key/value heads: the model has {layers} of {kv_heads}"
        )
    names = open_thresholds(attention, found.options)
    sizes = {len(each) for layer in found.by_head for each in layer if each is not None}
    if sizes - {len(names)}:
        raise InputError(
            f"calibration {calibration.name}: a head has {max(sizes)} thresholds of {name}, and "
            f"its options leave open: {', '.join(names) or 'none'}"
        )
    technique = applied(attention, calibration)
    try:
        return rules_at(technique, names, found.by_head)
    except InputError as error:
        raise InputError(f"calibration {calibration.name}: {error}") from None


def open_thresholds(technique: Any, given: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the thresholds that a technique has for each head: those not given."""
    return tuple(name for name in technique.ladders if name not in given)


def rules_at(
    technique: Any, names: Sequence[str], levels: Levels
) -> list[list[AttentionRule | None]]:
    """Return the rules [L][G] of a technique whose thresholds `names` have the levels [L][G]."""
    known: dict[Level | None, AttentionRule | None] = {None: rule_of(type(technique).exact_limit())}
    for layer in levels:
        for each in layer:
            if each is not None and each not in known:
                own = dict(zip(names, each, strict=True))
                known[each] = rule_of(dataclasses.replace(technique, **own))
    return [[known[each] for each in layer] for layer in levels]
