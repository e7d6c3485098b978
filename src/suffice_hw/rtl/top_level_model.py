"""What the top level computes, in integers, bit for bit: the reference of `top_level`.

Source   Byeon et al., "Scrooge: Accelerating Attention Inference in LLMs via Early Termination
         Mechanism", Algorithm 1, a wave of tokens at a time as in section V-B. Choices that the
         paper leaves open are listed in `top_level`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from suffice_hw.rtl import fp16_model
from suffice_hw.rtl.lane_units import bits_of, exponent_of
from suffice_hw.rtl.scrooge_units import expected_total, stops
from suffice_hw.rtl.top_level import ONE
from suffice_hw.rtl.top_level_units import Size
from suffice_hw.rtl.unit import joined

Halves = npt.NDArray[np.float16]


@dataclass(frozen=True)
class Head:
    """A step of one head: query [d], keys and values [L, d] in the order in which they are read.

    The first `important` rows are those of the sink, the global and the local tokens.
    """

    query: Halves
    keys: Halves
    values: Halves
    important: int
    key_share: float
    value_share: float

    def parts(self, size: Size) -> int:
        """Return how many lanes compute a token together: a power of two."""
        needed: int = -(-len(self.query) // size.width)
        return 1 << (needed - 1).bit_length()

    def padded(self, size: Size, rows: Halves) -> list[list[int]]:
        """Return rows [n, d] as bits, with zeros up to the width of their lanes."""
        wide = np.zeros((len(rows), self.parts(size) * size.width), np.float16)
        wide[:, : rows.shape[1]] = rows
        found: list[list[int]] = wide.view(np.uint16).tolist()
        return found

    @property
    def scale(self) -> int:
        """1 / sqrt(d), FP16."""
        return bits_of(len(self.query) ** -0.5)

    def waves(self, size: Size) -> Iterator[range]:
        """Yield the tokens of each wave; none has both important and other tokens."""
        per_wave = size.lanes // self.parts(size)
        length = len(self.keys)
        for first, end in ((0, self.important), (self.important, length)):
            for start in range(first, end, per_wave):
                yield range(start, min(start + per_wave, end))


@dataclass
class Outcome:
    """Tokens whose keys were used, the kept ones by their place in the order, the output [d]."""

    known: int
    kept: list[int]
    output: Halves


def computed(size: Size, head: Head) -> Outcome:
    """Return what the top level computes for a head."""
    (query,), keys = head.padded(size, head.query[None]), head.padded(size, head.keys)
    limit = fp16_model.multiply(ONE, bits_of(head.value_share))
    first = [_logit(size, head, query, key) for key in keys[: head.important]]
    offset = max(first, key=fp16_model.key)
    weights: list[int] = []
    kept, known = [], 0
    for wave in head.waves(size):
        logits = [_logit(size, head, query, keys[row]) for row in wave]
        own = [exponent_of(fp16_model.subtract(x, offset)) for x in logits]
        weights += own
        empty = [0] * (size.lanes - len(own))
        known = fp16_model.add(known, joined(fp16_model.add, own + empty))
        important = wave.start < head.important
        kept += [
            row
            for row, weight in zip(wave, own, strict=True)
            if important or fp16_model.key(weight) >= fp16_model.key(limit)
        ]
        if not important and _enough(head, known, wave.stop):
            break
    scores = {row: fp16_model.divide(weights[row], known) for row in kept}
    return Outcome(len(weights), kept, _output(size, head, scores))


def _logit(size: Size, head: Head, query: list[int], key: list[int]) -> int:
    products = [fp16_model.multiply(a, b) for a, b in zip(key, query, strict=True)]
    return fp16_model.multiply(joined(fp16_model.add, products), head.scale)


def _enough(head: Head, known: int, count: int) -> int:
    others, unknown = (bits_of(n) for n in (count - 1, len(head.keys) - count))
    total = expected_total(known, ONE, others, unknown)
    return stops(known, total, bits_of(head.key_share))


def _output(size: Size, head: Head, scores: dict[int, int]) -> Halves:
    """Sum values: each lane its own, then the lanes."""
    parts, width = head.parts(size), size.width
    values = head.padded(size, head.values)
    sums = [[0] * width for _ in range(size.lanes)]
    for place, (row, score) in enumerate(scores.items()):
        for part in range(parts):
            lane = place * parts % size.lanes + part
            own = values[row][part * width :][:width]
            sums[lane] = [
                fp16_model.add(fp16_model.multiply(x, score), total)
                for x, total in zip(own, sums[lane], strict=True)
            ]
    while len(sums) > parts:  # the lower half of the lanes adds the upper half
        half = len(sums) // 2
        pairs = zip(sums[half:], sums[:half], strict=True)
        sums = [[fp16_model.add(a, b) for a, b in zip(*pair, strict=True)] for pair in pairs]
    found = [x for own in sums for x in own]
    return np.array(found, np.uint16).view(np.float16)[: len(head.query)]
