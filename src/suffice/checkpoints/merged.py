"""A checkpoint with an adapter added to its weights, before they are packed: W + scale B A.

The sum is computed in float32 and takes the type that the model is packed in. Codes of a file
cannot hold it, so a changed matrix is stored as floats, or as `quant` says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from suffice.checkpoints.adapter_settings import CONFIG, WEIGHTS
from suffice.checkpoints.adapters import read_matrices
from suffice.checkpoints.checkpoint import Checkpoint
from suffice.checkpoints.source import Source, UnreadCodes
from suffice.checkpoints.stored_file import Array
from suffice.quant.packed_float8 import StoredFloat8

Pair = tuple[np.ndarray, np.ndarray]  # A [r, K] and scale times B [N, r], float32


def merged(checkpoint: Checkpoint, folder: str, stamp: str) -> tuple[Checkpoint, str]:
    """Return a checkpoint with an adapter added to its weights, and the fingerprint of both.

    `stamp` is the checkpoint's.

    Raises:
        InputError: A folder that is no adapter of the model, or of a kind that is not supported.
    """
    found = read_matrices("--merge-adapter", folder, checkpoint.config)
    changes = {checkpoint.names[name]: pair for name, pair in found.items()}
    hashed = hashlib.sha256(stamp.encode())
    for name in (CONFIG, WEIGHTS):
        hashed.update((Path(folder).expanduser() / name).read_bytes())
    source = _Merged(checkpoint.source, changes)
    return replace(checkpoint, source=source), hashed.hexdigest()[: len(stamp)]


@dataclass(frozen=True)
class _Merged:
    """A source of weights that changes some of them."""

    source: Source
    changes: Mapping[str, Pair]

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self.source.shapes()

    def dtype(self, name: str) -> str:
        return self.source.dtype(name)

    def load(self, name: str) -> Array:
        found = self.source.load(name)
        if name not in self.changes:
            return found
        down, up = self.changes[name]
        whole: Array = found.astype(np.float32) + up @ down
        return whole

    def load_rows(self, name: str, first: int, out: NDArray[np.float32]) -> None:
        self.source.load_rows(name, first, out)
        if name in self.changes:
            down, up = self.changes[name]
            out += up[first : first + len(out)] @ down

    def in_codes(self, name: str) -> bool:
        return name not in self.changes and self.source.in_codes(name)

    def codes(self, name: str) -> UnreadCodes | StoredFloat8:
        return self.source.codes(name)

    def stored(self, name: str) -> tuple[str, int]:
        return self.source.stored(name)

    @property
    def label(self) -> str | None:
        return self.source.label
