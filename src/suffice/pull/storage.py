"""What all downloads of models share: their folder, its lock, room on the disk, hashes."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from suffice.errors import InputError
from suffice.pull.catalogue import models_dir

BLOCK_BYTES = 1 << 20

Report = Callable[[str, int, int], None]
"""Called with the name of the activity, bytes done and total bytes."""


@contextlib.contextmanager
def storing(name: str) -> Iterator[None]:
    """Report errors of the file system in one line."""
    try:
        models_dir().mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise InputError(f"cannot store {name} in {models_dir()}: {error.strerror}") from None


@contextlib.contextmanager
def locked(name: str, report: Report) -> Iterator[None]:
    """Let one process at a time pull or remove a model; the others wait."""
    with (models_dir() / f".{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another pull", 0, 0)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def require_space(name: str, needed: int) -> None:
    """Require free bytes in the folder of models.

    Raises:
        InputError: There are fewer.
    """
    free = shutil.disk_usage(models_dir()).free
    if free < needed:
        raise InputError(
            f"not enough disk space for {name} in {models_dir()}: "
            f"{needed / 1e6:.0f} MB needed, {free / 1e6:.0f} MB free; set SUFFICE_CACHE to move it"
        )


def sha256(path: Path, report: Report = lambda what, done, total: None) -> str:
    """Return a file's sha256 in hexadecimal."""
    digest, total = hashlib.sha256(), path.stat().st_size
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            report("checking", file.tell(), total)
    return digest.hexdigest()
