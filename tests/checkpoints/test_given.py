"""Tests of given.py: vectors that no file has."""

from __future__ import annotations

from typing import Any

import numpy as np

from array_source import ArraySource
from suffice.checkpoints.given import with_given


class Whole(ArraySource):
    def load(self, name: str) -> np.ndarray:
        return self.weights[name]

    def in_codes(self, name: str) -> bool:
        return True

    def codes(self, name: str) -> Any:
        return self.weights[name]


def test_given_vectors_are_next_to_stored_weights() -> None:
    stored = Whole({"w": np.arange(6, dtype=np.float32).reshape(2, 3)})
    ones = np.ones(3, np.float32)
    assert with_given(stored, {}) is stored
    source = with_given(stored, {"1 (norm)": ones})
    assert source.shapes() == {"w": (2, 3), "1 (norm)": (3,)}
    assert source.stored("1 (norm)") == ("float32", 0)
    assert source.dtype("1 (norm)") == "float32" and not source.in_codes("1 (norm)")
    assert source.load("1 (norm)") is ones
    assert np.array_equal(source.load("w"), stored.weights["w"])
    assert source.in_codes("w") and source.codes("w") is stored.weights["w"]
    row = np.empty((1, 3), np.float32)
    source.load_rows("w", 1, row)
    assert row.tolist() == [[3, 4, 5]]
