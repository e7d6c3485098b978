"""A Hugging Face directory whose weights another program has quantized, under ordinary names.

A layer's `weight` stands for the tensors that are stored in its place. Layers that were left in
float are those that have such a weight.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from suffice.backends.cpu.rounding import pack_groups
from suffice.checkpoints.formats.hf_folder import FolderTensors, Safetensors
from suffice.checkpoints.formats.hf_parts import Parts, Reader, Stored
from suffice.checkpoints.source import UnreadCodes
from suffice.checkpoints.stored_file import Array
from suffice.quant.packed_float8 import StoredFloat8
from suffice.quant.stored_codes import StoredCodes

# Scales of activations and of cached keys and values, which are not rounded to them here.
_UNUSED = re.compile(r".*\.(input|output|[qkv])_(scale|zero_point|global_scale)")


class QuantizedFolder:
    """The weights of a directory: those in codes, by a `reader`, and those in float.

    Raises:
        InputError: An unsupported type, or tensors of a layer that do not fit each other.
    """

    def __init__(self, tensors: FolderTensors, reader: Reader) -> None:
        self._reader = reader
        layers: dict[str, dict[str, str]] = {}
        for name in tensors.types:
            layer, _, part = name.rpartition(".")
            if part in reader.parts:
                layers.setdefault(layer, {})[part] = name
        self._coded: dict[str, Parts] = {}
        floats = {name for name in tensors.types if not _UNUSED.fullmatch(name)}
        for layer, names in layers.items():
            parts = Parts(tensors, layer, names)
            if reader.is_coded(parts):
                self._coded[f"{layer}.weight"] = parts
                floats.difference_update(names.values())
        self._floats = Safetensors(tensors, sorted(floats))
        coded = {name: reader.shape(parts) for name, parts in self._coded.items()}
        self._shapes: dict[str, tuple[int, ...]] = self._floats.shapes() | coded
        self._last: tuple[str, Stored] | None = None  # blocks of rows come one after the other

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every weight, by its ordinary name."""
        return self._shapes

    def dtype(self, name: str) -> str:
        """Return the name of a weight's type; bfloat16 for codes."""
        return "bfloat16" if name in self._coded else self._floats.dtype(name)

    def stored(self, name: str) -> tuple[str, int]:
        """Return the storage of a weight, such as AWQ-4, and its bytes."""
        if name not in self._coded:
            return self._floats.stored(name)
        parts = self._coded[name]
        return self._reader.type(parts), parts.bytes

    @property
    def label(self) -> None:
        """None: a directory has no name for its storage as a whole."""

    def load(self, name: str) -> Array:
        """Read one weight; codes become float32.

        Raises:
            InputError: The file cannot be read any more, or an entry is not finite.
        """
        if name not in self._coded:
            return self._floats.load(name)
        values = np.empty(self._shapes[name], np.float32)
        self.load_rows(name, 0, values.reshape(-1, values.shape[-1]))
        return values

    def load_rows(self, name: str, first: int, out: NDArray[np.float32]) -> None:
        """Convert rows `first`, ... of a matrix into `out` [rows, K].

        Raises:
            InputError: The file cannot be read any more, or an entry is not finite.
        """
        if name not in self._coded:
            return self._floats.load_rows(name, first, out)
        if self._last is None or self._last[0] != name:
            self._last = name, self._reader.read(self._coded[name])
        self._last[1].rows(first, out)

    def in_codes(self, name: str) -> bool:
        """Return whether a weight is stored in codes or 8-bit floats."""
        return name in self._coded

    def codes(self, name: str) -> UnreadCodes | StoredFloat8:
        """Read a weight that is stored in codes or 8-bit floats.

        Raises:
            InputError: The file cannot be read any more, or an entry is not finite.
        """
        stored = self._reader.read(self._coded[name])
        if isinstance(stored, StoredFloat8):
            return stored
        fill, order = partial(_fill, stored), stored.order
        some = partial(_some, stored)
        return UnreadCodes(stored.layout, stored.levels, fill, order, some)

    def zero_biases(self) -> list[str]:
        """Return the names of biases of layers in codes that add nothing.

        Some programs give one to every layer that they quantize.
        """
        names = [f"{name.removesuffix('.weight')}.bias" for name in self._coded]
        stored = [name for name in names if name in self._shapes]
        return [name for name in stored if not self._floats.load(name).astype(np.float32).any()]


def _some(stored: StoredCodes, rows: slice) -> Callable[[NDArray[np.uint8]], None]:
    """Return what writes the panels of some rows."""
    zeros = None if stored.zeros is None else stored.zeros[rows]
    codes = np.ascontiguousarray(stored.codes[rows])
    return partial(_fill, replace(stored, codes=codes, scales=stored.scales[rows], zeros=zeros))


def _fill(stored: StoredCodes, panels: NDArray[np.uint8]) -> None:
    """Write the panels of a weight."""
    pack_groups(
        stored.codes, stored.layout, stored.scales, stored.zeros, allocate=lambda *_: panels
    )
