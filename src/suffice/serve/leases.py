"""Cores that no other engine of this machine has, leased for as long as a process holds them.

A core's lease is a lock on a file, which the system drops when the process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from suffice.serve.cores import SYSTEM, Core, Share, found


class Lease:
    """Some cores, until `close`.

    Attributes:
        share: What the engine may use; None if too few cores were free.
    """

    def __init__(self, threads: int, folder: Path | None = None, system: Path = SYSTEM) -> None:
        """Lease `threads` cores, of one NUMA node if one has as many that are free.

        `folder` has the files; by default one that all processes of the user find.
        """
        self._files: list[int] = []
        self.share: Share | None = None
        cores = found(os.sched_getaffinity(0), system)
        cpus: list[int] = []
        for part in _orders(cores):
            for core in part:
                if len(self._files) < threads and self._lock(core, folder or _folder()):
                    cpus += core.cpus
            if len(self._files) == threads:
                self.share = Share(tuple(sorted(cpus)), threads)
                return
            self.close()
            cpus = []

    def close(self) -> None:
        """Give the cores back."""
        for file in self._files:
            os.close(file)
        self._files = []

    def _lock(self, core: Core, folder: Path) -> bool:
        path = folder / f"core-{core.cpus[0]}.lock"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._files.append(file)
            return True
        os.close(file)
        return False


def _orders(cores: Sequence[Core]) -> list[list[Core]]:
    """Return the cores of each node, and at last those of all nodes."""
    nodes: dict[int, list[Core]] = {}
    for core in cores:
        nodes.setdefault(core.node, []).append(core)
    return [*nodes.values(), list(cores)]


def _folder() -> Path:
    path = Path(tempfile.gettempdir()) / f"suffice-cores-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    return path
