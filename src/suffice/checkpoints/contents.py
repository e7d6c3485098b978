"""A hash of all bytes of files, which is remembered for as long as the files are the same.

`files.fingerprint` tells models apart by the ends of their files. Where a wrong model would give a
wrong text, as rows of keys on disk would, that is too little: a training may change the middle
alone. To hash everything takes about a second for each GiB, once: later starts find the hash by
what the system says of the file, whose time of change nobody can set.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable
from pathlib import Path

from suffice.checkpoints.files import weight_files
from suffice.errors import InputError
from suffice.paths import cache_dir, write_whole
from suffice.progress import status

_PART = 1 << 20  # bytes that are read at a time
_DIGITS = 64  # hexadecimal, of a hash


def folder() -> Path:
    """Return the folder of hashes, which need not exist."""
    return cache_dir() / "contents"


Seen = tuple[int, ...]


def model_files(path: Path) -> list[Path]:
    """Return the files of a model that its rows depend on."""
    settings = [path / "config.json"] if path.is_dir() else []
    return settings + weight_files(path)


def seen(files: Iterable[Path]) -> tuple[Seen, ...]:
    """Return what the system says of files; it differs once one of them has changed.

    Raises:
        InputError: A file cannot be read.
    """
    try:
        return tuple(_seen(file) for file in files)
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}") from None


def _seen(file: Path) -> Seen:
    about = file.stat()
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


def contents(files: Iterable[Path]) -> str:
    """Return a hash of the bytes of files, in their order.

    Raises:
        InputError: A file cannot be read.
    """
    whole = hashlib.sha256()
    for file in files:
        try:
            whole.update(_contents(file.resolve()).encode())
        except OSError as error:
            raise InputError(f"{error.filename}: cannot be read: {error.strerror}") from None
    return whole.hexdigest()


def _contents(file: Path) -> str:
    named = hashlib.blake2b(f"{file} {_seen(file)}".encode(), digest_size=16).hexdigest()
    known = folder() / named
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if len(found := known.read_text(encoding="ascii")) == _DIGITS:
            return found
    found = _hashed(file, file.stat().st_size)
    with contextlib.suppress(OSError):  # the next start hashes again
        known.parent.mkdir(parents=True, exist_ok=True)
        with write_whole(known) as part:
            part.write_text(found, encoding="ascii")
    return found


def _hashed(file: Path, size: int) -> str:
    hashed, done = hashlib.sha256(), 0
    with file.open("rb") as stream, status(f"hashing {file.name}") as report:
        while part := stream.read(_PART):
            hashed.update(part)
            done += len(part)
            report(done / max(size, 1))
    return hashed.hexdigest()
