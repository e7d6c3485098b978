"""Shares of this machine's cores, one for each engine.

A share holds whole cores of one NUMA node where there are enough: what an engine loads then lies in
the memory next to its cores.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from suffice.errors import OptionError

SYSTEM = Path("/sys/devices/system")
T = TypeVar("T")


@dataclass(frozen=True)
class Core:
    """A core: the processors that share it, and its NUMA node."""

    node: int
    cpus: tuple[int, ...]


@dataclass(frozen=True)
class Share:
    """What an engine may use."""

    cpus: tuple[int, ...]
    threads: int


def shares(count: int, system: Path = SYSTEM) -> list[Share | None]:
    """Return a share for each of `count` engines; None for one, which may use all.

    Raises:
        OptionError: There are fewer cores than engines.
    """
    if count == 1:
        return [None]
    from suffice import native

    usable = native.cores()
    if count > usable:
        raise OptionError("instances", count, f"must be at most the {usable} cores available")
    parts = split(found(os.sched_getaffinity(0), system), count)
    return [Share(part, max(1, min(len(part), usable // count))) for part in parts]


def found(allowed: Iterable[int], system: Path = SYSTEM) -> list[Core]:
    """Return the cores to which some processors belong, in order of their nodes.

    What the system does not tell counts as a core of its own, on node 0.
    """
    left, cores = set(allowed), []
    nodes = _nodes(system)
    for cpu in sorted(left):
        if cpu not in left:
            continue
        path = system / f"cpu/cpu{cpu}/topology/thread_siblings_list"
        siblings = (_numbers(path) or {cpu}) & left
        left -= siblings
        cores.append(Core(nodes.get(cpu, 0), tuple(sorted(siblings | {cpu}))))
    return sorted(cores, key=lambda core: (core.node, core.cpus))


def split(cores: Sequence[Core], count: int) -> list[tuple[int, ...]]:
    """Return the processors of `count` shares, of about the same size."""
    if count > len(cores):
        cores = [Core(core.node, (cpu,)) for core in cores for cpu in core.cpus]
    nodes: dict[int, list[Core]] = {}
    for core in cores:
        nodes.setdefault(core.node, []).append(core)
    groups = list(nodes.values())
    if count < len(groups):
        joined = _parts(groups, count)
        parts: list[Sequence[Core]] = [[core for own in part for core in own] for part in joined]
    else:
        given = _allotted([len(group) for group in groups], count)
        parts = [part for group, n in zip(groups, given, strict=True) for part in _parts(group, n)]
    return [tuple(sorted(cpu for core in part for cpu in core.cpus)) for part in parts]


def _allotted(sizes: Sequence[int], count: int) -> list[int]:
    """Return how many shares each node has: at least one, and most where most cores are left."""
    given = [1] * len(sizes)
    while sum(given) < count:
        open_ = [at for at, size in enumerate(sizes) if given[at] < size]
        given[max(open_, key=lambda at: sizes[at] / (given[at] + 1))] += 1
    return given


def _parts(items: Sequence[T], count: int) -> list[Sequence[T]]:
    size = len(items)
    return [items[at * size // count : (at + 1) * size // count] for at in range(count)]


def _nodes(system: Path) -> dict[int, int]:
    """Return the node of each processor."""
    return {
        cpu: int(path.parent.name.removeprefix("node"))
        for path in system.glob("node/node[0-9]*/cpulist")
        for cpu in _numbers(path)
    }


def _numbers(path: Path) -> set[int]:
    """Return the numbers of a list such as 0-3,8; an empty set if there is none."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return set()
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers
