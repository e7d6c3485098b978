"""Rules of attention as the extension takes them."""

from __future__ import annotations

import math

from suffice.attention.rule import READ_ALL, AttentionRule
from suffice.cache import BLOCK
from suffice.native import core

assert core.PANEL == BLOCK, "techniques and kernels must agree on what a block is"


def native_rule(rule: AttentionRule) -> core.AttentionRule:
    """Return the extension's rule; it knows the techniques and parameters by the same names.

    What a technique's reference computes has the rule that reads everything, which is not used.
    """
    if rule.technique is not None:
        return core.AttentionRule(READ_ALL.kind, {}, 0.0)
    found = core.AttentionRule(rule.kind, rule.parameters, rule.value_share)
    if not rule.softmax_tables:
        return found
    borders = [[border / math.log(2) for border in own.borders] for own in rule.softmax_tables]
    return found.with_softmax_tables(borders, [list(own.weights) for own in rule.softmax_tables])
