"""Weights that no tensor of a checkpoint holds: those of norms without weights, say."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from suffice.checkpoints.source import Source, UnreadCodes
from suffice.checkpoints.stored_file import Array
from suffice.quant.packed_float8 import StoredFloat8

Vectors = Mapping[str, NDArray[np.float32]]


def with_given(source: Source, vectors: Vectors) -> Source:
    """Return a source that also has vectors, by their names; without any, the source itself."""
    return _Given(source, vectors) if vectors else source


class _Given:
    """A source's weights, and vectors that are in memory."""

    def __init__(self, source: Source, vectors: Vectors) -> None:
        self._source, self._vectors = source, vectors

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every stored weight and of every vector."""
        own = {name: vector.shape for name, vector in self._vectors.items()}
        return {**self._source.shapes(), **own}

    def dtype(self, name: str) -> str:
        """Return the smallest type that holds a weight."""
        return "float32" if name in self._vectors else self._source.dtype(name)

    def stored(self, name: str) -> tuple[str, int]:
        """Return the type in which a weight is stored, and its bytes."""
        return ("float32", 0) if name in self._vectors else self._source.stored(name)

    @property
    def label(self) -> str | None:
        """The file's name for its storage as a whole."""
        return self._source.label

    def load(self, name: str) -> Array:
        """Read one weight in a floating-point type.

        Raises:
            InputError: A damaged file, or an entry that is not finite.
        """
        return self._vectors[name] if name in self._vectors else self._source.load(name)

    def load_rows(self, name: str, first: int, out: NDArray[np.float32]) -> None:
        """Convert rows of a matrix, which no vector is.

        Raises:
            InputError: A damaged file, or an entry that is not finite.
        """
        self._source.load_rows(name, first, out)

    def in_codes(self, name: str) -> bool:
        """Return whether a matrix is stored in codes that become panels."""
        return name not in self._vectors and self._source.in_codes(name)

    def codes(self, name: str) -> UnreadCodes | StoredFloat8:
        """Return a matrix that is stored in codes.

        Raises:
            InputError: A damaged file, or an entry that is not finite.
        """
        return self._source.codes(name)
