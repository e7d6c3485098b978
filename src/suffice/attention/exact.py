"""Softmax attention over every visible key.

    o[h, t] = sum_s softmax_s(scale * q[h, t] . k[g, s]) v[g, s],  g = h // (H / G)

Source   Vaswani et al., 2017, Eq. 1; Ainslie et al., 2023 (query heads that share keys and values).
Exact    always.
Cost     2 D multiply-adds per visible token and query head.
Native   csrc/kernels/attention.inl
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from suffice.attention.technique import Technique

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suffice.attention.levels import Levels
    from suffice.attention.traversal import Attended


@dataclass(frozen=True)
class Exact(Technique):
    """Attention to all visible rows."""

    applies_to_prompts: ClassVar[bool] = True

    @classmethod
    def exact_limit(cls) -> Exact:
        """Return the only setting."""
        return cls()

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
        """Attend to all visible rows; see `Attention.reference` for the shapes.

        All values are read; with `levels`, only those of keys with a code above 0, as in `exaq`.
        """
        from suffice.attention.traversal import Attended

        group = q.shape[0] // k.shape[0]
        output = np.empty_like(q)
        shape = q.shape[1], k.shape[0], k.shape[1]
        sees = np.ones((shape[0], shape[2]), bool) if visible is None else visible
        keys = np.broadcast_to(sees[:, None], shape)
        values = keys if levels is None else np.zeros(shape, bool)
        for head, queries in enumerate(q):
            scores = np.where(sees, scale * queries @ k[head // group].T, -np.inf)
            x = scores - scores.max(-1, keepdims=True)
            weights = np.exp(x) if levels is None else levels[head].weigh(x)
            output[head] = weights @ v[head // group] / weights.sum(-1, keepdims=True)
            if levels is not None:
                values[:, head // group] |= levels[head].values_read(x)
        return Attended(output, keys, values)

    def rule(self) -> None:
        """Return nothing: everything is read."""
