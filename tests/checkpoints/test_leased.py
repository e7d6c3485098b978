"""Files that are mapped while nobody can cut them; tests leased.py and decoder/mapping.py."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suffice.checkpoints import leased
from suffice.decoder import mapping


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leased, "AFTER", 0)


def test_a_file_that_is_mapped_cannot_be_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(range(256)) * 100)
    go, settle = threading.Event(), leased._settle

    def settle_later(*given: Any) -> None:
        go.wait()
        settle(*given)

    monkeypatch.setattr(leased, "_settle", settle_later)
    memory = leased.mapped(os.open(path, os.O_RDONLY), path.stat().st_size)
    if memory is None:
        pytest.skip("this file system has no leases")
    with pytest.raises(BlockingIOError):
        os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    go.set()
    os.truncate(path, 0)  # waits for the end of the lease
    assert memory.tobytes() == bytes(range(256)) * 100


def test_a_file_of_another_size_or_being_written_is_not_mapped(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"x" * 5000)
    assert leased.mapped(os.open(path, os.O_RDONLY), 9000) is None
    with path.open("r+b"):
        assert leased.mapped(os.open(path, os.O_RDONLY), 5000) is None


def test_a_file_that_is_not_all_in_memory_is_not_mapped(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with path.open("wb") as file:
        file.write(bytes(3 * mapping.HUGE))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), mapping.HUGE, mapping.HUGE, os.POSIX_FADV_DONTNEED)
    assert leased.mapped(os.open(path, os.O_RDONLY), 3 * mapping.HUGE) is None


def test_a_mapping_is_replaced_under_who_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapping, "PIECE", mapping.HUGE)
    path, size = tmp_path / "x", 3 * mapping.HUGE + 5000
    data = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    data.tofile(path)
    descriptor = os.open(path, os.O_RDONLY)
    mapped = mapping.map_file(descriptor, 0, size, mapping.PROT_READ)
    os.close(descriptor)
    ended, seen = threading.Event(), []

    def read() -> None:
        while not ended.is_set():
            seen.append(np.array_equal(mapped, data))

    reader = threading.Thread(target=read)
    reader.start()
    mapping.to_private(mapped)
    ended.set()
    reader.join()
    os.truncate(path, 0)
    assert seen and all(seen) and np.array_equal(mapped, data)


def test_a_mapping_lasts_to_the_end_of_the_process(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    code = (
        "import atexit, os, sys\n"
        "atexit.register(lambda: print(mapped.tobytes().decode()))\n"  # after all later ones
        "from suffice.decoder import mapping\n"
        "mapped = mapping.map_file(os.open(sys.argv[1], os.O_RDONLY), 0, 3, mapping.PROT_READ)"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, b"abc\n")
