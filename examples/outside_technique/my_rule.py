"""A rule to try: suffice run --attention my_rule:MyRule:margin=2 "your prompt", in this folder."""

import math
from dataclasses import dataclass

import numpy as np

from suffice.attention.python import PythonTechnique, attend_to, scores_of, seen

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

    @classmethod
    def exact_limit(cls):
        return cls(margin=math.inf)  # compared with exact attention when a model is loaded

    def reference(self, q, k, v, *, scale, visible=None, states=None, levels=None):
        row = np.arange(k.shape[1])
        means = np.add.reduceat(k, row[::BLOCK], axis=1) / np.bincount(row // BLOCK)[:, None]
        scores = scores_of(q, means, scale)  # [H, T, blocks]
        near = scores >= scores.max(-1, keepdims=True) - self.margin
        heavy = near.reshape(len(k), -1, *near.shape[1:]).any(1)  # for any head that shares keys
        always = (row < self.sinks) | (row >= len(row) - self.recent)
        chosen = ((heavy[:, :, row // BLOCK] | always) & seen(q, k, visible)).swapaxes(0, 1)
        read = np.full(chosen.shape[:2], 2 * means[0].size)  # bytes of mean keys in bfloat16
        return attend_to(chosen, q, k, v, scale=scale, sketch_bytes=read)
