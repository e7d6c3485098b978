"""What may differ from one layer of a decoder to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class LayerConfig:
    """Settings that differ from layer to layer.

    A query sees the last `window` rows, itself included (None: all of them), and is rotated by
    `DecoderConfig.ropes[rope]` (None: not at all). `dense`: its MLP has no experts, though others'
    have. `norms`, `grows`: it has the norms of queries and keys, and `query_growth`, if others do.
    `kv_heads`, `head_size`, `mlp_width`: if they are not `DecoderConfig`'s. `shares`: the layer
    whose keys and values it reads, instead of its own. `mutual`: tokens of a step see those after
    them in it, too. `keys_as_values`: what gives its keys gives
    its values, which are neither normalized by the keys' norm nor rotated.
    `mixer`: whether it begins with attention, with `DecoderConfig.state`, with both side by side,
    or with neither; `mlp`: whether it has an MLP. `placement`: of its norms, if it is not that of
    all.
    """

    window: int | None = None
    rope: int | None = 0
    dense: bool = False
    norms: bool = True
    grows: bool = True
    mixer: Literal["attention", "state", "both", "none"] = "attention"
    mlp: bool = True
    placement: str | None = None
    kv_heads: int | None = None
    head_size: int | None = None
    mlp_width: int | None = None
    shares: int | None = None
    keys_as_values: bool = False
    mutual: bool = False

    @property
    def attends(self) -> bool:
        """Whether it has attention."""
        return self.mixer in ("attention", "both")

    @property
    def keeps_state(self) -> bool:
        """Whether it has a block that keeps a state."""
        return self.mixer in ("state", "both")
