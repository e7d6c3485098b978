"""The tensors of GGUF files, in Hugging Face's order of rows."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from suffice.checkpoints.formats.gguf_file import GGUF, unpaired
from suffice.checkpoints.formats.gguf_types import CODES, file_type
from suffice.checkpoints.matching import check_finite, not_finite
from suffice.checkpoints.source import UnreadCodes
from suffice.checkpoints.stored_file import FLOATS, Array
from suffice.decoder.config import DecoderConfig
from suffice.errors import InputError, shown
from suffice.native import PANEL

ROPE_DIVISORS = "rope_freqs.weight"
ROPE_LISTS = {
    "short_factor": "rope_factors_short.weight",
    "long_factor": "rope_factors_long.weight",
}
OF_ROPE = (ROPE_DIVISORS, *ROPE_LISTS.values())
_FUSED = "attn_qkv"
_ROW = "ffn_gate_inp_shexp.weight"
_FILTERS = (".ssm_conv1d.weight", ".shortconv.conv.weight")
_VECTORS = (".ssm_a.weight", ".ssm_d.weight", ".ssm_norm.weight")


class Tensors:
    """The tensors of a file under their own names, in Hugging Face's order of rows.

    Queries, keys and values in that order cannot be parts of one tensor, and have names of their
    own. Those without `.weight` or `.bias` get the former. `interleaved`: rows that a rotation
    mixes are next to each other; `whole`: so are all rows of a head, as if all were rotated.
    """

    def __init__(
        self, file: GGUF, config: DecoderConfig, *, interleaved: bool, whole: bool = False
    ) -> None:
        self._file, self._size = file, config.head_size
        bare = (name for name in file.tensors if not name.endswith((".weight", ".bias")))
        self._bare = {f"{name}.weight": name for name in bare}
        self._parts = _parts(file, config) if interleaved else {}
        self._heads = {"attn_q": config.heads, "attn_k": config.kv_heads} if interleaved else {}
        self._rotated = config.head_size
        if interleaved and not whole:
            self._rotated = config.ropes[0].rotated(config.head_size)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every stored weight except those of rotations."""
        tensors = self._file.tensors
        left_out = {*OF_ROPE, *(whole for whole, _, _ in self._parts.values())}
        named = {stored: name for name, stored in self._bare.items()}
        own = {
            named.get(name, name): info.shape
            for name, info in tensors.items()
            if name not in left_out
        }
        for name, (whole, _, rows) in self._parts.items():
            own[name] = (rows, *tensors[whole].shape[1:])
        return {name: _shape(name, shape) for name, shape in own.items()}

    def _place(self, name: str) -> tuple[str, int, int]:
        """Return the tensor of a weight, the weight's first row there, and its rows."""
        stored = self._bare.get(name, name)
        return self._parts.get(name) or (stored, 0, self._file.tensors[stored].shape[0])

    def dtype(self, name: str) -> str:
        """Return the name of a weight's type; bfloat16 for blocks of integers."""
        stored = self._file.tensors[self._place(name)[0]].type
        return str(FLOATS[stored]) if stored in FLOATS else "bfloat16"

    def stored(self, name: str) -> tuple[str, int]:
        """Return the ggml type of a weight, and its bytes."""
        whole, _, rows = self._place(name)
        info = self._file.tensors[whole]
        return info.type, info.size * rows // info.shape[0]

    @property
    def label(self) -> str | None:
        """The file's name for its storage, such as Q4_K_M; None if missing or wrong."""
        return file_type(self._file.metadata.get("general.file_type"))

    def load(self, name: str) -> Array:
        """Read one weight, decoded to float32 if it is stored in blocks."""
        whole, first, rows = self._place(name)
        info, (paired, rotated) = self._file.tensors[whole], self._paired(name)
        part = name in self._parts
        if len(info.shape) == 2 and (paired or part or info.type not in FLOATS):
            values = np.empty((rows, info.shape[1]), np.float32)
            self.load_rows(name, 0, values)
            return values.reshape(_shape(name, values.shape))
        found = self._file.load(whole)[first : first + rows]
        check_finite(self._file.path, name, found)
        if paired:  # a bias
            found = unpaired(found, paired, rotated)
        return found.reshape(_shape(name, (rows, *info.shape[1:])))

    def load_rows(self, name: str, first: int, out: NDArray[np.float32]) -> None:
        """Decode rows `first`, ... of a matrix into `out` [rows, K]."""
        whole, before, _ = self._place(name)
        if not self._file.read_rows(whole, before + first, out, *self._paired(name)):
            raise not_finite(self._file.path, name)

    def in_codes(self, name: str) -> bool:
        """Return whether a matrix is stored in codes."""
        return self._file.tensors[self._place(name)[0]].type in CODES

    def codes(self, name: str) -> UnreadCodes:
        """Return a matrix that is stored in codes."""
        whole, first, _ = self._place(name)
        info = self._file.tensors[whole]
        layout, levels = CODES[info.type]

        def fill(out: NDArray[np.uint8]) -> None:
            panels = out
            if name in self._parts:
                panels = np.empty((info.shape[0] // PANEL, out.shape[1]), np.uint8)
            if not self._file.read_panels(whole, panels, *self._paired(name)):
                raise not_finite(self._file.path, name)
            if panels is not out:
                out[...] = panels[first // PANEL :][: len(out)]

        return UnreadCodes(layout, levels, fill)

    def _paired(self, name: str) -> tuple[int, int]:
        """Return the rows of a head, and how many of them llama.cpp stores in pairs; 0: none.

        The two rows that a rotation mixes are next to each other there.
        """
        heads = next((n for part, n in self._heads.items() if f".{part}." in name), 0)
        return (self._size, self._rotated) if heads else (0, 0)


def _parts(file: GGUF, config: DecoderConfig) -> dict[str, tuple[str, int, int]]:
    """Return queries, keys and values that are one tensor: its name, their first row, their rows.

    Raises:
        InputError: The tensor has other rows than they.
    """
    heads = {"attn_q": config.heads, "attn_k": config.kv_heads, "attn_v": config.kv_heads}
    found = {}
    for whole in [name for name in file.tensors if f".{_FUSED}." in name]:
        first = 0
        for part, count in heads.items():
            rows = count * config.head_size
            found[whole.replace(_FUSED, part)] = whole, first, rows
            first += rows
        if (rows := file.tensors[whole].shape[0]) != first:
            raise InputError(
                f"{file.path}: weight '{shown(whole)}' has {rows} rows, "
                f"but the metadata say {first}"
            )
    return found


def _shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that a tensor has in Hugging Face's files.

    There a vector may be a matrix of one row, or a matrix a vector; filters have a dimension more.
    """
    if name.endswith(_FILTERS) and len(shape) == 2:
        return shape[0], 1, shape[1]
    if name.endswith(_VECTORS):
        return (math.prod(shape),)
    return (1, *shape) if len(shape) == 1 and name.endswith(_ROW) else shape
