"""Storage of a model's matrices in its file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple


class StoredMatrix(NamedTuple):
    """A matrix of a file: canonical name, storage type, bytes with its scales, and entries.

    `coded`: its codes can stay as they are stored.
    """

    name: str
    type: str
    bytes: int
    entries: int
    coded: bool = False

    @property
    def kind(self) -> str:
        """Its name without the layer: q or down, embed, head."""
        return self.name.rpartition(".")[2]


def commonest(matrices: Iterable[StoredMatrix]) -> str:
    """Return the storage type with the most entries."""
    entries: Counter[str] = Counter()
    for matrix in matrices:
        entries[matrix.type] += matrix.entries
    return entries.most_common(1)[0][0]


def by_kind(matrices: Iterable[StoredMatrix]) -> list[tuple[list[str], str, float]]:
    """Return kinds of matrices with the same storage, their types, and their bits per weight.

    The types of a kind are joined by `/`, the type of most of its matrices first.
    """
    kinds: dict[str, list[StoredMatrix]] = {}
    for matrix in matrices:
        kinds.setdefault(matrix.kind, []).append(matrix)
    groups: dict[tuple[str, float], list[str]] = {}
    for kind, members in kinds.items():
        types = "/".join(name for name, _ in Counter(m.type for m in members).most_common())
        bits = 8 * sum(m.bytes for m in members) / sum(m.entries for m in members)
        groups.setdefault((types, round(bits, 2)), []).append(kind)
    return [(names, types, bits) for (types, bits), names in groups.items()]
