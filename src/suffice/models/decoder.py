"""A decoder's configuration and packed weights; every model family is a configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from suffice.backends.cpu.linear import unpack
from suffice.backends.cpu.packing import pack
from suffice.models.bridge import as_array  # bridge
from suffice.models.config import DecoderConfig
from suffice.models.pages import HugePages
from suffice.models.rope import rope_table
from suffice.models.weights import is_linear
from suffice.quant import PackedLinear, Quant
from suffice.quant.panels import Allocate

if TYPE_CHECKING:
    from suffice.models.checkpoint import Checkpoint

__all__ = ["DecoderWeights", "Watch", "pack_weights"]

Watch = Callable[[int, Any], None]  # bridge: the queries [H, T, D] become arrays


class DecoderWeights:
    """The weights of a decoder, by canonical name (see `models.weights`), and its configuration.

    Matrices are packed, with their bias; the rest is float32.
    """

    def __init__(
        self, config: DecoderConfig, weights: Mapping[str, PackedLinear | np.ndarray]
    ) -> None:
        self.config = config
        self.weights = dict(weights)

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, quant: Quant) -> DecoderWeights:
        """Pack a checkpoint's weights with `quant` into huge pages, one tensor at a time.

        Raises:
            InputError: A damaged checkpoint.
        """
        return cls(checkpoint.config, pack_weights(checkpoint.tensors(), quant, HugePages()))

    def requantized(self, quant: Quant) -> DecoderWeights:
        """Return these weights with the layers' matrices stored by `quant`; others are shared.

        Returns these weights themselves if that would save no memory in the first layer.
        """
        first = self._packed_by(quant, "layers.0.", np.empty)
        if sum(stored.bytes - self.matrix(name).bytes for name, stored in first.items()) >= 0:
            return self
        packed = self._packed_by(quant, "layers.", HugePages())
        return DecoderWeights(self.config, self.weights | packed)

    def _packed_by(self, quant: Quant, prefix: str, allocate: Allocate) -> dict[str, PackedLinear]:
        """Return the matrices of names with a prefix as stored by `quant`."""
        return {
            name: pack(_method(quant, name), unpack(weight), weight.bias, allocate)
            for name, weight in self.weights.items()
            if isinstance(weight, PackedLinear) and name.startswith(prefix)
        }

    def matrix(self, name: str) -> PackedLinear:
        """Return a packed matrix."""
        weight = self.weights[name]
        assert isinstance(weight, PackedLinear), name
        return weight

    @property
    def bytes(self) -> int:
        """Bytes of all weights."""
        return sum(
            weight.bytes if isinstance(weight, PackedLinear) else weight.nbytes
            for weight in self.weights.values()
        )

    @property
    def embed_scale(self) -> float:
        """Factor of embedding rows, rounded to the type that they are stored in."""
        stored = self.matrix("embed")
        scale = np.float32(self.config.embed_scale)
        return float(scale.astype(stored.data.dtype) if stored.dtype == "bfloat16" else scale)

    def rope_tables(self, rows: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return cosines and sines [rows, D/2] float32 for each of `config.ropes`."""
        config = self.config
        tables = (
            rope_table(rope, config.head_size, config.trained_positions, rows)
            for rope in config.ropes
        )
        return [(np.asarray(cos), np.asarray(sin)) for cos, sin in tables]  # bridge


def pack_weights(
    tensors: Iterable[tuple[str, Any]], quant: Quant, allocate: Allocate = np.empty
) -> dict[str, PackedLinear | np.ndarray]:
    """Pack matrices as they arrive, each with the bias that came before it; keep the rest.

    Tensors are float32, float16 or bfloat16. What is returned shares no memory with them.
    """
    weights: dict[str, PackedLinear | np.ndarray] = {}
    biases: dict[str, np.ndarray] = {}
    for name, each in tensors:
        tensor = as_array(each)  # bridge
        plain = name.removesuffix(".bias")
        if not is_linear(plain):
            weights[name] = np.array(tensor, np.float32)
        elif plain != name:
            biases[plain] = tensor
        else:
            weights[name] = pack(_method(quant, name), tensor, biases.pop(plain, None), allocate)
    assert not biases, "a bias came after its matrix"
    return weights


def _method(quant: Quant, name: str) -> Quant:
    return quant.for_matrix(name.rpartition(".")[2])
