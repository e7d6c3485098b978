"""BLASST, also called skip softmax: leave out tiles of keys whose weights are all small.

    m~ = max of a tile's scores,  m = max(m, m~)     tile after tile, oldest first  (Algorithm 1)
    leave the tile out if e^(m~ - m) < lambda
    lambda = factor / keys that the token sees

What is left out has no exponentials, its values are not read, and its weights are not in the sum.

Source   Yuan et al., "BLASST: Dynamic Blocked Attention Sparsity via Softmax Thresholding",
         Algorithm 1; `factor` is `threshold_scale_factor` of the authors' kernels in TensorRT-LLM,
         for which they found 16.5 to leave out half of the tiles of Qwen3-30B-A3B in decode steps.
Differs  Heads that share keys leave a tile out together, once all of them may, as in the authors'
         kernels for decoding; those take 64 or 128 keys a tile. A text of fewer keys than `factor`,
         for which lambda would be above 1, leaves nothing out, as there. Tiles begin at multiples
         of `block` from the first row, and with `split` the running maximum begins again at
         multiples of it, on every device; the authors' kernels split the tiles of a head over as
         many programs as suit the device, with a maximum each. A window counts its own keys only.
         Prompts run exactly.
Exact    factor=0.
Cost     reads all keys, and the values of the tiles that stay. No guarantee: many light tiles weigh
         much together.
Native   csrc/attention/techniques/skip_softmax.inl
Example  skip_softmax:factor=30
Options
    factor      lambda times the number of keys; 0: nothing is left out
    block       keys of a tile: 16, 32 or 64
    split       rows that share a running maximum, a multiple of block; 0: all rows
    calibrated  take factor by layer and head from `suffice calibrate --budget`
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from suffice.attention.levels import Levels, of_group, weigh
from suffice.attention.rule import AttentionRule
from suffice.attention.technique import Technique
from suffice.attention.traversal import Attended
from suffice.cache import BLOCK
from suffice.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class SkipSoftmax(Technique):
    """Tiles of `block` keys, left out below lambda = `factor` over the number of keys.

    `split`: rows that share a running maximum; 0: all. `calibrated`: with a `factor` for each layer
    and key/value head, see `suffice.attention.by_head`.
    """

    ladders: ClassVar = {"factor": (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 100.0, 200.0)}

    factor: float = 16.0
    block: int = 64
    split: int = 0
    calibrated: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.factor < np.inf:
            raise InputError(
                f"skip_softmax: factor={self.factor}: must be a finite number of at least 0"
            )
        if self.block not in (16, 32, 64):
            raise InputError(f"skip_softmax: block={self.block}: must be 16, 32 or 64")
        if self.split < 0 or self.split % self.block:
            raise InputError(
                f"skip_softmax: split={self.split}: must be 0 or a multiple of block={self.block}"
            )

    @classmethod
    def exact_limit(cls) -> SkipSoftmax:
        """Return the setting that reads all rows."""
        return cls(factor=0)

    def reference(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        *,
        scale: float,
        visible: np.ndarray | None = None,
        states: list[Any] | None = None,
        levels: Sequence[Levels] | None = None,
    ) -> Attended:
        """Attend by Algorithm 1; see `Attention.reference` for the shapes."""
        rows = len(q) // len(k)
        shape = q.shape[1], *k.shape[:2]
        sees = np.ones((shape[0], shape[2]), bool) if visible is None else visible
        output, values = np.empty_like(q), np.zeros(shape, bool)
        for t, g in np.ndindex(shape[:2]):
            own = slice(g * rows, (g + 1) * rows)
            scores = np.where(sees[t], scale * q[own, t] @ k[g].T, -np.inf)
            kept, found = self._one(scores, v[g], sees[t], of_group(levels, g, rows))
            values[t, g], output[own, t] = kept, found
        return Attended(output, np.broadcast_to(sees[:, None], shape), values)

    def _one(
        self, scores: np.ndarray, v: np.ndarray, sees: np.ndarray, levels: Sequence[Levels] | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return a token's rows whose values are read [S], and its output [R, D]."""
        keys = int(sees.sum())
        least = math.log(self.factor / keys) if 0 < self.factor <= keys else -math.inf
        kept = np.zeros_like(sees)
        running = np.full(len(scores), -np.inf, scores.dtype)  # m
        peak, total = running.copy(), np.zeros_like(running)  # of the rows that are kept
        output = np.zeros((len(scores), v.shape[-1]), scores.dtype)
        for first in range(0, len(sees), self.block):
            tile = slice(first, first + self.block)
            if self.split and first % self.split == 0:
                running = np.full_like(running, -np.inf)
            if not sees[tile].any():
                continue
            largest = scores[:, tile].max(-1)
            running = np.maximum(running, largest)
            if (largest - running < least).all():
                continue
            grown = np.maximum(peak, largest)
            weights, less = weigh(scores[:, tile] - grown[:, None], levels), np.exp(peak - grown)
            peak, total = grown, less * total + weights.sum(-1)
            output = less[:, None] * output + weights @ v[tile]
            kept[tile] = sees[tile]
        return kept, output / total[:, None]

    def rule(self) -> AttentionRule:
        """Return what a backend does."""
        parameters = {
            "factor": self.factor,
            "split": self.split,
            "check_blocks": self.block // BLOCK,
        }
        return AttentionRule("skip_softmax", parameters, exact=self.factor == 0)
