"""Settings of the accelerator, and shapes of the models it runs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from suffice.errors import InputError
from suffice_hw import settings
from suffice_hw.cost.sram import Sram
from suffice_hw.dram import energy
from suffice_hw.dram.part import Part
from suffice_hw.exaq.unit import Unit
from suffice_hw.scrooge.aet import GROUP_STOPS, MASSES, Rule
from suffice_hw.settings import Settings, limited

DESIGNS = Path(__file__).parent / "designs"
VALUE_BYTES = 2  # FP16


@dataclass(frozen=True)
class Shape(Settings):
    """Sizes of a model's attention."""

    name: str
    layers: int = limited(1, 1024)
    heads: int = limited(1, 1024)
    kv_heads: int = limited(1, 1024)
    head_size: int = limited(1, 1024)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads % self.kv_heads:
            raise InputError(f"Shape: kv_heads={self.kv_heads}: must divide heads={self.heads}")

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's key (or value) in one head."""
        return self.head_size * VALUE_BYTES

    def attention_bytes(self, tokens: int) -> int:
        """Return the bytes of keys and values that exact attention reads in decoding 1..tokens."""
        rows = tokens * (tokens + 1) // 2
        return 2 * rows * self.layers * self.kv_heads * self.row_bytes


MODELS = {  # the paper's (section VI-A)
    shape.name: shape
    for shape in (
        Shape("opt-1.3b", 24, 32, 32, 64),
        Shape("opt-2.7b", 32, 32, 32, 80),
        Shape("opt-6.7b", 32, 32, 32, 128),
        Shape("opt-13b", 40, 40, 40, 128),
        Shape("llama-2-7b", 32, 32, 32, 128),
        Shape("llama-2-13b", 40, 40, 40, 128),
    )
}


def model(name: str) -> Shape:
    """Return one of the paper's models.

    Raises:
        InputError: The name is unknown.
    """
    return settings.entry("model", name, MODELS)


@dataclass(frozen=True)
class Design(Settings):
    """The accelerator at 1 GHz; latencies in cycles. designs/scrooge.toml explains the keys."""

    memory: str
    lanes: int = limited(1, 256)
    lane_width: int = limited(1, 1024)
    multiply_cycles: int = limited(0, 1000)
    lane_tree_cycles: int = limited(0, 1000)
    cross_tree_cycles: int = limited(0, 1000)
    scale_cycles: int = limited(0, 1000)
    exp_cycles: int = limited(1, 100)
    max_sum_cycles: int = limited(0, 1000)
    etu_cycles: int = limited(0, 1000)
    softmax_bits: int = limited(choices=(0, 2, 3, 4))
    softmax_width: int = limited(1, 256)
    softmax_cycles: int = limited(0, 1000)
    buffer_bytes: int = limited(512, 2**26)
    buffer_port_bits: int = limited(8, 16384)
    buffer_banks: int = limited(1, 256)
    energy_table: str = limited()
    prefetch_bytes: int = limited(1, 2**20)
    baseline_prefetch_bytes: int = limited(1, 2**20)
    early_values: bool = limited()
    query_traffic: bool = limited()
    metadata_bytes: int = limited(0, 65536)
    sinks: int = limited(0, 1024)
    globals: int = limited(0, 4096)
    locals: int = limited(1, 4096)
    filter_important: bool = limited()
    running_max: bool = limited()
    masses: str = limited(choices=MASSES)
    group_stop: str = limited(choices=GROUP_STOPS)

    @classmethod
    def load(cls, name: str = "scrooge") -> Design:
        """Return a design: a built-in one by its name, or that of a TOML file.

        Raises:
            InputError: The name is unknown, or the file has an invalid key or value.
        """
        path = settings.named(DESIGNS, "design", name)
        design = settings.read(cls, path)
        design.part()
        design.buffer()
        energy.load(design.energy_table)
        return design

    def part(self) -> Part:
        """Return the memory."""
        return Part.load(self.memory)

    def buffer(self) -> Sram:
        """Return the buffer of keys, values and weights."""
        return Sram(self.buffer_bytes, self.buffer_port_bits, self.buffer_banks)

    def lanes_per_token(self, shape: Shape) -> int:
        """Return the number of lanes that compute a token of a model together.

        Raises:
            InputError: There are not enough lanes.
        """
        lanes = -(-shape.head_size // self.lane_width)
        if lanes > self.lanes:
            widest = self.lanes * self.lane_width
            raise InputError(
                f"head_size={shape.head_size}: must be at most {widest}, the width of all lanes"
            )
        return lanes

    def wave(self, shape: Shape) -> int:
        """Return the number of tokens that are processed together."""
        return self.lanes // self.lanes_per_token(shape)

    def rule(self, shape: Shape, key_share: float, value_share: float) -> Rule:
        """Return the rule of the early-termination units."""
        names = [each.name for each in dataclasses.fields(Rule)]
        fields = {name: getattr(self, name) for name in names if hasattr(self, name)}
        fields |= {"key_share": key_share, "value_share": value_share}
        return Rule(**fields | {"wave": self.wave(shape)})

    @property
    def pipe_cycles(self) -> int:
        """Cycles from a wave's keys to its contribution to Max and Sum."""
        exponent = dataclasses.replace(
            Unit.load(), bits=self.softmax_bits, group=1, exp_cycles=self.exp_cycles
        )
        return (
            self.multiply_cycles
            + self.lane_tree_cycles
            + self.cross_tree_cycles
            + self.scale_cycles
            + exponent.exponent_cycles
            + self.max_sum_cycles
        )

    @property
    def sum_cycles(self) -> int:
        """Cycles from the last values to the output."""
        return self.multiply_cycles + self.lane_tree_cycles + self.cross_tree_cycles
