"""Tests of support/pairs.py, by which other tests leave combinations out."""

from __future__ import annotations

import itertools

from pairs import pairwise


def test_every_pair_of_values_is_met() -> None:
    parameters = [("a", "b", "c"), (1, 2), (None, (3, 4)), range(5)]
    found = pairwise(*parameters)
    assert len(found) < 60 // 2 and found == pairwise(*parameters)
    for first, second in itertools.combinations(range(len(parameters)), 2):
        met = {(each[first], each[second]) for each in found}
        assert met == set(itertools.product(parameters[first], parameters[second]))
