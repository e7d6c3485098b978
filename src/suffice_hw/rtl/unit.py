"""A unit: its ports, its gates, its model, and test vectors for both.

Time is counted in clock cycles. In each cycle the inputs are applied, the clock rises, and the
outputs are read before the inputs change. `step` of the model takes the inputs of a cycle and
returns its outputs. In a pipeline these belong to inputs of earlier cycles.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

Vector = dict[str, int]  # a value for each port, unsigned


class Model(Protocol):
    """The computation of a unit, in integers."""

    def step(self, inputs: Vector) -> Vector:
        """Return the outputs of a clock cycle."""
        ...


@dataclass(frozen=True)
class Circuit:
    """Ports and gates; `inputs` and `outputs` have the width of each port.

    `build` adds the gates to an Amaranth module, given the signals by port.
    """

    name: str
    what: str
    inputs: dict[str, int]
    outputs: dict[str, int]
    build: Callable[[Any, dict[str, Any], dict[str, Any]], None]


@dataclass(frozen=True)
class Unit(Circuit):
    """A circuit with its model and test vectors.

    `vectors` yields the inputs of each cycle: all possible ones if `exhaustive`, else a sweep from
    a fixed seed. Outputs of the first `fill` cycles have no meaning: the pipeline is being filled.
    """

    model: Callable[[], Model]
    vectors: Callable[[], Iterator[Vector]]
    exhaustive: bool = False
    fill: int = 0


@dataclass
class Registered:
    """A model whose outputs depend on the inputs of the same cycle only."""

    function: Callable[..., Vector]

    def step(self, inputs: Vector) -> Vector:
        """Return the outputs of a clock cycle."""
        return self.function(**inputs)


class Pipelined:
    """A model whose outputs depend on the inputs of `fill` cycles ago only."""

    def __init__(self, function: Callable[..., Vector], fill: int) -> None:
        self.function, self.fill = function, fill
        self.held: deque[Vector] = deque()

    def step(self, inputs: Vector) -> Vector:
        """Return the outputs of a clock cycle."""
        self.held.append(self.function(**inputs))
        return self.held.popleft() if len(self.held) > self.fill else self.held[0]


@dataclass
class Lanes:
    """A port with `count` values of `width` bits; value 0 has the lowest bits."""

    count: int
    width: int
    mask: int = field(init=False)

    def __post_init__(self) -> None:
        self.mask = (1 << self.width) - 1

    def join(self, values: list[int]) -> int:
        """Return the port of some values."""
        return sum(value << self.width * i for i, value in enumerate(values))

    def split(self, port: int) -> list[int]:
        """Return the values of a port."""
        return [port >> self.width * i & self.mask for i in range(self.count)]

    def signals(self, port: Any) -> list[Any]:
        """Return the signals of the values in a port."""
        return [port.word_select(i, self.width) for i in range(self.count)]


def joined(join: Callable[[Any, Any], Any], values: list[Any]) -> Any:
    """Reduce values by a balanced tree of `join`; their number must be a power of two."""
    while len(values) > 1:
        values = [join(a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
    return values[0]
