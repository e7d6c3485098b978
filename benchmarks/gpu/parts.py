"""What the parts of the GPU benchmark share: cells to measure, and how time is taken."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.harness.tables import CellStore

_SECONDS, _ROUNDS = 0.25, 9  # of a measurement on a GPU


@dataclass(frozen=True)
class Place:
    """Where a benchmark runs. `tiny`: sizes for a trial run, whose figures mean nothing.

    `models` and `data`: folders of the models SmolLM2 and Gemma 3, and of texts; None: not given.
    """

    device: torch.device
    tiny: bool
    models: Path | None
    data: Path | None

    @property
    def name(self) -> str:
        """The device's name."""
        return torch.cuda.get_device_name(self.device) if self.cuda else "CPU"

    @property
    def cuda(self) -> bool:
        """Whether it is a GPU."""
        return self.device.type == "cuda"

    @property
    def memory(self) -> int:
        """Bytes that tensors may take."""
        return torch.cuda.mem_get_info(self.device)[0] if self.cuda else 1 << 30

    def random(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """Return normal random numbers."""
        return torch.randn(*shape, device=self.device, dtype=dtype)

    def seconds(self, work: Callable[[], Any]) -> float:
        """Return the median time of `work`, which launches kernels; a tiny run does it once."""
        if not self.cuda:
            return self.once(work)
        for _ in range(3):
            work()
        once = self._timed(work, 1)
        calls = max(round(_SECONDS / _ROUNDS / once), 1)
        return statistics.median(self._timed(work, calls) for _ in range(_ROUNDS))

    def once(self, work: Callable[[], Any]) -> float:
        """Return the time of `work`, done once."""
        if self.cuda:
            return self._timed(work, 1)
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    def _timed(self, work: Callable[[], Any], calls: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000 / calls

    def copied_bytes_per_second(self) -> float:
        """Return the bytes that a copy within the device reads and writes in a second."""
        source = torch.zeros(1 << (30 if self.cuda else 16), dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return 2 * source.nbytes / self.seconds(lambda: target.copy_(source))


class Cell(NamedTuple):
    """A measurement: its row and column, and what measures it."""

    row: str
    column: str
    measure: Callable[[], dict[str, Any]]


class Part(NamedTuple):
    """A part of the benchmark: its name, its cells, and the table of their figures."""

    name: str
    about: str
    cells: Callable[[Place], Iterator[Cell]]
    table: Callable[[CellStore], str]
