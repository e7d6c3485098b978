"""A file that is mapped while nobody can cut it, and that soon is a copy in memory.

The read of a mapped file ends the process with SIGBUS where another program has cut it. A lease
(`fcntl`) keeps others from that: the system makes who opens the file for writing, or cuts it, wait
until the lease ends. So a file is mapped under a lease, and a thread replaces the mapping by memory
of this process, with huge pages, once a first token had its time; then the lease ends. What uses
the mapping need not wait for that.

A disk that fails would be SIGBUS, too. So only a file that the system has in memory is mapped; of
another one, the disk is what takes the time, and a read is as fast.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
import time

import numpy as np

from suffice.decoder.mapping import (
    MADV_POPULATE_READ,
    PROT_READ,
    address_of,
    libc,
    map_file,
    to_private,
)
from suffice.decoder.pages import HUGE

AFTER = 2.0  # seconds, in which a first token need not share the memory's bandwidth
NICENESS = 10  # of the thread: it takes what is left over, and a tenth of a core that is not


def mapped(descriptor: int, size: int) -> np.ndarray | None:
    """Return a file of `size` bytes as it is mapped; None if it has no lease or is not in memory.

    Not every file system has leases; only who owns a file gets one, while nobody can write it. The
    descriptor is closed when the lease ends.
    """
    try:
        # The signal that somebody waits: one that is ignored, as SIGIO is not.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        whole = os.fstat(descriptor).st_size == size and _is_in_memory(descriptor, size)
        memory = map_file(descriptor, 0, size, PROT_READ) if whole else None
    except (OSError, AttributeError):  # a system without leases lacks their names, too
        memory = None
    if memory is None:
        os.close(descriptor)
    else:
        given = memory, descriptor
        threading.Thread(target=_settle, args=given, name="packed file", daemon=True).start()
    return memory


def _is_in_memory(descriptor: int, size: int) -> bool:
    """Return whether the system has a file's pages in memory: a byte of each huge page is asked."""
    byte = bytearray(1)
    try:
        return all(
            os.preadv(descriptor, [byte], at, os.RWF_NOWAIT) == 1 for at in range(0, size, HUGE)
        )
    except BlockingIOError:
        return False


def _settle(memory: np.ndarray, descriptor: int) -> None:
    """Replace a mapping and end its lease; the lease stays as long as the mapping does."""
    libc().madvise(address_of(memory), memory.nbytes, MADV_POPULATE_READ)
    time.sleep(AFTER)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)  # of this thread
        to_private(memory)
        os.close(descriptor)
