"""Checkpoints: a decoder's configuration and its weights, one tensor at a time.

`suffice.models.open` opens them. Everything is checked before the first weight is read: every field
of the configuration, and names and shapes of weights, both missing and superfluous ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from suffice.errors import InputError
from suffice.models.config import DecoderConfig
from suffice.models.families import Family
from suffice.models.storage import StoredMatrix, commonest
from suffice.models.weights import check_finite, is_linear, is_norm, match, shapes

__all__ = ["Checkpoint", "Source", "assemble"]


class Source(Protocol):
    """A source of stored weights."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every stored weight, by its stored name."""
        ...

    def dtype(self, name: str) -> str:
        """Return the name of the floating-point type in which a stored weight is loaded."""
        ...

    def load(self, name: str) -> torch.Tensor:
        """Read one weight in a floating-point type."""
        ...

    def stored(self, name: str) -> tuple[str, int]:
        """Return the type in which a weight is stored, such as Q4_1, and its bytes."""
        ...

    @property
    def label(self) -> str | None:
        """The file's name for its storage as a whole, such as Q4_K_M; None if it has none."""
        ...


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint; `names` maps canonical names to stored ones.

    `norm_offset` is added to the weights of RMS norms. `spare_head` is a stored head that a tied
    model does not need; it must equal the embedding.
    """

    path: Path
    config: DecoderConfig
    names: Mapping[str, str]
    source: Source
    norm_offset: float = 0.0
    spare_head: str | None = None

    @property
    def dtype(self) -> str:
        """The type that holds every matrix without rounding: float32, float16 or bfloat16.

        Blocks of 8 bits and fewer count as bfloat16, which rounds less than they do.
        """
        matrices = (stored for name, stored in self.names.items() if is_linear(name))
        found = {self.source.dtype(stored) for stored in matrices}
        return found.pop() if len(found) == 1 else "float32"

    @property
    def matrices(self) -> list[StoredMatrix]:
        """Storage of each matrix."""
        shapes = self.source.shapes()
        found = []
        for name, stored in self.names.items():
            if is_linear(name):
                entries = math.prod(shapes[stored])
                found.append(StoredMatrix(name, *self.source.stored(stored), entries))
        return found

    @property
    def stored_as(self) -> str:
        """The storage of the matrices as one word, such as Q4_K_M or bfloat16."""
        return self.source.label or commonest(self.matrices)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Read the weights one by one: canonical names and tensors in the stored float type.

        Raises:
            InputError: A damaged file, an entry that is not finite, or an unused head that is not
                the embedding.
        """
        offset = self.norm_offset if self.config.norm == "rms" else 0.0
        for name, stored in self.names.items():
            tensor = self.source.load(stored)
            check_finite(self.path, stored, tensor)
            if name == "embed" and self.spare_head is not None:
                self._check_spare_head(tensor)
            if offset and is_norm(name):
                tensor = tensor.float() + offset
            yield name, tensor

    def _check_spare_head(self, embed: torch.Tensor) -> None:
        assert self.spare_head is not None
        if not torch.equal(self.source.load(self.spare_head), embed):
            raise InputError(
                f"{self.path}: the configuration ties the head to the embedding, "
                f"but the weight '{self.spare_head}' differs from it"
            )


def assemble(
    path: Path,
    family: Family,
    config: DecoderConfig,
    source: Source,
    weights: Mapping[str, str] | None = None,
    norm_offset: float | None = None,
) -> Checkpoint:
    """Match a source's weights with a configuration.

    `weights` and `norm_offset` replace those of the family.

    Raises:
        InputError: Weights are missing, left over or of another shape.
    """
    weights = family.weights if weights is None else weights
    stored = source.shapes()
    spare = weights["head"] + ".weight"
    spare_head = spare if config.tied and spare in stored else None
    rest = {name: shape for name, shape in stored.items() if name != spare_head}
    names = match(shapes(config), weights, rest, surplus=family.surplus, where=str(path))
    offset = family.norm_offset if norm_offset is None else norm_offset
    return Checkpoint(path, config, names, source, offset, spare_head)
