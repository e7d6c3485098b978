"""What is known of what rules leave unread: see `suffice.attention.rule`."""

from __future__ import annotations

import pytest

from suffice.attention import ATTENTIONS, rule_of
from suffice.attention.rule import AttentionRule, guarantee, weakest


def rule(text: str) -> AttentionRule | None:
    return rule_of(ATTENTIONS.build(text))


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("exact", "exact"),
        ("certified:eps=0", "exact"),
        ("certified", "bound"),
        ("certified:bounded=false", "estimate"),
        ("tiers:bounded=true", "bound"),
        ("tiers:sample=64", "probable"),
        ("tiers", "none"),
        ("aet", "none"),
        ("art", "none"),
        ("skip_softmax", "none"),
        ("skip_softmax:factor=0", "exact"),
    ],
)
def test_what_is_known_of_a_technique(text: str, known: str) -> None:
    assert guarantee([[rule(text)]]) == known


def test_of_several_heads_the_least_is_known() -> None:
    exact, bound, likely, unknown = map(rule, ("exact", "certified", "tiers:sample=64", "aet"))
    assert guarantee([[exact, bound], [exact, exact]]) == "bound"
    assert guarantee([[bound], [likely], [bound]]) == "probable"
    assert guarantee([[exact, unknown, likely, bound]]) == "none"
    assert weakest(set()) == "exact"
