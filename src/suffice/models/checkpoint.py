"""Checkpoints: a decoder's configuration and its weights, one tensor at a time.

`suffice.models.open` opens them. Everything is checked before the first weight is read: every field
of the configuration, and names and shapes of weights, both missing and superfluous ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from suffice.errors import InputError, shown
from suffice.models.config import DecoderConfig
from suffice.models.families import Family
from suffice.models.slices import Templates, slice_source
from suffice.models.stacks import EVERY, members, stack_source
from suffice.models.storage import StoredMatrix, commonest
from suffice.models.stored_file import Array
from suffice.models.weights import is_linear, is_norm, match, shapes, views
from suffice.quant.code_layout import CodeLayout
from suffice.quant.packed_float8 import StoredFloat8

_BLOCK_VALUES = 1 << 19  # converted at a time: 2 MiB in float32, which the caches hold
_PANEL_ROWS = 16  # blocks of rows are whole panels of packed weights


@dataclass(frozen=True)
class UnreadCodes:
    """A matrix [N, K] in codes that is still in its file.

    `levels` uint8 [2^bits] are the levels plus 128. `fill` writes panels uint8
    [N/16, layout.panel_bytes(K)], and raises `InputError` for a damaged file, or scales that are
    not finite. `order` int32 [K] is there if column k of the codes belongs to input order[k].
    `some`, if it is there, returns what fills panels of some of the rows.
    """

    layout: CodeLayout
    levels: NDArray[np.uint8]
    fill: Callable[[NDArray[np.uint8]], None]
    order: NDArray[np.int32] | None = None
    some: Callable[[slice], Callable[[NDArray[np.uint8]], None]] | None = None


class Source(Protocol):
    """A source of stored weights."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every stored weight, by its stored name."""
        ...

    def dtype(self, name: str) -> str:
        """Return the smallest type that holds a stored weight: float32, float16 or bfloat16.

        Blocks of 8 bits and fewer count as bfloat16.

        Raises:
            InputError: It has a type that cannot be read.
        """
        ...

    def load(self, name: str) -> Array:
        """Read one weight in a floating-point type.

        Raises:
            InputError: A damaged file, or an entry that is not finite.
        """
        ...

    def load_rows(self, name: str, first: int, out: NDArray[np.float32]) -> None:
        """Convert rows `first`, `first` + 1, ... of a matrix into all rows of `out` [rows, K].

        Raises:
            InputError: A damaged file, or an entry that is not finite.
        """
        ...

    def in_codes(self, name: str) -> bool:
        """Return whether a matrix is stored in codes that become panels."""
        ...

    def codes(self, name: str) -> UnreadCodes | StoredFloat8:
        """Return a matrix that is stored in codes.

        Raises:
            InputError: A damaged file, or an entry that is not finite.
        """
        ...

    def stored(self, name: str) -> tuple[str, int]:
        """Return the type in which a weight is stored, such as Q4_1, and its bytes."""
        ...

    @property
    def label(self) -> str | None:
        """The file's name for its storage as a whole, such as Q4_K_M; None if it has none."""
        ...


@dataclass(frozen=True)
class Weight:
    """A stored weight that has not been read yet.

    `dtype` is the smallest type that holds its values; blocks of 8 bits and fewer count as
    bfloat16, though `load` returns them in float32. `offset` is added when it is read.
    """

    shape: tuple[int, ...]
    dtype: str
    source: Source
    stored: str  # its name in the source
    offset: float = 0.0

    def load(self) -> Array:
        """Read all of it.

        Raises:
            InputError: A damaged file, or an entry that is not finite.
        """
        found = self.source.load(self.stored)
        return found.astype(np.float32) + np.float32(self.offset) if self.offset else found

    def codes(self) -> UnreadCodes | StoredFloat8 | None:
        """Return the codes of a matrix that is stored in codes or 8-bit floats; else None.

        Raises:
            InputError: A damaged file, or an entry that is not finite.
        """
        return self.source.codes(self.stored) if self.source.in_codes(self.stored) else None

    def blocks(self) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Read a matrix [N, K] as float32, a block of rows at a time: its first row, and the block.

        Each block but the last has the same number of rows, a multiple of 16. All share their
        memory, so a block is valid until the next one is asked for.

        Raises:
            InputError: A damaged file, or an entry that is not finite.
        """
        rows, columns = self.shape
        step = max(_BLOCK_VALUES // columns // _PANEL_ROWS, 1) * _PANEL_ROWS
        memory = np.empty((min(step, rows), columns), np.float32)
        for first in range(0, rows, step):
            yield first, self.rows(first, memory[: rows - first])

    def rows(self, first: int, out: NDArray[np.float32]) -> NDArray[np.float32]:
        """Fill `out` [rows, K] with a matrix's rows from `first` on, and return it.

        Raises:
            InputError: A damaged file, or an entry that is not finite.
        """
        assert out.shape[1:] == self.shape[1:] and 0 <= first <= self.shape[0] - len(out)
        self.source.load_rows(self.stored, first, out)
        if self.offset:
            out += np.float32(self.offset)
        return out


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint; `names` maps canonical names to stored ones.

    `norm_offset` is added to the weights of RMS norms. `spare_head` is a stored head that a tied
    model does not need; it must equal the embedding. `metadata` are those of a GGUF file, which
    describe the tokenizer too; None in other formats.
    """

    path: Path
    config: DecoderConfig
    names: Mapping[str, str]
    source: Source
    norm_offset: float = 0.0
    spare_head: str | None = None
    metadata: Mapping[str, Any] | None = None

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
                type_, size = self.source.stored(stored)
                coded = self.source.in_codes(stored)
                found.append(StoredMatrix(name, type_, size, entries, coded))
        return found

    @property
    def stored_as(self) -> str:
        """The storage of the matrices as one word, such as Q4_K_M or bfloat16."""
        return self.source.label or commonest(self.matrices)

    def weights(self) -> Iterator[tuple[str, Weight]]:
        """Yield canonical names and weights, which are read when they are asked for.

        Raises:
            InputError: A damaged file, or an unused head that is not the embedding.
        """
        stored_shapes = self.source.shapes()
        offset = self.norm_offset if self.config.norm == "rms" else 0.0
        for name, stored in self.names.items():
            shift = offset if is_norm(name) else 0.0
            dtype = "float32" if shift else self.source.dtype(stored)
            weight = Weight(stored_shapes[stored], dtype, self.source, stored, shift)
            if name == "embed" and self.spare_head is not None:
                self._check_spare_head(weight, self.spare_head)
            yield name, weight

    def tensors(self) -> Iterator[tuple[str, Array]]:
        """Read the weights one by one: canonical names and arrays in the stored float type.

        Raises:
            InputError: A damaged file, an entry that is not finite, or an unused head that is not
                the embedding.
        """
        for name, weight in self.weights():
            yield name, weight.load()

    def _check_spare_head(self, embed: Weight, name: str) -> None:
        head = replace(embed, stored=name)
        pairs = zip(embed.blocks(), head.blocks(), strict=True)
        if not all(np.array_equal(ours, theirs) for (_, ours), (_, theirs) in pairs):
            raise InputError(
                f"{self.path}: the configuration ties the head to the embedding, "
                f"but the weight '{shown(name)}' differs from it"
            )


def assemble(
    path: Path,
    family: Family,
    config: DecoderConfig,
    source: Source,
    weights: Templates | None = None,
    norm_offset: float | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Match a source's weights with a configuration.

    `weights` and `norm_offset` replace those of the family. `metadata` are a GGUF file's.

    Raises:
        InputError: Weights are missing, left over, of another shape or of an unsupported type.
    """
    weights = family.weights if weights is None else weights
    stored = source.shapes()
    spare = f"{weights['head']}.weight"
    spare_head = spare if config.tied and spare in stored else None
    rest = {name: shape for name, shape in stored.items() if name != spare_head}
    wanted = shapes(config)
    experts = config.experts.count if config.experts else 0
    names = match(
        wanted,
        weights,
        rest,
        surplus=family.surplus,
        base=family.base,
        experts=experts,
        where=str(path),
    )
    stacks = {name: members(name, experts) for name in names.values() if EVERY in name}
    source = stack_source(source, stacks)
    for name in dict.fromkeys(names.values()):
        source.dtype(name)  # refuses a type that cannot be read
    cut = views(config, weights, names)
    called = {name: f"{view.stored} ({name})" for name, view in cut.items()}
    source = slice_source(source, {called[name]: view for name, view in cut.items()})
    names |= called
    offset = family.norm_offset if norm_offset is None else norm_offset
    return Checkpoint(path, config, names, source, offset, spare_head, metadata)
