"""A decoder's configuration and packed weights; every model family is a configuration."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from suffice.backends.cpu.linear import unpack
from suffice.backends.cpu.packing import Stored, pack, pack_stored
from suffice.decoder.blocks import CURVE, ROUTERS
from suffice.decoder.config import DecoderConfig
from suffice.decoder.names import is_linear
from suffice.decoder.pages import HugePages
from suffice.decoder.rope import rope_table
from suffice.quant import PackedLinear, Quant
from suffice.quant.none import NoQuant
from suffice.quant.panels import DTYPES, Allocate

if TYPE_CHECKING:
    from typing_extensions import Self

Watch = Callable[[int, np.ndarray], None]  # a layer, and its queries [H, T, D]


class Unread(Stored, Protocol):
    """A weight of a file that has not been read."""

    @property
    def dtype(self) -> str:
        """The smallest type that holds it; codes of 8 bits and fewer count as bfloat16."""
        ...


class Opened(Protocol):
    """A model whose weights have not been read."""

    @property
    def config(self) -> DecoderConfig:
        """The decoder's configuration."""
        ...

    def weights(self) -> Iterable[tuple[str, Unread]]:
        """Return canonical names and weights; a bias comes before its matrix."""
        ...


class DecoderWeights:
    """The weights of a decoder, by canonical name (see `decoder.names`), and its configuration.

    Matrices are packed, with their bias; the rest is float32.
    """

    def __init__(
        self, config: DecoderConfig, weights: Mapping[str, PackedLinear | np.ndarray]
    ) -> None:
        self.config = config
        self.weights = dict(weights)

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Opened,
        quant: Quant,
        report: Callable[[float], None] = lambda share: None,
        allocate: Allocate | None = None,
    ) -> Self:
        """Pack a checkpoint's weights with `quant` into huge pages, one tensor at a time.

        `allocate` makes their arrays in other memory. `report` gets the share that has been read,
        after each tensor.

        Raises:
            InputError: A damaged checkpoint.
        """
        weights = _reported(list(checkpoint.weights()), report)
        return cls(checkpoint.config, pack_weights(weights, quant, allocate or HugePages()))

    def requantized(self, quant: Quant, allocate: Allocate | None = None) -> DecoderWeights:
        """Return these weights with the layers' matrices stored by `quant`; others are shared.

        `allocate` makes the new arrays; the default is in huge pages.
        Returns these weights themselves if that would save no memory in the first layer.
        """
        first = self._packed_by(quant, "layers.0.", np.empty)
        if sum(stored.bytes - self.matrix(name).bytes for name, stored in first.items()) >= 0:
            return self
        packed = self._packed_by(quant, "layers.", allocate or HugePages())
        return DecoderWeights(self.config, self.weights | packed)

    def _packed_by(self, quant: Quant, prefix: str, allocate: Allocate) -> dict[str, PackedLinear]:
        """Return the matrices of names with a prefix as stored by `quant`."""
        return {
            name: pack(_method(quant, name), unpack(weight), weight.bias, allocate)
            for name, weight in self.weights.items()
            if isinstance(weight, PackedLinear) and name.startswith(prefix) and not _routes(name)
        }

    def matrix(self, name: str) -> PackedLinear:
        """Return a packed matrix."""
        weight = self.weights[name]
        assert isinstance(weight, PackedLinear), name
        return weight

    @property
    def all_packed(self) -> list[PackedLinear]:
        """All packed matrices."""
        return [each for each in self.weights.values() if isinstance(each, PackedLinear)]

    @property
    def runs_as(self) -> str:
        """The types of the packed matrices, such as bfloat16, or codes and float32."""
        return " and ".join(sorted({matrix.dtype for matrix in self.all_packed}))

    @property
    def bits_per_weight(self) -> float:
        """Bits of an entry of the packed matrices, with their scales."""
        entries = sum(matrix.rows * matrix.columns for matrix in self.all_packed)
        return 8 * sum(matrix.data.nbytes for matrix in self.all_packed) / entries

    @property
    def bytes(self) -> int:
        """Bytes of all weights."""
        return sum(
            weight.bytes if isinstance(weight, PackedLinear) else weight.nbytes
            for weight in self.weights.values()
        )

    @property
    def embed_scale(self) -> float:
        """Factor of embedding rows; most models round it to the type that they are stored in."""
        return self._rounded_scale("embed", self.config.embed_scale)

    @property
    def layer_embed_scale(self) -> float:
        """Factor of the rows of `layer_embed`, likewise."""
        return self._rounded_scale("layer_embed", self.config.layer_embed_size**0.5)

    def _rounded_scale(self, name: str, factor: float) -> float:
        """Return a factor of a matrix's rows; codes count as bfloat16, as in `Checkpoint.dtype`."""
        scale = np.float32(factor)
        coarse = self.matrix(name).dtype in ("bfloat16", "codes")
        rounded = coarse and self.config.rounds_embed_scale
        return float(scale.astype(DTYPES["bfloat16"]) if rounded else scale)

    def layer_scale(self, layer: int) -> float:
        """Return what the stream is multiplied by after a layer."""
        if not self.config.layer_scales:
            return 1.0
        scale = self.weights[f"layers.{layer}.scale"]
        assert isinstance(scale, np.ndarray)
        return float(scale[0])

    def query_scales(self, rows: int) -> np.ndarray:
        """Return what `config.query_growth` multiplies queries by: float32 [rows], by position."""
        assert self.config.query_growth is not None, "the model has such scales"
        growth, length, first = self.config.query_growth
        return (1 + growth * np.log1p((np.arange(rows) + first) // length)).astype(np.float32)

    def curve(self, layer: int) -> np.ndarray:
        """Return a layer's parameters of xielu: float32 [4], a, b, beta and eps.

        xielu(x) = a x^2 + beta x above 0, and b (e^min(x, eps) - 1 - x) + beta x below. Stored are
        a' of a = softplus(a'), b' of b = beta + softplus(b'), beta and eps.

        Source: Huang and Schlag 2024, Deriving Activation Functions Using Integration.
        """
        stored = np.array([self.weights[f"layers.{layer}.{name}"] for name in CURVE])
        above, below, beta, eps = stored.astype(np.float64)[:, 0]
        curve = [np.logaddexp(0, above), beta + np.logaddexp(0, below), beta, eps]
        return np.array(curve, np.float32)

    def rope_tables(self, rows: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return cosines and sines [rows, rotated pairs] float32 for each of `config.ropes`."""
        config = self.config
        return [
            rope_table(rope, config.rotary_size(index), config.trained_positions, rows)
            for index, rope in enumerate(config.ropes)
        ]


def pack_weights(
    weights: Iterable[tuple[str, Unread]], quant: Quant, allocate: Allocate = np.empty
) -> dict[str, PackedLinear | np.ndarray]:
    """Read and pack matrices, each with the bias that comes before it; keep the rest as float32."""
    packed: dict[str, PackedLinear | np.ndarray] = {}
    biases: dict[str, np.ndarray] = {}
    for name, weight in weights:
        plain = name.removesuffix(".bias")
        if not is_linear(plain):
            packed[name] = kept = allocate(weight.shape, np.dtype(np.float32))
            kept[...] = weight.load()
        elif plain != name:
            biases[plain] = weight.load()
        else:
            bias = biases.pop(plain, None)
            method = _of_router(quant, weight.dtype) if _routes(name) else _method(quant, name)
            packed[name] = pack_stored(method, weight, bias, allocate)
    assert not biases, "a bias came after its matrix"
    return packed


def _reported(
    weights: Sequence[tuple[str, Unread]], report: Callable[[float], None]
) -> Iterator[tuple[str, Unread]]:
    """Yield weights, and report after each the share of all entries that it completes."""
    done, total = 0, sum(math.prod(weight.shape) for _, weight in weights)
    for name, weight in weights:
        yield name, weight
        done += math.prod(weight.shape)
        report(done / total)


def _method(quant: Quant, name: str) -> Quant:
    return quant.for_matrix(name.rpartition(".")[2])


def _routes(name: str) -> bool:
    return name.rpartition(".")[2] in ROUTERS


def _of_router(quant: Quant, stored: str) -> NoQuant:
    """Return how a router is kept: unrounded, because rounding would choose other experts."""
    exact = quant.dtype == "float32" or stored != "bfloat16"
    return NoQuant("float32" if exact else "bfloat16")
