"""A unit: its ports, its gates, its model, and the vectors that both are given.

Time goes in clock cycles. In each the inputs are applied, the clock rises, and the outputs are read
before the inputs change: `step` of the model takes inputs and returns what is read then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

Vector = dict[str, int]  # a value for each port, unsigned


class Model(Protocol):
    """What a unit computes, in integers."""

    def step(self, inputs: Vector) -> Vector:
        """Return the outputs after a clock cycle with some inputs."""
        ...


@dataclass(frozen=True)
class Unit:
    """A unit; `inputs` and `outputs` give each port's width.

    `build` adds the gates to an Amaranth module, between signals by port. `vectors` yields inputs
    cycle by cycle: all there are where `exhaustive`, else a sweep from a fixed seed.
    """

    name: str
    what: str
    inputs: dict[str, int]
    outputs: dict[str, int]
    build: Callable[[Any, dict[str, Any], dict[str, Any]], None]
    model: Callable[[], Model]
    vectors: Callable[[], Iterator[Vector]]
    exhaustive: bool = False


@dataclass
class Registered:
    """A model whose outputs follow from the inputs of the same cycle."""

    function: Callable[..., Vector]

    def step(self, inputs: Vector) -> Vector:
        """Return the outputs after a clock cycle with some inputs."""
        return self.function(**inputs)


@dataclass
class Lanes:
    """Ports of `count` values of `width` bits, side by side: value 0 has the lowest bits."""

    count: int
    width: int
    mask: int = field(init=False)

    def __post_init__(self) -> None:
        self.mask = (1 << self.width) - 1

    def join(self, values: list[int]) -> int:
        """Return the port's value."""
        return sum(value << self.width * i for i, value in enumerate(values))

    def split(self, port: int) -> list[int]:
        """Return the values."""
        return [port >> self.width * i & self.mask for i in range(self.count)]

    def signals(self, port: Any) -> list[Any]:
        """Return the parts of a signal."""
        return [port.word_select(i, self.width) for i in range(self.count)]


def joined(join: Callable[[Any, Any], Any], values: list[Any]) -> Any:
    """Return what neighbours joined, and these joined, and so on, come to; a power of two."""
    while len(values) > 1:
        values = [join(a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
    return values[0]
