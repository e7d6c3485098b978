"""Engine processes for tests, forked from one that has imported what they need.

An engine's process takes most of its start to import, and tests start hundreds. What is forked is a
process like any other: it has its own link, environment and end. Its parent is the test's process,
as of one that `subprocess` starts: it is forked twice, and the orphan is given to the next
ancestor that takes orphans (`PR_SET_CHILD_SUBREAPER`), which the test's process does meanwhile.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

_SUBREAPER = 36  # of prctl(2)
_PASSED = ("SUFFICE_CACHE", "PYTHONPATH")  # read later, or known
_LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_AS)


class Grown(subprocess.Popen):  # type: ignore[type-arg]
    """A child that another process has forked for this one."""

    def __init__(self, pid: int) -> None:
        self.pid, self.args, self.returncode = pid, "an engine", None
        self.stdin = self.stdout = self.stderr = None
        self._child_created = True
        self._waitpid_lock = threading.Lock()
        self._sigint_wait_secs = 0.25


class Nursery:
    """Forks engine processes; used by one thread at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl
        self._link, theirs = socket.socketpair()
        command = [sys.executable, __file__, str(theirs.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        self._settings = _settings()

    def suits(self) -> bool:
        """Whether what was imported has read the environment as it is now."""
        return self._settings == _settings()

    def started(self, link: int, memory: int | None) -> subprocess.Popen[bytes]:
        """Start an engine's process, as `suffice.serve.processes.life.started` does."""
        given = [link] if memory is None else [link, memory]
        wish = {
            "environ": dict(os.environ),
            "folder": str(Path.cwd()),
            "cores": sorted(os.sched_getaffinity(0)),
            "limits": [resource.getrlimit(each) for each in _LIMITS],
        }
        text = json.dumps(wish).encode()
        with self._lock:
            self._prctl(_SUBREAPER, 1, 0, 0, 0)
            try:
                passed = array.array("i", [1, 2, *given])
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)
                self._link.sendmsg([len(text).to_bytes(4, "little")], [rights])
                self._link.sendall(text)
                pid = int.from_bytes(_received(self._link, 4), "little")
            finally:
                self._prctl(_SUBREAPER, 0, 0, 0, 0)
        return Grown(pid)

    def close(self) -> None:
        self._link.close()
        self._process.wait()


def _settings() -> dict[str, str]:
    """What is read from the environment when modules are imported."""
    parts = ("SUFFICE_", "PYTHON", "OMP_", "OPENBLAS_", "LD_")
    found = {name: value for name, value in os.environ.items() if name.startswith(parts)}
    return {name: value for name, value in found.items() if name not in _PASSED}


def _received(link: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = link.recv(count - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def _serve(link: socket.socket) -> None:
    """Fork a process for each message, until the other side closes the link."""
    import gc

    import scripted_engine  # noqa: F401
    import suffice.serve.processes.model  # noqa: F401
    from suffice.serve.processes import engine_process

    engine_process.BEAT_SECONDS = 0.1  # tests wait for what beats tell
    gc.freeze()
    while True:
        head, passed, *_ = socket.recv_fds(link, 4, 4)
        if not head:
            return
        wish = json.loads(_received(link, int.from_bytes(head, "little")))
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid == 0:
                link.close()
                os.close(reading)
                os.close(writing)
                _live(passed, wish)
            os.write(writing, pid.to_bytes(4, "little"))
            os._exit(0)
        os.close(writing)
        os.waitpid(between, 0)
        link.sendall(os.read(reading, 4))
        for each in (reading, *passed):
            os.close(each)


def _live(passed: list[int], wish: dict[str, Any]) -> None:
    """Be an engine's process, to its end."""
    from suffice.serve.processes import engine_process

    nothing = os.open(os.devnull, os.O_RDONLY)
    for found, wanted in zip((nothing, *passed[:2]), range(3), strict=True):
        os.dup2(found, wanted)
        os.close(found)
    os.environ.clear()
    os.environ.update(wish["environ"])
    os.chdir(wish["folder"])
    os.sched_setaffinity(0, wish["cores"])
    for kind, (soft, hard) in zip(_LIMITS, wish["limits"], strict=True):
        resource.setrlimit(kind, (soft, hard))
    code = 1
    try:
        engine_process.main([*map(str, passed[2:])])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _serve(socket.socket(fileno=int(sys.argv[1])))
