"""Counts of events in this process by Linux's perf_event_open, where the machine has them.

Virtual machines often have no counters of the processor, and then only the kernel's own: `opened`
returns None for the others.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from pathlib import Path

PAGE_FAULTS = (1, 2)  # type and configuration of an event: PERF_COUNT_SW_PAGE_FAULTS
TLB_MISSES = (3, 3 | 0 << 8 | 1 << 16)  # of the cache kind: data TLB, reads, misses
_SYSTEM_CALL = {"x86_64": 298, "aarch64": 241}
_INHERIT, _NO_KERNEL, _NO_HYPERVISOR = 1 << 1, 1 << 5, 1 << 6
_SIZE = 64  # of the first version of perf_event_attr


class Counter:
    """An event's count, summed over the threads that exist now and those that they start."""

    def __init__(self, files: list[int]) -> None:
        self._files = files

    def read(self) -> int:
        """Return the count since the start."""
        return sum(struct.unpack("q", os.read(file, 8))[0] for file in self._files)

    def close(self) -> None:
        """Stop counting."""
        for file in self._files:
            os.close(file)
        self._files = []


def opened(event: tuple[int, int]) -> Counter | None:
    """Count an event from now on; None if the machine does not count it."""
    number = _SYSTEM_CALL.get(platform.machine())
    if number is None:
        return None
    kind, config = event
    flags = _INHERIT | _NO_KERNEL | _NO_HYPERVISOR
    # type, size, config, period, what to sample, how to read, flags, and fields for other events
    wanted = struct.pack("IIQQQQQIIQ", kind, _SIZE, config, 0, 0, 0, flags, 0, 0, 0)
    call = ctypes.CDLL(None, use_errno=True).syscall
    files: list[int] = []
    for thread in Path("/proc/self/task").iterdir():
        file = call(number, wanted, int(thread.name), -1, -1, 0)
        if file < 0:
            Counter(files).close()
            return None
        files.append(file)
    return Counter(files)
