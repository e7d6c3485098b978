"""Read the first rows, the newest ones, and blocks whose mean key scores high: a rule to try.

suffice run --attention my_rule:MyRule:margin=2 "your prompt"     # in this folder
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from suffice.attention.python import Attended, PythonTechnique, attend_to, scores_of, seen

BLOCK = 16  # rows that share a mean key


@dataclass(frozen=True)
class MyRule(PythonTechnique):
    """Reads the first and newest rows, and blocks whose mean key scores high.

    Options
        margin  how far below the best block's a block's score may be, in nats
        sinks   first rows, which are always read
        recent  newest rows, which are always read
    """

    margin: float = 3.0
    sinks: int = 4
    recent: int = 64

    def __post_init__(self) -> None:
        if self.recent < 1:
            raise ValueError(f"recent={self.recent}: must be at least 1, the token itself")

    @classmethod
    def exact_limit(cls) -> MyRule:
        """With these options nothing is left out; suffice compares that with exact attention."""
        return cls(margin=math.inf)

    def reference(self, q, k, v, *, scale, visible=None, states=None, levels=None) -> Attended:
        """Attend with q [H, T, D] to k and v [G, S, D]: H / G query heads share keys and values."""
        groups, length, size = k.shape
        row = np.arange(length)
        starts = row[::BLOCK]
        rows_of_block = np.diff(np.append(starts, length))
        means = np.add.reduceat(k, starts, axis=1) / rows_of_block[:, None]

        scores = scores_of(q, means, scale)  # [H, T, blocks]
        heavy = scores >= scores.max(-1, keepdims=True) - self.margin
        heavy = heavy.reshape(groups, -1, *heavy.shape[1:]).any(1)  # what one head reads, all have

        always = (row < self.sinks) | (row >= length - self.recent)
        chosen = (heavy[:, :, row // BLOCK] | always) & seen(q, k, visible)
        means_read = np.full((q.shape[1], groups), 2 * size * len(starts))  # bytes, in bfloat16
        return attend_to(chosen.swapaxes(0, 1), q, k, v, scale=scale, sketch_bytes=means_read)
