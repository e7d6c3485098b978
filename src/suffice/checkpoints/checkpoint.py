"""Checkpoints: a decoder's configuration and its weights, one tensor at a time.

`checkpoints.open` opens them. Everything is checked before the first weight is read: every field of
the configuration, and names and shapes of weights, both missing and superfluous ones.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from suffice.checkpoints.given import with_given
from suffice.checkpoints.matching import after, filled, match, paired_views, views
from suffice.checkpoints.predictors import module_of
from suffice.checkpoints.slices import slice_source
from suffice.checkpoints.source import Source, Weight
from suffice.checkpoints.stacks import EVERY, members, stack_source
from suffice.checkpoints.storage import StoredMatrix, commonest
from suffice.checkpoints.stored_file import Array
from suffice.decoder.config import DecoderConfig
from suffice.decoder.families import Change, Family
from suffice.decoder.name_maps import Templates
from suffice.decoder.names import is_linear, is_norm, shapes
from suffice.errors import InputError, SufficeWarning, shown


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint; `names` maps canonical names to stored ones.

    `norm_offset` is added to the weights of norms, and `changes` make vectors, by the last part of
    their names, from what is stored. `spare_head` is a stored head that a tied
    model does not need; it must equal the embedding. `metadata` are those of a GGUF file, which
    describe the tokenizer too; None in other formats. `headless`: the files have no head, and the
    embedding stands for it, which only gives embeddings a sense. `predictor` opens a module of the
    files that predicts further tokens, if there is one.
    """

    path: Path
    config: DecoderConfig
    names: Mapping[str, str]
    source: Source
    norm_offset: float = 0.0
    changes: Mapping[str, Change] = field(default_factory=dict)
    spare_head: str | None = None
    metadata: Mapping[str, Any] | None = None
    headless: bool = False
    predictor: Callable[[], Checkpoint] | None = None

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
        for name, stored in self.names.items():
            shift = self.norm_offset if is_norm(name) else 0.0
            change = self.changes.get(name.rpartition(".")[2])
            dtype = "float32" if shift or change else self.source.dtype(stored)
            weight = Weight(stored_shapes[stored], dtype, self.source, stored, shift, change)
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
    changes: Mapping[str, Change] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Match a source's weights with a configuration.

    `weights`, `norm_offset` and `changes` replace those of the family. `metadata` are those of a
    GGUF file.

    Raises:
        InputError: Weights are missing, left over, of another shape or of an unsupported type.
    """
    paired = config.paired and weights is None
    family = replace(
        family,
        weights=family.weights if weights is None else weights,
        norm_offset=family.norm_offset if norm_offset is None else norm_offset,
        changes=family.changes if changes is None else changes,
    )
    found = replace(_matched(path, family, config, source, paired=paired), metadata=metadata)
    module = module_of(family, config, source.shapes()) if config.drafts is None else None
    if module is None:
        return found
    return replace(found, predictor=lambda: _matched(path, *module, source, paired=paired))


def _matched(
    path: Path, family: Family, config: DecoderConfig, source: Source, *, paired: bool
) -> Checkpoint:
    """Match a source's weights with a configuration; `paired`: see `paired_views`.

    Raises:
        InputError: As `assemble`.
    """
    weights, stored = family.weights, source.shapes()
    spare = f"{weights['head']}.weight"
    bare = not any(name.startswith(family.base) for name in stored)
    headless = bare and not config.tied and spare not in stored
    if headless:
        config = replace(config, tied=True)
    spare_head = spare if config.tied and spare in stored else None
    rest = {name: shape for name, shape in stored.items() if name != spare_head}
    if family.predicts:
        rest = _without_drafts(path, rest, len(config.layers))
    wanted = shapes(config)
    constants = filled(wanted, weights)
    experts = config.experts.count if config.experts else 0
    names = match(
        {name: shape for name, shape in wanted.items() if name not in constants},
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
    if paired:
        cut |= paired_views(config, names)
    called = {name: f"{view.stored} ({name})" for name, view in cut.items()}
    source = slice_source(source, {called[name]: view for name, view in cut.items()})
    vectors = {
        f"{value:g} ({name})": np.full(wanted[name], value, np.float32)
        for name, value in constants.items()
    }
    source = with_given(source, vectors)
    names |= called | dict(zip(constants, vectors, strict=True))
    own = family.norm_offset, family.changes
    return Checkpoint(path, config, names, source, *own, spare_head, headless=headless)


def _without_drafts(
    path: Path, stored: Mapping[str, tuple[int, ...]], layers: int
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all weights but those of layers after the first `layers`; warn of them.

    These predict tokens further ahead, to be checked as drafts.
    """
    kept = {name: shape for name, shape in stored.items() if not after(name, layers)}
    if len(kept) < len(stored):
        warnings.warn(
            f"{path}: the weights of layers {layers} and later, which only draft, are left out",
            SufficeWarning,
            stacklevel=3,
        )
    return kept
