"""One thread that writes blocks to their folder, and when they were used, in order, in spare time.

Who computes copies rows into its queue, which takes thousandths of computing them, and goes on. A
queue that is full takes no more: then rows are offered again later, or are not kept.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from suffice.cache.block_file import Block
from suffice.cache.block_folder import BlockFolder

MOST_BYTES = 64 << 20  # that wait; a block that is larger waits alone
LOWEST = 19  # niceness of the thread
_SPARE = 8  # blocks whose memory is kept
_LOOK = 600.0  # seconds after which the folder is looked through again: others write there, too
_END = 10.0  # seconds that the end of the process waits for what is left

_open: weakref.WeakSet[WriteBehind] = weakref.WeakSet()


@atexit.register
def _write_rest() -> None:
    for each in list(_open):
        each.flush(_END)


class WriteBehind:
    """The writer of a folder."""

    def __init__(self, folder: BlockFolder) -> None:
        self._folder = folder
        self._queue: deque[Block | Sequence[bytes]] = deque()
        self._bytes = 0
        self._spare: list[NDArray[np.uint8]] = []
        self._wake = threading.Condition()
        self._writing = threading.Lock()  # one at a time, in order
        self._thread = threading.Thread(target=_run, args=(weakref.ref(self),), daemon=True)
        self._thread.name = "suffice-prefix-writer"
        self._thread.start()
        _open.add(self)

    @property
    def has_room(self) -> bool:
        """Whether it takes a block now."""
        return self._bytes < MOST_BYTES

    def spare(self, size: int) -> NDArray[np.uint8] | None:
        """Return memory of a block that has been written: to map new memory takes longer than to
        copy rows into it. None if there is none.
        """
        with self._wake:
            return self._spare.pop() if self._spare and len(self._spare[-1]) == size else None

    def put(self, block: Block) -> None:
        """Write a block later."""
        with self._wake:
            self._queue.append(block)
            self._bytes += block.size
            self._wake.notify_all()

    def used(self, names: Sequence[bytes]) -> None:
        """Note later, when what waits is written, that blocks were used; see `BlockFolder.used`."""
        with self._wake:
            self._queue.append(names)
            self._wake.notify_all()

    def flush(self, seconds: float) -> None:
        """Write what waits, in the caller's thread, for at most so long."""
        ends = time.monotonic() + seconds
        while self.write_one() and time.monotonic() < ends:
            pass

    def write_one(self) -> bool:
        """Write the first that waits; return whether there was one."""
        with self._writing:
            with self._wake:
                if not self._queue:
                    return False
                first = self._queue.popleft()
            if isinstance(first, Block):
                self._write(first)
            else:
                self._folder.used(first)
        return True

    def _write(self, block: Block) -> None:
        try:
            self._folder.write(block)
        finally:
            with self._wake:
                self._bytes -= block.size
                if block.state is None and len(self._spare) < _SPARE:
                    self._spare.append(block.rows.data)

    def wait(self, seconds: float) -> None:
        """Wait until there is something to write, for at most so long."""
        with self._wake:
            self._wake.wait_for(lambda: self._queue, seconds)

    def look(self) -> None:
        """Look through the folder, and remove what is too old or too much."""
        with self._writing:
            self._folder.prune()


def _run(mine: weakref.ref[WriteBehind]) -> None:
    """Write as long as anybody has the writer."""
    with contextlib.suppress(OSError):
        os.nice(LOWEST)  # of this thread
    looked = -_LOOK
    while (own := mine()) is not None:
        if time.monotonic() - looked >= _LOOK:
            own.look()
            looked = time.monotonic()
        while own.write_one():
            pass
        own.wait(1.0)
        del own
