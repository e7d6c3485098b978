"""What an attention technique reads of a cache, as a plain value that a backend carries out."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from suffice.attention.levels import Levels, of_group


@dataclass(frozen=True)
class AttentionRule:
    """The traversal `kind` of a backend with its `parameters`, by name.

    A value is not read if its weight is below `value_share` of the largest weight, in every head.
    `exact`: nothing can be left out. `softmax_tables`: those of each query head that shares the
    keys; empty: weights are e^x. `technique`: the one whose reference the engine runs, because no
    backend has a traversal for it; else None.
    """

    kind: str
    parameters: Mapping[str, float] = field(default_factory=dict)
    value_share: float = 0.0
    exact: bool = False
    softmax_tables: tuple[Levels, ...] = ()
    technique: Any = None


# What is known of the share of a softmax that stays unread: that it is none, a bound that always
# holds, one that each softmax exceeds with a small probability, an estimate, or nothing. Bounds of
# decode steps after an approximate prompt are of its keys as they are: those are not exact.
Guarantee = Literal[
    "exact",
    "bound",
    "probable",
    "bound, prompt approximate",
    "probable, prompt approximate",
    "estimate",
    "none",
]
WHOLE: Guarantee = "exact"
READ_ALL = AttentionRule("read_all", exact=True)


def guarantee(rules: Sequence[Sequence[AttentionRule | None]]) -> Guarantee:
    """Return what is known of what rules [L][G] leave unread: the least of all heads."""
    return weakest({_guarantee(rule) for layer in rules for rule in layer})


def weakest(found: Collection[Guarantee]) -> Guarantee:
    """Return the guarantee that all of some have; "exact" if there are none."""
    return next((each for each in reversed(get_args(Guarantee)) if each in found), WHOLE)


def after_approximate_prompt(found: Guarantee) -> Guarantee:
    """Return what is left of a guarantee of decode steps if the prompt was not run exactly."""
    if found == "bound":
        return "bound, prompt approximate"
    if found == "probable":
        return "probable, prompt approximate"
    return "none" if found == WHOLE else found


def _guarantee(rule: AttentionRule | None) -> Guarantee:
    if rule is None or rule.exact:
        return "exact"
    if rule.softmax_tables:
        return "none"
    if rule.parameters.get("bounded"):
        return "bound"
    if rule.parameters.get("sample"):
        return "probable"
    return "estimate" if "missing" in rule.parameters else "none"


def coded_rule(rule: AttentionRule | None, levels: Sequence[Levels] | None) -> AttentionRule | None:
    """Return a technique's rule with the levels of the query heads that share keys and values.

    None for `rule`: everything is read. None for `levels` leaves the rule as it is.
    """
    if levels is None:
        return rule
    return dataclasses.replace(rule or READ_ALL, exact=False, softmax_tables=tuple(levels))


def coded_rules(
    rules: Sequence[Sequence[AttentionRule | None]], levels: Sequence[Sequence[Levels]]
) -> list[list[AttentionRule]]:
    """Return rules [L][G] with the levels [L][H] of a coded softmax, which without one are empty.

    None for a rule: everything is read.
    """
    found = []
    for layer, own in enumerate(rules):
        of_layer = levels[layer] if levels else None
        group = len(of_layer or ()) // len(own)
        coded = [coded_rule(rule, of_group(of_layer, g, group)) for g, rule in enumerate(own)]
        found.append([rule or READ_ALL for rule in coded])
    return found
