"""Shares of this machine's cores, one for each engine, and leases of them.

A share holds whole cores of one NUMA node where there are enough: what an engine loads then lies in
the memory next to its cores. It has one thread on each core; a core's second thread is used by
engines of more threads than cores.

A core is leased by a lock on a file (`flock`), which ends with its server's process however that
ends. Servers of one user on one machine see each other's leases. Who finds too few free cores
shares them with others, and says so.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from suffice.errors import OptionError
from suffice.paths import cache_dir

SYSTEM = Path("/sys/devices/system")
T = TypeVar("T")


@dataclass(frozen=True)
class Core:
    """A core: the processors that share it, and its NUMA node."""

    node: int
    cpus: tuple[int, ...]


@dataclass(frozen=True)
class Share:
    """What an engine may use: processors (none: all), threads, and the node of its memory."""

    cpus: tuple[int, ...]
    threads: int
    node: int = 0


@dataclass
class Leases:
    """Shares and the locks that keep them; `notes` are lines for the user.

    Locks hold until `close`, or the process's end.
    """

    shares: list[Share]
    notes: list[str] = field(default_factory=list)
    locks: list[int] = field(default_factory=list)

    def close(self) -> None:
        """Let others lease the cores."""
        while self.locks:
            os.close(self.locks.pop())


def leases_dir() -> Path:
    """Return the folder of the locks; a home that machines share has one for each."""
    return cache_dir() / "cores" / socket.gethostname()


def default_instances(threads: int | None = None, system: Path = SYSTEM) -> int:
    """Return an engine for each NUMA node of this process; one, if their threads do not fit."""
    from suffice import native

    cores = found(os.sched_getaffinity(0), system)
    count = len({core.node for core in cores})
    least = min(len(_whole(part)) for part in split(cores, count))
    return count if (threads or 1) <= min(native.cores() // count, least) else 1


def lease(
    count: int,
    threads: int | None = None,
    *,
    system: Path = SYSTEM,
    folder: Path | None = None,
    allowed: Iterable[int] | None = None,
    quota: int | None = None,
) -> Leases:
    """Lease cores for `count` engines of `threads` threads each; None: a thread for each core.

    `folder` is that of the locks, `allowed` are the processors of this process, and `quota` is the
    number of them whose time it may use. With less time than processors nothing is leased or
    pinned to single cores: which of them are free is not known then.

    Raises:
        OptionError: There are fewer processors than engines, or than their threads.
    """
    from suffice import native

    cores = found(os.sched_getaffinity(0) if allowed is None else allowed, system)
    usable = native.cores() if quota is None else quota
    if count > usable:
        raise OptionError("instances", count, f"must be at most the {usable} cores available")
    least = min(len(_whole(part)) for part in split(cores, count))
    most = min(usable // count, least)
    if threads is not None and not 1 <= threads <= most:
        each = "" if count == 1 else f" for each of {count} instances"
        limit = f"must be between 1 and {most}{each}: {usable} cores are available"
        raise OptionError("threads", threads, limit)
    if usable < sum(len(core.cpus) for core in cores):
        return Leases(_loose(cores, count, threads or most))
    return _leased(cores, count, threads, leases_dir() if folder is None else folder)


def _loose(cores: Sequence[Core], count: int, threads: int) -> list[Share]:
    """Return shares whose threads may move among all cores of a part; one engine's among all."""
    parts = split(cores, count)
    return [Share(_whole(part) * (count > 1), threads, part[0].node) for part in parts]


def _leased(cores: Sequence[Core], count: int, threads: int | None, folder: Path) -> Leases:
    with contextlib.ExitStack() as selecting:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            selecting.enter_context(_turn(folder / "selecting"))
            locks = {core: _lock(folder / str(min(core.cpus))) for core in cores}
        except OSError as error:
            note = f"{folder}: {error.strerror}: cores are not leased, other servers may take them"
            return Leases(_shares(cores, count, threads), [note])
        free = [core for core in cores if locks[core] is not None]
        notes = []
        if len(free) < len(cores):
            notes = [_note(cores, free, count, threads, folder)]
        if _suffice(free, count, threads) or len(free) == len(cores):
            chosen = _shares(free, count, threads)
            taken = {cpu for share in chosen for cpu in share.cpus}
        else:
            chosen = _loose(cores, count, threads or max(1, len(cores) // count))
            taken = {cpu for core in cores for cpu in core.cpus}
        held = []
        for core, lock in locks.items():
            if lock is not None and taken.isdisjoint(core.cpus):
                os.close(lock)
            elif lock is not None:
                os.truncate(lock, 0)
                os.write(lock, f"{os.getpid()}\n".encode())
                held.append(lock)
    return Leases(chosen, notes, held)


def _suffice(free: Sequence[Core], count: int, threads: int | None) -> bool:
    """Return whether each engine gets threads of its own on free cores, or a core at least."""
    parts = split(free, count)
    return len(parts) == count and min(len(_whole(part)) for part in parts) >= (threads or 1)


def _note(
    cores: Sequence[Core], free: Sequence[Core], count: int, threads: int | None, folder: Path
) -> str:
    """Return a line that says who has which cores, and what that means here."""
    busy = [core for core in cores if core not in free]
    holders = sorted({_holder(folder / str(min(core.cpus))) for core in busy})
    who = f"process{'es' * (len(holders) > 1)} {', '.join(holders)}"
    held = f"{len(busy)} of {len(cores)} cores are leased by {who}"
    if _suffice(free, count, threads):
        return f"{held}: this server has the others"
    return (
        f"{held}: too few are left, so this server shares them and both are slower; give each "
        "server fewer by --instances and -t"
    )


def _shares(cores: Sequence[Core], count: int, threads: int | None) -> list[Share]:
    """Return shares of cores; the first threads of cores come first, then the second ones."""
    shares = []
    for part in split(cores, count):
        size = len(part) if threads is None else threads
        by_turn = sorted(
            (turn, at, cpu) for at, core in enumerate(part) for turn, cpu in enumerate(core.cpus)
        )
        cpus = sorted(cpu for _, _, cpu in by_turn[:size])
        shares.append(Share(tuple(cpus), size, part[0].node))
    return shares


def found(allowed: Iterable[int], system: Path = SYSTEM) -> list[Core]:
    """Return the cores to which some processors belong, in order of their nodes.

    What the system does not tell counts as a core of its own, on node 0. Processors that are off
    are left out.
    """
    left, cores = set(allowed), []
    left &= _numbers(system / "cpu/online") or left
    places = _nodes(system)
    for cpu in sorted(left):
        if cpu not in left:
            continue
        path = system / f"cpu/cpu{cpu}/topology/thread_siblings_list"
        siblings = (_numbers(path) or {cpu}) & left
        left -= siblings
        cores.append(Core(places.get(cpu, 0), tuple(sorted(siblings | {cpu}))))
    return sorted(cores, key=lambda core: (core.node, core.cpus))


def split(cores: Sequence[Core], count: int) -> list[Sequence[Core]]:
    """Return the cores of `count` shares, of about the same size."""
    if count > len(cores):
        cores = [Core(core.node, (cpu,)) for core in cores for cpu in core.cpus]
    by_node: dict[int, list[Core]] = {}
    for core in cores:
        by_node.setdefault(core.node, []).append(core)
    groups = list(by_node.values())
    if count < len(groups):
        joined = _parts(groups, count)
        return [[core for own in part for core in own] for part in joined]
    given = _allotted([len(group) for group in groups], count)
    return [part for group, n in zip(groups, given, strict=True) for part in _parts(group, n)]


def _allotted(sizes: Sequence[int], count: int) -> list[int]:
    """Return how many shares each node has: at least one, and most where most cores are left."""
    given = [1] * len(sizes)
    while sum(given) < count:
        open_ = [at for at, size in enumerate(sizes) if given[at] < size]
        if not open_:
            break
        given[max(open_, key=lambda at: sizes[at] / (given[at] + 1))] += 1
    return given


def _parts(items: Sequence[T], count: int) -> list[Sequence[T]]:
    size = len(items)
    return [items[at * size // count : (at + 1) * size // count] for at in range(count)]


def _whole(part: Sequence[Core]) -> tuple[int, ...]:
    return tuple(sorted(cpu for core in part for cpu in core.cpus))


@contextlib.contextmanager
def _turn(path: Path) -> Iterator[None]:
    """Wait until no other process selects cores."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _lock(path: Path) -> int | None:
    """Return the descriptor of a file that this process has locked now; None if another has."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _holder(path: Path) -> str:
    """Return the process that wrote itself into a file that it has locked."""
    with contextlib.suppress(OSError):
        return path.read_text(encoding="ascii").strip() or "?"
    return "?"


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
