"""Storage and multiplication of weights and activations.

A technique turns a dense weight [N, K] into a `PackedLinear`, which a backend multiplies.
`PackedLinear.unpack` returns the dense weight that the packed one represents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from suffice.registry import Table

if TYPE_CHECKING:
    import numpy as np

    from suffice.quant.panels import Allocate, PackedLinear

__all__ = ["QUANTS", "PackedLinear", "Quant"]


class Quant(Protocol):
    """A way to store weights."""

    @property
    def dtype(self) -> str | None:
        """The float type that weights keep; None: they are rounded to codes."""
        ...

    @property
    def calibrates(self) -> bool:
        """Whether a calibration on a text improves it; it is then a `Calibrated` one."""
        ...

    @property
    def needs_text(self) -> bool:
        """Whether it cannot store weights without a calibration on a text."""
        ...

    @property
    def hadamard(self) -> bool:
        """Whether inputs are rotated; their number must then be divisible by a power of two."""
        ...

    def pack(
        self, weight: np.ndarray, bias: np.ndarray | None = None, allocate: Allocate = ...
    ) -> PackedLinear:
        """Store a dense float weight [N, K] and an optional bias [N] in what `allocate` returns."""
        ...

    @property
    def coded_bits(self) -> int | None:
        """Bits of the codes that `pack` chooses without a calibration; None: it chooses none."""
        ...

    def for_matrix(self, matrix: str) -> Quant:
        """Return the method for a matrix of a model, such as `q`, `down`, `embed` or `head`."""
        ...


QUANTS = Table(
    "quant",
    {
        "file": "suffice.quant.file:AsStored",
        "none": "suffice.quant.none:NoQuant",
        "int8": "suffice.quant.int8:Int8",
        "4bit": "suffice.quant.four_bit:FourBit",
        "kmeans": "suffice.quant.kmeans:KMeans",
        "rtn": "suffice.quant.rtn:RTN",
        "kllm": "suffice.quant.kmeans:KLLM",
    },
    native=frozenset({"file", "none", "int8", "4bit", "kmeans", "rtn", "kllm"}),
)


def __getattr__(name: str) -> Any:
    # Listing the techniques (`suffice info`) must not load NumPy.
    if name == "PackedLinear":
        from suffice.quant.panels import PackedLinear

        return PackedLinear
    raise AttributeError(f"module 'suffice.quant' has no attribute '{name}'")
