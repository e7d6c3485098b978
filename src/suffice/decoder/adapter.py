"""An adapter as the decoder runs it; `checkpoints.adapters` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from suffice.quant import PackedLinear


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter's packed matrices, A and scale times B, by canonical name (`layers.0.q`)."""

    name: str
    matrices: Mapping[str, tuple[PackedLinear, PackedLinear]]

    @property
    def bytes(self) -> int:
        """Bytes of all its matrices."""
        return sum(each.bytes for both in self.matrices.values() for each in both)
