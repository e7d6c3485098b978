"""Run-time termination: the probe, the two thresholds, patience and the paper's bounds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from caches import cache_of
from suffice.attention.art import ART, ProbeState
from suffice.attention.exact import Exact
from suffice.attention.traversal import Seen
from suffice.backends.cpu.attention import attend
from suffice.errors import InputError


def look(art: ART, outputs: list[list[float]]) -> list[bool]:
    """Return after which of a head's successive normalised outputs it may stop."""
    watch, found = ProbeState(), []
    for output in outputs:
        seen = Seen(9, 1, np.ones((1, 1)), np.ones(1), np.repeat([output], 16, -1))
        found.append(bool(art.enough(seen, watch)[0]))
    return found


def test_patience_is_of_looks_in_a_row() -> None:
    art = ART(change=0.5, angle=0.01, patience=2, probe=32)
    steady, jump = [1.0, 0.0], [3.0, 0.0]
    assert look(art, [steady, steady, steady]) == [False, False, True], (
        "the first has no look before"
    )
    assert look(art, [steady, steady, jump, jump, jump]) == [False] * 4 + [True]


def test_scale_and_direction_are_looked_at_apart() -> None:
    turned = [math.cos(0.2), math.sin(0.2)]  # 1 - cos = .02
    short = [[1e-3, 0.0], [1e-3 * turned[0], 1e-3 * turned[1]]]
    assert look(ART(change=0.1, angle=0.01, patience=1, probe=32), short) == [False, False], (
        "it turned"
    )
    assert look(ART(change=0.1, angle=0.03, patience=1, probe=32), short) == [False, True]
    longer = [[1.0, 0.0], [1.1, 0.0]]
    assert look(ART(change=0.3, angle=0.01, patience=1, probe=32), longer) == [False, False], (
        "4 x .1 of 16"
    )
    assert look(ART(change=0.5, angle=0.01, patience=1, probe=32), longer) == [False, True]


def test_the_probe_is_spread_over_the_head() -> None:
    output = np.arange(128.0)[None]
    assert ART(probe=32).probed(output)[0].tolist() == [*range(16), *range(64, 80)]
    for whole in (output, output[:, :64]):
        np.testing.assert_array_equal(ART(probe=128).probed(whole), whole, "the oracle")


def test_a_traversal_stops_where_the_rest_is_alike() -> None:
    """Values that are all the same settle at once: p + 1 blocks are read."""
    art = ART(change=1e-4, angle=1e-3, patience=3, block=64)
    random = np.random.default_rng(0)
    q, k = random.standard_normal((4, 1, 64)), random.standard_normal((2, 1000, 64))
    found = art.reference(q, k, np.ones((2, 1000, 64)), scale=0.125)
    assert found.keys.sum(-1).tolist() == [[1000 - 12 * 64] * 2]
    np.testing.assert_allclose(found.output, 1)


@pytest.mark.parametrize("patience", [1, 2, 3, 5, 8, 9, 13, 20])
def test_the_engine_stops_at_the_same_check(patience: int) -> None:
    """Whatever the patience; stable checks of three heads come in runs of many lengths."""
    random = np.random.default_rng(patience)
    keys, values = random.standard_normal((2, 1, 1500, 64)).astype(np.float32)
    values[:, random.random(1500) < 0.5] = 1.0
    cache, q = cache_of(keys, values, "float32"), random.standard_normal((3, 8, 64))
    stops = set()
    for change in (3e-2, 6e-2, 0.1, 0.2):
        art = ART(change=change, angle=1.0, patience=patience, block=16)
        for token in range(q.shape[1]):
            own = q[:, token : token + 1].astype(np.float32)
            _, (read,) = attend(art.rule(), own, cache, 0, scale=0.1)
            found = art.reference(own.astype(float), keys.astype(float), values, scale=0.1)
            assert read.key_rows == found.keys.sum(), (change, token)
            stops.add(read.key_rows)
    assert len(stops) > 8, "at many places"


@pytest.mark.parametrize("block", [16, 48, 64])
def test_a_window_is_read_to_its_oldest_key(block: int) -> None:
    """Wherever it begins within the blocks of a check."""
    random = np.random.default_rng(0)
    cache = cache_of(*random.standard_normal((2, 1, 300, 64)).astype(np.float32), "float32")
    q = random.standard_normal((2, 1, 64)).astype(np.float32)
    rules = ART(change=1e-18, block=block).rule(), Exact().rule()
    for window in range(60, 300, 16):
        found, exact = (attend(rule, q, cache, 0, scale=0.1, window=window)[0] for rule in rules)
        np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"change": -1.0}, "art: change=-1.0: must be a finite number of at least 0"),
        ({"change": float("inf")}, "art: change=inf: must be a finite number of at least 0"),
        ({"angle": float("nan")}, "art: angle=nan: must be a finite number of at least 0"),
        ({"patience": 0}, "art: patience=0: must be at least 1 block"),
        ({"block": 20}, "art: block=20: must be 16, 32, 48 or 64"),
        ({"order": "sketch"}, "art: block=64: order=sketch needs block=16"),
        ({"order": "sketches"}, r"unknown order of art 'sketches'. Did you mean 'sketch'\?"),
        ({"probe": 30}, "art: probe=30: must be a multiple of 16"),
        ({"values": 2.0}, r"art: values=2.0: must be in \[0, 1\]"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ART(**options)  # type: ignore[arg-type]
