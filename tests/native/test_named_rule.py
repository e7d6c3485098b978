"""Rules of attention by a technique's name and parameters: what the extension refuses."""

from __future__ import annotations

from typing import Any

import pytest

from suffice.native import core

AET = {"key_share": 0.9, "sinks": 1, "globals": 4, "locals": 8, "by_rows": False}
TIERS = {"estimated": 0, "lightest": 0, "bounded": 0, "sample": 0, "delta": 0.01}
SKIP = {"factor": 1, "split": 0}
ART = {"scale": 0.1, "direction": 0.1, "patience": 1, "probe": 32}


def without(parameters: dict[str, float], name: str) -> dict[str, float]:
    return {key: value for key, value in parameters.items() if key != name}


@pytest.mark.parametrize(
    ("technique", "parameters", "value_share", "message"),
    [
        (
            "oldest",
            {},
            0.0,
            "no technique oldest; known are: read_all aet art certified skip_softmax",
        ),
        ("aet", without(AET, "globals"), 0.0, "aet needs the parameter globals"),
        ("aet", AET | {"patience": 1}, 0.0, "aet has no parameter patience"),
        ("aet", AET | {"sinks": 1.5}, 0.0, "sinks must be a whole number"),
        ("aet", AET | {"sinks": float("nan")}, 0.0, "sinks must be a whole number"),
        ("aet", AET | {"locals": 2**31}, 0.0, "locals must be a whole number"),
        ("aet", AET | {"locals": -1}, 0.0, "sinks, globals, locals cannot be negative"),
        ("aet", AET | {"by_sketch": 2}, 0.0, "by_sketch must be true or false"),
        ("aet", AET | {"check_blocks": 5}, 0.0, "check_blocks must be 1 to 4"),
        ("aet", AET, 1.5, r"value_share must be in \[0, 1\]"),
        ("art", ART | {"probe": 24}, 0.0, "the probe must be a multiple of 16"),
        ("art", ART | {"patience": 0}, 0.0, "patience must be at least 1"),
        ("certified", {"missing": 1, "bounded": True}, 0.0, r"missing must be in \[0, 1\)"),
        ("tiers", TIERS | {"estimated": 1.5}, 0.0, r"must be in \[0, 1\]"),
        ("tiers", TIERS | {"sample": -1}, 0.0, "sample from 0 on, delta between 0 and 1"),
        ("tiers", TIERS | {"delta": 1}, 0.0, "sample from 0 on, delta between 0 and 1"),
        ("tiers", TIERS | {"sample": 8, "bounded": 1}, 0.0, "a certain bound takes no sample"),
        ("skip_softmax", SKIP | {"factor": -1}, 0.0, "factor must be at least 0"),
        ("skip_softmax", SKIP | {"split": 24}, 0.0, "split must be a multiple of 16"),
        ("skip_softmax", SKIP | {"split": -16}, 0.0, "split must be a multiple of 16"),
        ("read_all", {"rows": 1}, 0.0, "read_all has no parameter rows"),
    ],
)
def test_what_is_refused(
    technique: str, parameters: dict[str, Any], value_share: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        core.AttentionRule(technique, parameters, value_share)


def test_the_settings_around_these_are_allowed() -> None:
    assert core.AttentionRule("read_all", {}, 0.0).exact
    assert not core.AttentionRule("aet", AET | {"check_blocks": 4, "by_sketch": True}, 1.0).exact
    assert core.AttentionRule("aet", AET | {"key_share": 2}, 0.0).exact
    assert core.AttentionRule("art", ART | {"scale": 0}, 0.0).exact
    assert core.AttentionRule("certified", {"missing": 0, "bounded": False}, 0.5).exact
    assert core.AttentionRule("tiers", TIERS | {"bounded": 1}, 0.0).exact
    assert core.AttentionRule("skip_softmax", SKIP | {"factor": 0, "split": 32}, 0.0).exact
    assert not core.AttentionRule("skip_softmax", SKIP | {"check_blocks": 4}, 0.0).exact
    assert not core.AttentionRule("tiers", TIERS | {"lightest": 0.1, "sample": 8}, 0.0).exact
