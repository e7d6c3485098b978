"""Measured rates of this machine: copying a cache, computing on it and reading memory.

`measure` measures them once, and `machine.json` in suffice's cache folder keeps them. The growth
policy `bmc` balances copies against matmuls by them. Without a measurement `DEFAULT` is used, and
`info` reports that.

Source   Ramachandran et al., section VIII-A: "empirically we measure the achieved bandwidth for
         data copying and compute performance", C' = aBW / (2 bC).
"""

from __future__ import annotations

import dataclasses
import json
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from suffice.cache import Growth, alike, with_defaults
from suffice.cache.cost import (
    GrowthCosts,
    best_allocations,
    kernel_rows,
    nearest_power_of_two,
    spare_rows,
)
from suffice.errors import InputError
from suffice.paths import cache_dir, write_whole

if TYPE_CHECKING:
    from suffice.cache.kv import KVCache

SCHEMA = 2
LENGTHS = tuple(2**power for power in range(7, 18))  # 128 .. 131072
ELEMENT_BYTES = 4  # the model's reference element, float32
Progress = Callable[[str, int, int], None]

_HEADS, _ROWS, _SIZE, _SPARE = 128, 1024, 128, 64  # 128 MiB, more than most CPU caches
_READ_BYTES = 256 << 20
_REPEATS = 5


@dataclass(frozen=True)
class Machine:
    """Rates achieved on one machine with a number of threads."""

    cpu: str
    threads: int
    copy_bytes_per_second: float  # growing a cache: allocate, copy; bytes read plus bytes written
    products_per_second: float  # multiply-adds of one query row against float32 keys and values
    read_bytes_per_second: float  # streaming read, all threads
    read_bytes_per_second_one: float  # streaming read, one thread
    measured: str | None = None  # UTC date; None: the defaults

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name.endswith(("_second", "_one", "threads")) and not value > 0:
                raise InputError(f"{field.name}={value} must be positive")

    @property
    def ratio(self) -> float:
        """C' of Eq. 7: the best number of allocations is sqrt(C' N)."""
        return self.copy_bytes_per_second / ELEMENT_BYTES / (2 * self.products_per_second)

    @property
    def copy_cost(self) -> float:
        """Rows of a cache that are read in the time in which a growth moves one: c of cost.py."""
        return 2 * self.read_bytes_per_second / self.copy_bytes_per_second


# C' = 0.1, as the paper measured on a 96-core server; the rates are of a small desktop.
DEFAULT = Machine(
    cpu="default",
    threads=1,
    copy_bytes_per_second=8e9,
    products_per_second=10e9,
    read_bytes_per_second=20e9,
    read_bytes_per_second_one=10e9,
)


class Allocations(NamedTuple):
    """One line of the calibration table."""

    limit: int  # N, rows
    exact: float  # T of Eq. 6, not rounded
    allocations: int  # T, a power of two
    rows: int  # r
    kernel_rows: int  # r of the native kernel


def path() -> Path:
    """Return the path of the measurement's file, which need not exist."""
    return cache_dir() / "machine.json"


def cpu_name() -> str:
    """Return the system's name of the processor."""
    for line in _cpuinfo():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def load() -> Machine | None:
    """Return this machine's measurement; None if it was never measured.

    A file of another schema or processor counts as never measured.

    Raises:
        InputError: The file exists but cannot be read or is not a measurement.
    """
    try:
        stored = json.loads(path().read_text(encoding="utf-8"))
        if stored["schema"] != SCHEMA or stored["machine"]["cpu"] != cpu_name():
            return None
        return Machine(**stored["machine"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"'{path()}' cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):  # ValueError: not JSON, or a rate out of range
        raise InputError(
            f"'{path()}' is not a machine measurement: measure again with "
            "'suffice info --measure' or delete the file"
        ) from None


def load_or_default() -> Machine:
    """Return this machine's measurement, or `DEFAULT`, whose `measured` is None."""
    return load() or DEFAULT


def fitted_to_kernel(growth: Growth) -> Growth:
    """Return a growth policy fitted to this machine and to the native kernel.

    Eq. 8's G and Q count as 1: the kernel reads a key once for its group, in its storage type, so
    matmuls get cheaper by the same factors as copies.
    """
    return with_defaults(growth, copy_cost=load_or_default().copy_cost, group=1, shrink=1.0)


def save(machine: Machine) -> None:
    """Write a measurement; readers see the old file or the new one, never a part.

    Raises:
        InputError: The file cannot be written.
    """
    target = path()
    text = json.dumps({"schema": SCHEMA, "machine": dataclasses.asdict(machine)}, indent=1) + "\n"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with write_whole(target) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"'{target}' cannot be written: {error.strerror}; SUFFICE_CACHE names another folder"
        ) from None


def measure(progress: Progress | None = None, threads: int | None = None) -> Machine:
    """Measure this machine in a few seconds; `save` keeps the result.

    `progress(what, done, total)` is called before each part; `threads` defaults to all cores.
    """
    from suffice import native

    count = threads or native.cores()
    parts: list[tuple[str, Callable[[], float]]] = [
        ("copies", lambda: _copy_rate(count)),
        ("products", lambda: _product_rate(count)),
        ("reads", lambda: _read_rate(count)),
        ("reads of one thread", lambda: _read_rate(1)),
    ]
    rates = []
    for done, (what, rate) in enumerate(parts):
        if progress:
            progress(what, done, len(parts))
        rates.append(rate())
    if progress:
        progress("done", len(parts), len(parts))
    today = time.strftime("%Y-%m-%d", time.gmtime())
    copies, products, reads, reads_of_one = rates
    return Machine(cpu_name(), count, copies, products, reads, reads_of_one, today)


def allocation_table(
    machine: Machine, lengths: Iterable[int] = LENGTHS, **workload: float
) -> list[Allocations]:
    """Return T and r for each context length; `workload` are fields of `cost.GrowthCosts`."""
    costs = GrowthCosts.of_ratio(machine.ratio, **workload)
    table = []
    for limit in lengths:
        exact = best_allocations(limit, costs)
        rows = spare_rows(limit, exact)
        own = kernel_rows(limit, machine.copy_cost)
        table.append(Allocations(limit, exact, nearest_power_of_two(exact), rows, own))
    return table


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []


def _seconds(work: Callable[[], Any], threads: int) -> float:
    """Return the median time of `work` after a warm-up run, on `threads` threads."""
    from suffice import native

    before = native.threads()
    native.set_threads(threads)
    try:
        work()
        times = []
        for _ in range(_REPEATS):
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
    finally:
        native.set_threads(before)
    from statistics import median  # which loads decimals and fractions, only to measure

    return median(times)


def _filled() -> KVCache:
    """Return a cache of float32 keys and values with _ROWS rows."""
    import numpy as np

    from suffice.cache.growth import Upfront
    from suffice.cache.kv import KVCache

    limit = _ROWS + (_REPEATS + 1) * _SPARE
    cache = KVCache(
        alike(1, _HEADS, _SIZE),
        growth=Upfront(),
        limit=limit,
        key_dtype="float32",
        value_dtype="float32",
    )
    cache.native.resize(_ROWS, 0)
    ones = np.ones((_HEADS, _ROWS, _SIZE), np.float32)
    cache.append(0, ones, ones)
    cache.advance(_ROWS)
    return cache


def _copy_rate(threads: int) -> float:
    cache = _filled()

    def grow() -> None:  # into new memory, so that page faults are included
        cache.native.resize(cache.capacity + _SPARE, _ROWS)

    return 2 * _ROWS * cache.row_bytes / _seconds(grow, threads)


def _product_rate(threads: int) -> float:
    import numpy as np

    cache, query = _filled(), np.ones((1, _HEADS, _SIZE), np.float32)
    visible, out = np.ones(1, np.int32), np.empty_like(query)

    def attend() -> None:  # to everything: without a window, an order, a rule and an audit
        cache.native.attend(0, _ROWS - 1, query, visible, 1.0, 0, None, out, None, None)

    return 2 * _HEADS * _ROWS * _SIZE / _seconds(attend, threads)


def _read_rate(threads: int) -> float:
    from suffice import native

    return native.read_bandwidth(_READ_BYTES, threads, _REPEATS)
