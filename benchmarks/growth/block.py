"""One attention block that decodes N tokens while its cache grows, as timed by the BMC paper.

A step writes the new keys and values, then runs matmul, softmax and matmul in PyTorch, in float32,
on random tensors [B G, rows, D]. Growth allocates larger tensors, copies the rows held and zeroes
the rest. No other part of a model runs.

The cost of a step depends on few things, so positions are sampled. At most `windows` of the windows
between two allocations are run, evenly spread. In each, the growth and about `steps` evenly spread
steps are timed. Both times are scaled up to all windows and steps; the JSON repeats how.
"""

from __future__ import annotations

import mmap
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import torch

from benchmarks.harness import counters
from suffice.cache import Growth


@dataclass(frozen=True)
class Shape:
    """The attention of one layer of a model."""

    name: str
    heads: int
    kv_heads: int
    head_size: int


OPT_350M = Shape("OPT-350M", 16, 16, 64)
OPT_1B3 = Shape("OPT-1.3B", 32, 32, 64)
OPT_2B7 = Shape("OPT-2.7B", 32, 32, 80)
OPT_6B7 = Shape("OPT-6.7B", 32, 32, 128)
OPT_13B = Shape("OPT-13B", 40, 40, 128)
LLAMA_3_8B = Shape("Llama-3-8B", 32, 8, 128)
LLAMA_7B = Shape("Llama-7B", 32, 32, 128)
LONG = Shape("32 heads of 16", 32, 32, 16)


@dataclass(frozen=True)
class Variant:
    """Variants of the block. The paper's: small pages, attention over the spare rows too."""

    pages: Literal["small", "huge"] = "small"  # huge: mapped zeroed, huge pages advised
    rows: Literal["padded", "used"] = "padded"  # used: attention on a view of the rows in use


PAPER = Variant()


@dataclass(frozen=True)
class Drafts:
    """Speculative decoding: k rows verified per step, m tokens gained."""

    rows: int = 1
    gained: int = 1


@dataclass(frozen=True)
class Sampling:
    """Numbers of positions that are run."""

    windows: int = 16
    steps: int = 3  # per window, on average
    least: int = 24  # steps in all, if there are few windows


def spread(count: int, most: int) -> list[int]:
    """Return at most `most` of `count` indices: the middles of equal parts."""
    most = min(count, most)
    return [(2 * i + 1) * count // (2 * most) for i in range(most)]


@dataclass
class Times:
    """Seconds and faults of decoding all N tokens, scaled up from the sample.

    `tlb_misses` stays 0 where the machine does not count them.
    """

    allocate: float = 0.0
    copy: float = 0.0
    attend: float = 0.0  # writes in place included
    minor_faults: float = 0.0
    major_faults: float = 0.0
    tlb_misses: float = 0.0
    allocations: int = 0
    sampled_steps: int = 0
    all_steps: int = 0

    @property
    def total(self) -> float:
        return self.allocate + self.copy + self.attend


@dataclass
class Window:
    """Steps between two allocations: (rows held before the step, rows written in it)."""

    held: int
    capacity: int
    steps: list[tuple[int, int]] = field(default_factory=list)


def windows_of(growth: Growth, limit: int, drafts: Drafts = Drafts()) -> list[Window]:
    """Return every window of a decode from an empty cache to `limit` rows.

    If fewer spare rows than drafts are left, the drafts are cut (section VI-A). A step still gains
    min(m, rows) tokens, which flatters very small windows.
    """
    windows: list[Window] = []
    held, capacity = 0, 0
    while held < limit:
        if held == capacity:
            needed = min(held + (drafts.rows if _is_exact(growth) else 1), limit)
            capacity = growth.next_capacity(needed, capacity, limit)
            windows.append(Window(held, capacity))
        rows = min(drafts.rows, capacity - held)
        windows[-1].steps.append((held, rows))
        held += min(drafts.gained, rows)
        if _is_exact(growth):
            capacity = held
    return windows


def _is_exact(growth: Growth) -> bool:
    # A cache without spare rows makes room for all drafts of a step, then drops the refused ones
    return all(growth.next_capacity(rows, rows - 1, 100) == rows for rows in (5, 7))


class Block:
    """The tensors of one block; decodes by a growth policy and returns its times."""

    def __init__(self, shape: Shape, batch: int, limit: int, drafts: Drafts = Drafts()) -> None:
        torch.manual_seed(0)
        self.limit, self.drafts, self.size = limit, drafts, shape.head_size
        self.heads = batch * shape.kv_heads
        self.group = shape.heads // shape.kv_heads
        self.scale = shape.head_size**-0.5
        self.pool = torch.randn(self.heads, limit, self.size)
        self.query = torch.randn(self.heads, self.group * drafts.rows, self.size)

    def decode(
        self,
        growth: Growth,
        variant: Variant = PAPER,
        sampling: Sampling = Sampling(),
        split: bool = False,
    ) -> Times:
        """Time a whole decode; with `split` page faults count as `allocate`, not as `copy`."""
        windows = windows_of(growth, self.limit, self.drafts)
        chosen = spread(len(windows), sampling.windows)
        budget = max(sampling.steps * len(chosen), sampling.least)
        budget_per_step = budget / sum(len(windows[index].steps) for index in chosen)
        total = Times(
            allocations=len(windows), all_steps=sum(len(window.steps) for window in windows)
        )
        for index in chosen:
            # Longer windows represent more time and get more samples
            most = max(1, round(budget_per_step * len(windows[index].steps)))
            self._window(windows[index], len(windows) / len(chosen), most, variant, split, total)
        return total

    def latencies(
        self, growth: Growth, positions: list[int], variant: Variant = PAPER
    ) -> list[tuple[int, float, bool]]:
        """Return (position, seconds, grew) for the tokens at `positions`."""
        result = []
        for window in windows_of(growth, self.limit):
            wanted = [held for held, _ in window.steps if held in positions]
            if not wanted:
                continue
            grew, timed = Times(), Times()
            keys, values = self._grow(window, variant, False, grew, 1.0)
            self._step(keys, values, window.held, 1, variant)  # not timed: first touch
            for held in wanted:
                before = timed.attend
                with _timed(timed, "attend", 1.0):
                    self._step(keys, values, held, 1, variant)
                spent = timed.attend - before
                first = held == window.held
                result.append((held, spent + (grew.total if first else 0), first))
        return result

    def _window(
        self,
        window: Window,
        weight: float,
        most: int,
        variant: Variant,
        split: bool,
        total: Times,
    ) -> None:
        keys, values = self._grow(window, variant, split, total, weight)
        chosen = spread(len(window.steps), most)
        for step in chosen:
            held, rows = window.steps[step]
            with _timed(total, "attend", weight * len(window.steps) / len(chosen)):
                self._step(keys, values, held, rows, variant)
        total.sampled_steps += len(chosen)

    def _grow(
        self, window: Window, variant: Variant, split: bool, total: Times, weight: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        held, allocate = window.held, _small if variant.pages == "small" else _huge
        # Mapped memory comes zeroed, and views never read spare rows. Their pages are then first
        # touched by the steps that write them; here all at once, so that it is timed.
        zeroed = variant == PAPER
        # Not timed: the old tensors, in memory of the same kind
        old = [allocate(self.heads, held, self.size).copy_(self.pool[:, :held]) for _ in "kv"]
        with _timed(total, "allocate", weight):
            new = [allocate(self.heads, window.capacity, self.size) for _ in "kv"]
            if split or not zeroed:
                for each in new:
                    each.view(-1)[:: mmap.PAGESIZE // each.element_size()] = 0
        with _timed(total, "copy", weight):
            for after, before in zip(new, old, strict=True):
                after[:, :held] = before
                if zeroed:
                    after[:, held:] = 0
            # Freeing the old tensors is part of growing
            del before
            old.clear()
        # Not timed: rows that steps before the sampled ones would have written
        for each in new:
            each[:, held : window.steps[-1][0]] = self.pool[:, held : window.steps[-1][0]]
        self.mask = torch.zeros(1, 1, window.capacity)
        return new[0], new[1]

    def _step(
        self, keys: torch.Tensor, values: torch.Tensor, held: int, rows: int, variant: Variant
    ) -> torch.Tensor:
        end = held + rows
        keys[:, held:end] = self.query[:, :rows]
        values[:, held:end] = self.query[:, :rows]
        query = self.query[:, : self.group * rows]
        if variant.rows == "used":
            scores = torch.bmm(query, keys[:, :end].transpose(1, 2)).mul_(self.scale)
            return torch.bmm(scores.softmax(-1), values[:, :end])
        # One mask row for all heads and requests: 0 up to the rows in use, very negative after
        self.mask[..., :end], self.mask[..., end:] = 0, -1e9
        scores = torch.baddbmm(self.mask, query, keys.transpose(1, 2), alpha=self.scale)
        return torch.bmm(scores.softmax(-1), values)


def _small(*shape: int) -> torch.Tensor:
    return torch.empty(*shape)


def _huge(*shape: int) -> torch.Tensor:
    count = shape[0] * shape[1] * shape[2]
    if count == 0:
        return torch.empty(*shape)
    memory = mmap.mmap(-1, count * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.float32).view(*shape)


@cache
def tlb_counter() -> counters.Counter | None:
    """Return the count of TLB misses, None if the machine has none; call it after `warm_up`."""
    return counters.opened(counters.TLB_MISSES)


@contextmanager
def _timed(times: Times, part: str, weight: float) -> Iterator[None]:
    tlb = tlb_counter()
    faults = resource.getrusage(resource.RUSAGE_SELF)
    missed = tlb.read() if tlb else 0
    start = time.perf_counter()
    yield
    seconds = time.perf_counter() - start
    times.tlb_misses += weight * ((tlb.read() if tlb else 0) - missed)
    after = resource.getrusage(resource.RUSAGE_SELF)
    setattr(times, part, getattr(times, part) + weight * seconds)
    times.minor_faults += weight * (after.ru_minflt - faults.ru_minflt)
    times.major_faults += weight * (after.ru_majflt - faults.ru_majflt)


def warm_up(block: Block, work: Callable[[], object] | None = None) -> None:
    """Run the matmuls once so that no timed step pays for starting threads."""
    rows = block.pool[:, : min(64, block.limit)]
    for _ in range(3):
        torch.bmm(torch.bmm(block.query, rows.transpose(1, 2)).softmax(-1), rows)
    if work:
        work()
