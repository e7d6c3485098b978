"""Who writes packed weights, however the process ends that packed them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from suffice.checkpoints import packed_file, packed_store

# A process that keeps weights and ends. Its thread stops after the first piece, and a child waits
# for a file `go`; without `wait`, nobody stops.
PROGRAM = """
import os, pathlib, signal, sys, threading, time
import numpy as np
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # who runs the tests may ignore it
from suffice.checkpoints import packed_file, packed_store
folder, how = pathlib.Path(sys.argv[1]), sys.argv[2]
packed_file.WRITTEN, packed_store.LOWEST, packed_store.LOW = 1000, 0, 0
parent, write = os.getpid(), os.pwrite
first = threading.Event()

def pwrite(descriptor, data, at):
    if os.getpid() != parent:
        for _ in range(10_000):  # not for ever
            if (folder.parent / "go").exists():
                break
            time.sleep(0.01)
    elif first.is_set():
        threading.Event().wait()
    first.set()
    return write(descriptor, data, at)

os.pwrite = pwrite
weights = {"embed": np.arange(40_000, dtype=np.float32)}
place = packed_store.Place(folder / "x.packed", packed_file.Origin("k", 1000), 0, None)
place.keep(weights)
first.wait()
print("an answer", flush=True)
if how == "error":
    raise ValueError("of the caller")
if how == "wait":
    time.sleep(600)
sys.exit(3 if how == "code" else 0)
"""
ORIGIN = packed_file.Origin("k", 1000)
LONGEST = 60.0  # seconds for what takes a moment


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "kept"
    found.mkdir()
    return found


def arguments(folder: Path, how: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM, str(folder), how]


@contextlib.contextmanager
def answering(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has answered and written something, and goes on."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(arguments(folder, "wait"), text=True, **pipes) as child:
        assert child.stdout is not None and child.stdout.readline() == "an answer\n"
        try:
            yield child
        finally:
            child.kill()


def until(condition: object) -> None:
    assert callable(condition)
    last = time.monotonic() + LONGEST
    while not condition():
        assert time.monotonic() < last
        time.sleep(0.01)


@pytest.mark.parametrize(("how", "code"), [("end", 0), ("code", 3), ("error", 1)])
def test_a_process_ends_and_a_child_finishes_the_file(how: str, code: int, folder: Path) -> None:
    ran = subprocess.run(  # until nobody has its pipes open
        arguments(folder, how), capture_output=True, text=True, timeout=LONGEST, check=False
    )
    assert (ran.returncode, ran.stdout) == (code, "an answer\n")
    assert ran.stderr == "" or how == "error"
    assert not list(folder.iterdir())
    (folder.parent / "go").touch()
    path = folder / "x.packed"
    until(path.exists)
    (found,) = packed_file.read(path, ORIGIN).values()
    np.testing.assert_array_equal(found, np.arange(40_000, dtype=np.float32))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_nothing_is_left_of_a_process_that_a_signal_ends(number: int, folder: Path) -> None:
    with answering(folder) as child:
        child.send_signal(number)
        assert child.wait(LONGEST) == -number
    assert not list(folder.iterdir())
    (folder.parent / "go").touch()
    weights = {"embed": np.zeros(10, np.float32)}
    until(lambda: _is_free(folder))
    packed_store.Place(folder / "x.packed", ORIGIN, 0, None).keep(weights)
    until((folder / "x.packed").exists)


def test_ctrl_c_ends_as_elsewhere(folder: Path) -> None:
    with answering(folder) as child:
        child.send_signal(signal.SIGINT)
        assert child.wait(LONGEST) == -signal.SIGINT
    assert not list(folder.iterdir())
    (folder.parent / "go").touch()
    until((folder / "x.packed").exists)


def test_a_killed_child_leaves_nothing(folder: Path) -> None:
    with answering(folder) as child:
        child.send_signal(signal.SIGINT)
        child.wait(LONGEST)
    (other,) = _with_open_folder(folder)
    os.kill(other, signal.SIGKILL)
    until(lambda: not _with_open_folder(folder))
    assert not list(folder.iterdir())


def _is_free(folder: Path) -> bool:
    return not _with_open_folder(folder)


def _with_open_folder(folder: Path) -> list[int]:
    """Return the numbers of the processes that have a folder open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(each.readlink() == folder for each in (process / "fd").iterdir()):
                found.append(int(process.name))
    return found
