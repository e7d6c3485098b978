"""KLLM's cycles: a pipeline of waves; a wave takes as long as its slowest stage.

A wave computes one output column in each lane. Its stages overlap: refill from memory; counting of
pairs; and reduction. Reduction runs on the multiply-accumulate units: the weighted sum of bins,
then the outliers, then one addition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from suffice_hw import settings
from suffice_hw.dram import patterns
from suffice_hw.dram.model import simulate
from suffice_hw.dram.part import Part
from suffice_hw.settings import Settings, limited

DESIGNS = Path(__file__).parent / "designs"


@dataclass(frozen=True)
class Shape(Settings):
    """Sizes of a model; `hidden` is the width of its feed-forward layers."""

    name: str
    layers: int = limited(1, 1024)
    width: int = limited(1, 65536)
    hidden: int = limited(1, 262144)
    heads: int = limited(1, 1024)
    kv_heads: int = limited(1, 1024)
    vocabulary: int = limited(1, 2**20)

    @property
    def head_size(self) -> int:
        """Width of a head."""
        return self.width // self.heads

    @property
    def linears(self) -> list[tuple[int, int]]:
        """Outputs and inputs of a layer's matrices: q, k, v, o, gate, up, down."""
        kv = self.kv_heads * self.head_size
        qkv = [(self.width, self.width), (kv, self.width), (kv, self.width)]
        feed = [(self.hidden, self.width), (self.hidden, self.width), (self.width, self.hidden)]
        return [*qkv, (self.width, self.width), *feed]


MODELS = {  # the paper's (section V-A)
    shape.name: shape
    for shape in (
        Shape("llama-7b", 32, 4096, 11008, 32, 32, 32000),
        Shape("llama-13b", 40, 5120, 13824, 40, 40, 32000),
        Shape("llama-30b", 60, 6656, 17920, 52, 52, 32000),
        Shape("llama-2-7b", 32, 4096, 11008, 32, 32, 32000),
        Shape("llama-2-13b", 40, 5120, 13824, 40, 40, 32000),
        Shape("llama-2-70b", 80, 8192, 28672, 64, 8, 32000),
        Shape("mistral-7b", 32, 4096, 14336, 32, 8, 32000),
    )
}
LLAMA_2_7B = MODELS["llama-2-7b"]


def model(name: str) -> Shape:
    """Return one of the paper's models.

    Raises:
        InputError: The name is unknown.
    """
    return settings.entry("model", name, MODELS)


@dataclass(frozen=True)
class Design(Settings):
    """The accelerator; designs/kllm.toml explains the keys."""

    memory: str
    memory_efficiency: float = limited(0.01, 1)
    clock_ghz: float = limited(0.01, 10)
    lanes: int = limited(1, 1024)
    lane_inputs: int = limited(1, 65536)
    counters: int = limited(1, 1024)
    counter_inputs: int = limited(1, 1024)
    macs: int = limited(1, 1024)
    weight_bits: int = limited(1, 8)
    activation_bits: int = limited(1, 8)
    kv_bits: int = limited(1, 16)
    outlier_share: float = limited(0, 0.5)
    online_outliers: bool = limited()
    serial_pops: bool = limited()
    tree_leaves: int = limited(2, 2**20)
    tree_runs: int = limited(1, 7)
    skip_empty_bins: bool = limited()
    cluster_inputs: int = limited(1, 65536)
    exp_units: int = limited(1, 1024)
    fill_cycles: int = limited(0, 10000)
    pipelined_outliers: bool = limited()

    @classmethod
    def load(cls, name: str = "kllm") -> Design:
        """Return a design: a built-in one by its name, or that of a TOML file.

        Raises:
            InputError: The name is unknown, or the file has an invalid key or value.
        """
        path = settings.named(DESIGNS, "design", name)
        design = settings.read(cls, path)
        design.bytes_per_cycle()
        return design

    @cached_property
    def part(self) -> Part:
        """The memory."""
        return Part.load(self.memory)

    def bytes_per_cycle(self) -> float:
        """Return the bytes that the memory delivers per cycle: `memory_efficiency` of the peak."""
        return self.memory_efficiency * self.part.peak_bytes_per_ns / self.clock_ghz

    def held_bytes(self, shape: Shape, tokens: int, batch: int = 1) -> float:
        """Return the bytes of the weights, and of the keys and values of `batch` sequences."""
        linears = shape.layers * sum(rows * columns for rows, columns in shape.linears)
        weights = (linears + shape.vocabulary * shape.width) * self.weight_bits
        cached = 2 * shape.layers * shape.kv_heads * shape.head_size * tokens * batch
        return (weights + cached * self.kv_bits) / 8

    def bins(self, inputs: int) -> float:
        """Return the number of bins in a weighted sum over `inputs` inputs."""
        bins = 1 << (self.activation_bits + self.weight_bits)
        if not self.skip_empty_bins:
            return bins
        empty: float = (1 - 1 / bins) ** inputs  # expected share, if all pairs are equally likely
        return bins * (1 - empty)

    def wave_cycles(self, inputs: int, batch: int = 1) -> float:
        """Return the cycles of a wave of columns while the pipeline is full.

        Weights are fetched once for all rows of a batch; each row is counted and summed separately.
        """
        count = math.ceil(inputs / (self.counters * self.counter_inputs))
        outliers = math.ceil(self.outliers(inputs) / self.macs)
        reduction = math.ceil(self.bins(inputs) / self.macs) + outliers + 1
        refill = self.lanes * inputs * self.weight_bits / 8 / self.bytes_per_cycle()
        concat = math.ceil(inputs / self.lane_inputs)
        return max(batch * max(count, reduction, concat), refill)

    def outliers(self, inputs: int) -> int:
        """Return the number of outliers among the inputs of a product."""
        return round(inputs * self.outlier_share)

    def product_cycles(self, outputs: int, inputs: int, batch: int = 1) -> float:
        """Return the cycles of a matmul with a weight [outputs, inputs], without pipeline fill."""
        return math.ceil(outputs / self.lanes) * self.wave_cycles(inputs, batch)

    def orizuru_cycles(self, inputs: int) -> int:
        """Return the cycles to find the outliers of a vector."""
        passes = math.ceil(inputs / self.tree_leaves)
        leaves = min(inputs, self.tree_leaves)
        depth = math.ceil(math.log2(leaves))
        pops = self.pops(inputs) * (2 if self.serial_pops else 1)
        return passes * (depth + pops * depth)

    def pops(self, inputs: int) -> int:
        """Return the number of values that each of the two trees pops per pass."""
        return math.ceil(min(inputs, self.tree_leaves) * self.outlier_share / 2)

    def attention_cycles(self, shape: Shape, length: int) -> float:
        """Return the cycles of a layer's attention to `length` tokens; keys are the columns."""
        size = shape.head_size
        waves = math.ceil(length / self.lanes)
        step = self.counters * self.counter_inputs
        scores = waves * max(math.ceil(size / step), math.ceil(self.bins(size) / self.macs))
        # only the values are indices: counters add up the scores, which are integers
        values = math.ceil(size / self.lanes) * max(
            math.ceil(length / step), math.ceil((1 << self.activation_bits) / self.macs)
        )
        softmax = length / self.exp_units  # of the previous head
        refill = 2 * length * size * self.kv_bits / 8 / self.bytes_per_cycle()
        refill *= shape.kv_heads / shape.heads
        return shape.heads * max(scores + values, softmax, refill)

    def found_cycles(self, shape: Shape, batch: int = 1) -> int:
        """Return the cycles to find a layer's outliers that nothing else hides."""
        if not self.online_outliers:
            return 0
        inputs = [shape.width] * (self.tree_runs - 1) + [shape.hidden]
        once = sum(self.orizuru_cycles(each) for each in inputs)
        return once if self.pipelined_outliers else batch * once

    def step_cycles(self, shape: Shape, length: int, batch: int = 1) -> dict[str, float]:
        """Return the cycles of a decode step at a length in all layers, by operation."""
        fill, layers = self.fill_cycles, shape.layers
        linear = sum(self.product_cycles(*each, batch) + fill for each in shape.linears)
        head = self.product_cycles(shape.vocabulary, shape.width, batch) + fill
        return {
            "products": layers * linear,
            "attention": layers * batch * self.attention_cycles(shape, length),
            "outliers": float(layers * self.found_cycles(shape, batch)),
            "head": head,
        }

    def token_cycles(self, shape: Shape, length: int, batch: int = 1) -> float:
        """Return the cycles of a decode step."""
        return sum(self.step_cycles(shape, length, batch).values())

    def token_ms(self, shape: Shape, tokens: int = 2048, batch: int = 1) -> float:
        """Return the mean time of a decode step over an output of `tokens` tokens."""
        cycles = [self.token_cycles(shape, length, batch) for length in lengths(tokens)]
        return sum(cycles) / len(cycles) / self.clock_ghz / 1e6


def lengths(tokens: int) -> list[int]:
    """Return eight lengths that represent 1 to `tokens`; cycles are nearly linear in length."""
    return [max(1, round((i + 0.5) * tokens / 8)) for i in range(8)]


def weights_us(design: Design, outputs: int, inputs: int) -> float:
    """Return the time in which the simulated memory delivers a weight, in microseconds."""
    bursts = outputs * inputs * design.weight_bits // 8 // design.part.burst_bytes
    return simulate(design.part, *patterns.stream(design.part, bursts)).ns / 1e3
