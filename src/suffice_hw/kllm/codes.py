"""Codes of a real model: how many bins they fill, as `benchmarks.hw.codes` counted them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from suffice.errors import InputError
from suffice_hw import settings
from suffice_hw.kllm import cycles
from suffice_hw.kllm.design import Design, Shape
from suffice_hw.settings import Settings, limited

CODES = Path(__file__).parent / "counted"
Counts = Sequence[Sequence[int]]  # of pairs: a value, and how often it was found
SEED = 5
KINDS = ("q", "k", "v", "o", "gate", "up", "down")


@dataclass(frozen=True)
class RealCodes(Settings):
    """Counts of a model in codes of `bits` bits, for `lanes` lanes.

    `matrices`: for each kind of matrix filled bins by column, and of the slowest lane by wave;
    `score_waves` the same of a query and keys, `scores_counted` the share of scores that are not 0
    at up to `score_length` tokens; `thresholds`: outliers of a token by thresholds of a text.
    """

    model: str
    matrices: Sequence[Mapping[str, Any]]
    thresholds: Sequence[Mapping[str, Any]]
    score_waves: Counts
    layers: int = limited(1, 1024)
    lanes: int = limited(1, 1024)
    bits: int = limited(1, 8)
    width: int = limited(1, 65536)
    hidden: int = limited(1, 262144)
    heads: int = limited(1, 1024)
    kv_heads: int = limited(1, 1024)
    vocabulary: int = limited(1, 2**20)
    score_length: int = limited(1, 2**20)
    scores_counted: float = limited(0, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [each.get("name") for each in self.matrices]
        if names != list(KINDS):
            raise InputError(f"RealCodes: matrices are {names}: must be {', '.join(KINDS)}")

    @classmethod
    def load(cls, name: str = "smollm2-135m") -> RealCodes:
        """Return the counts of a built-in model, or of a TOML file.

        Raises:
            InputError: The name is unknown, or the file has an invalid key or value.
        """
        return settings.read(cls, settings.named(CODES, "model's codes", name))

    @property
    def shape(self) -> Shape:
        """The model's sizes."""
        sizes = (self.width, self.hidden, self.heads, self.kv_heads, self.vocabulary)
        return Shape(self.model, self.layers, *sizes)


def mean(counts: Counts) -> float:
    """Return the mean of counted values."""
    values, times = np.array(counts).T
    return float(np.average(values, weights=times))


def drawn(counts: Counts, size: int) -> list[int]:
    """Return values in the proportions of the counts, in a random order that is always the same."""
    values, times = np.array(counts).T
    places = (np.arange(size) + 0.5) / size * times.sum()
    found = values[np.searchsorted(np.cumsum(times), places)]
    ordered: list[int] = np.random.default_rng(SEED).permutation(found).tolist()
    return ordered


def uniform(inputs: int, lanes: int, waves: int, bits: int) -> list[int]:
    """Return the slowest lane's filled bins by wave, of codes that are all equally likely."""
    random, bins = np.random.default_rng(SEED), 1 << bits
    found = []
    for _ in range(waves):
        pairs = random.integers(0, bins, (lanes, inputs)) + bins * np.arange(lanes)[:, None]
        counts = np.bincount(pairs.ravel(), minlength=bins * lanes).reshape(lanes, bins)
        found.append(int((counts > 0).sum(1).max()))
    return found


def step(design: Design, codes: RealCodes, length: int, real: bool) -> dict[str, float]:
    """Return the cycles of a decode step at a length, cycle by cycle, by operation.

    `real`: with the model's codes, and scores of 0 are not counted; else all codes are equally
    likely. The vocabulary's matrix has uniform codes in both: it is not quantized by clusters.
    """
    shape, bits = codes.shape, design.activation_bits + design.weight_bits
    linear = 0
    for kind, (outputs, inputs) in zip(codes.matrices, shape.linears, strict=True):
        waves = -(-outputs // design.lanes)
        bins = drawn(kind["waves"], waves) if real else uniform(inputs, design.lanes, waves, bits)
        linear += cycles.product(
            design, inputs, _summed(design, bins, bits), design.outliers(inputs)
        )
    waves, size = -(-length // design.lanes), shape.head_size
    bins = drawn(codes.score_waves, waves) if real else uniform(size, design.lanes, waves, bits)
    scores = cycles.product(design, size, _summed(design, bins, bits), 0, 0)
    counted = round(length * codes.scores_counted) if real else length
    values = cycles.product(
        design,
        max(counted, 1),
        [1 << design.activation_bits] * -(-size // design.lanes),
        0,
        0,
    )
    quantized = [shape.width] * (design.tree_runs - 1) + [shape.hidden]
    searched = sum(cycles.found(design, inputs) for inputs in quantized)
    clustering = sum(clustering_cycles(design, inputs) for inputs in quantized)
    return {
        "products": float(shape.layers * linear),
        "attention": float(shape.layers * shape.heads * (scores + values)),
        "outliers": float(shape.layers * searched * design.online_outliers),
        "clustering": float(shape.layers * clustering),
    }


def clustering_cycles(design: Design, inputs: int) -> int:
    """Return the cycles in which the clustering unit codes a vector."""
    levels = np.arange(1 << design.activation_bits, dtype=float)
    return cycles.clustered(np.zeros(inputs), levels, design.cluster_inputs)[1]


def _summed(design: Design, filled: list[int], bits: int) -> list[int]:
    """Return the bins that are summed: the filled ones, or all if empty ones are not left out."""
    return filled if design.skip_empty_bins else [1 << bits] * len(filled)
