"""A folder of blocks that several processes read and write at the same time.

Nothing in it is needed: a block that cannot be read is computed, and one that cannot be written is
not kept. So nothing here raises once the folder is open; what failed is counted. There are no
locks, which a killed process would leave and other hosts would not see: a block appears as a whole
by being renamed, and who reads one that is removed meanwhile has it open already.

Blocks are named by a hash with the folder's secret, so the names tell nobody what was asked. A
block's time is that of its last use; the oldest go first, and of one text its end before its
beginning, without which the end serves nobody. So a block that is written has the time when its
text began, less the more of it precedes: of a text that is larger than the folder the beginning
stays.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from suffice.cache.block_file import NAME, UNFINISHED, Block, write
from suffice.errors import InputError, OptionError
from suffice.paths import PRIVATE, PRIVATE_FOLDER, make_private_folder, private_folder_fault

SUFFIX = ".block"
_LABEL = ".txt"
SECRET = "secret"  # the file's name
LEAST_SECRET = 16  # bytes
_SPARE = 64 << 20  # bytes of the disk that stay free for others
_PAUSE = 10.0  # seconds without another try after a write has failed
_DEAD = 3600.0  # seconds after which an unfinished file is nobody's any more
_KEPT = 0.9  # share of the limit that is kept when there is too much
_SHARDS = 256
_log = logging.getLogger(__name__)
ORDER = 1000  # nanoseconds between the times of two blocks that follow each other


@dataclass
class Counts:
    """What was done with the folder since it was opened.

    `damaged`: files that did not hold the block whose name they had, which were removed. `failed`:
    blocks that could not be read or written. `removed`: for their age, or for room.
    """

    read: int = 0
    read_bytes: int = 0
    written: int = 0
    written_bytes: int = 0
    damaged: int = 0
    failed: int = 0
    removed: int = 0


class BlockFolder:
    """A folder of at most `limit` bytes, of blocks that were used within `max_age` seconds.

    None is no limit. Several threads may use it, but only one writes and removes.

    Raises:
        InputError: The folder cannot be used, or others can open it; or there is no good secret.
    """

    def __init__(
        self,
        path: Path,
        *,
        limit: int | None = None,
        max_age: float | None = None,
        secret: Path | None = None,
    ) -> None:
        self.path = path
        self.counts = Counts()
        self._counting = threading.Lock()
        self.bytes = 0  # of all files, as far as it is known
        self._limit, self._max_age = limit, max_age
        self._paused_until = 0.0
        self._labelled: set[bytes] = set()
        _make_private(path)
        text = _secret(path) if secret is None else _given_secret(secret)
        self.key = hashlib.blake2b(text, digest_size=32).digest()
        self._own = text if secret is None else None  # the secret that is in the folder
        self._device = path.stat().st_dev
        self._gone = self._failing = False

    def place(self, name: bytes) -> Path:
        """Return where a block's file is, if it is kept."""
        text = name.hex()
        return self.path / text[:2] / f"{text}{SUFFIX}"

    def has(self, name: bytes, size: int) -> bool:
        """Whether there is a file of a block, of this size; one of another size is removed."""
        try:
            about = os.stat(self.place(name))  # noqa: PTH116 (half the time, and they are many)
        except OSError:
            return False
        if about.st_size != size:
            self.discard(name)
        return about.st_size == size

    @contextlib.contextmanager
    def opened(self, name: bytes) -> Iterator[int | None]:
        """Yield the descriptor of a block's file; None if it is not there."""
        try:
            file = os.open(self.place(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            file = None
        try:
            yield file
        finally:
            if file is not None:
                os.close(file)

    def discard(self, name: bytes) -> None:
        """Remove a damaged block."""
        with self._counting:
            self.counts.damaged += 1
        _remove(self.place(name))

    def fail(self) -> None:
        """Count a block that could not be read or written."""
        with self._counting:
            self.counts.failed += 1

    def label(self, owner: bytes, text: str) -> None:
        """Say in words what an owner is, for those who look through the folder."""
        if owner in self._labelled:
            return
        self._labelled.add(owner)
        path = self.path / f"{owner.hex()}{_LABEL}"
        with contextlib.suppress(OSError):
            if not path.exists():
                _unfinished(path, text.encode()).rename(path)

    def used(self, names: Sequence[bytes]) -> None:
        """Note that blocks of one text, in its order, are used now."""
        now = time.time_ns()
        for at, name in enumerate(names):
            with contextlib.suppress(OSError):
                os.utime(self.place(name), ns=(now - at * ORDER, now - at * ORDER))

    def write(self, block: Block) -> None:
        """Keep a block, unless it is kept already or there is no room for it."""
        path = self.place(block.place.name)
        if self.has(block.place.name, block.size) or time.monotonic() < self._paused_until:
            return
        if self._limit is not None and block.size > self._limit:
            return
        try:
            self._find()
            left = os.statvfs(self.path)
            if left.f_bavail * left.f_frsize < block.size + _SPARE:
                raise OSError("the disk is full")
            with contextlib.suppress(FileExistsError):
                path.parent.mkdir(PRIVATE_FOLDER)
            write(path, block)
        except (OSError, InputError) as error:
            self.fail()
            self._pause()
            self._warn(error)
            return
        self._failing = False
        self.bytes += block.size
        self.counts.written += 1
        self.counts.written_bytes += block.size
        if self._limit is not None and self.bytes > self._limit:
            self.prune()

    def _pause(self) -> None:
        self._paused_until = time.monotonic() + _PAUSE

    def _warn(self, error: Exception) -> None:
        """Say why nothing is written, once until something is written again."""
        if not self._failing:
            reason = (isinstance(error, OSError) and error.strerror) or error
            _log.warning("prefix_dir=%s: blocks are not written: %s", self.path, reason)
        self._failing = True

    def _find(self) -> None:
        """Make a folder that vanished again, with its secret, at the second call that misses it.

        Raises:
            OSError: It has just vanished, or a disk with it; or another has been put in its place.
            InputError: It cannot be made, or others can open it.
        """
        there = self.path.exists()
        if there and not self._gone:
            return
        if not self._gone:
            self._gone, self.bytes = True, 0
            raise OSError("it has vanished, and is made again if it was no other disk")
        if not there and self.path.parent.stat().st_dev != self._device:
            raise OSError("it was on another disk")
        _make_private(self.path)
        if self._own is not None:
            if not (self.path / SECRET).exists():
                _make_secret(self.path / SECRET, self._own)
            if _secret(self.path) != self._own:
                raise OSError("it has another secret")
        self._gone = False
        self._labelled.clear()
        self.prune()  # and count what there is

    def prune(self) -> list[OSError]:
        """Remove what is too old, and what was used longest ago, until the rest is in the limit.

        Returns why files could not be removed.
        """
        failed: list[OSError] = []
        found = sorted(files(self.path), key=lambda each: each.used)
        now, self.bytes = time.time(), sum(each.size for each in found)
        most = self.bytes if self._limit is None else self._limit
        if self.bytes > most:
            most = int(_KEPT * most)
        for each in found:
            age = now - each.used
            old = self._max_age is not None and age > self._max_age
            if self.bytes > most or old or (not each.whole and age > _DEAD):
                try:
                    each.path.unlink()
                    self.counts.removed += each.whole
                except FileNotFoundError:  # another process was first
                    pass
                except OSError as error:
                    failed.append(error)
                    continue
                self.bytes -= each.size
            elif age < -_DEAD:  # a clock was wrong: it would be the newest for ever
                with contextlib.suppress(OSError):
                    os.utime(each.path)
        if self._limit is not None and self.bytes > self._limit:
            self._pause()  # or it would grow without end
        return failed


@dataclass(frozen=True)
class Found:
    """A file of a folder: `used` is when it was last used, in seconds since the epoch.

    `whole`: it is no unfinished one.
    """

    path: Path
    size: int
    used: float
    whole: bool


def files(folder: Path) -> Iterator[Found]:
    """Yield a folder's blocks and its unfinished files; others are not ours."""
    for shard in range(_SHARDS):
        try:
            entries = list(os.scandir(folder / f"{shard:02x}"))
        except OSError:
            continue
        for entry in entries:
            whole = entry.name.endswith(SUFFIX) and len(entry.name) == 2 * NAME + len(SUFFIX)
            if not whole and not (SUFFIX in entry.name and entry.name.endswith(UNFINISHED)):
                continue
            with contextlib.suppress(OSError):
                about = entry.stat(follow_symlinks=False)
                if not stat.S_ISREG(about.st_mode):
                    continue
                yield Found(Path(entry.path), about.st_size, about.st_mtime, whole)


def label_of(folder: Path, owner: bytes) -> str:
    """Return what `BlockFolder.label` said of an owner; "" if nothing is known."""
    try:
        return (folder / f"{owner.hex()}{_LABEL}").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def is_folder_of_blocks(folder: Path) -> bool:
    """Whether a folder is one that `BlockFolder` made."""
    return (folder / SECRET).is_file() or any(True for _ in files(folder))


def _make_private(path: Path) -> None:
    """Make a folder that only this user can open, or check one.

    Raises:
        InputError: It cannot be made, or others can open it.
    """
    fault = private_folder_fault(str(path))
    if fault is not None and not is_folder_of_blocks(path):
        raise OptionError("prefix_dir", str(path), fault)
    try:
        make_private_folder(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"prefix_dir={path}: cannot be made or opened: {reason}") from None


def _secret(folder: Path) -> bytes:
    """Return the secret that is kept in a folder; the first process makes it.

    Raises:
        InputError: It cannot be read or made.
    """
    path = folder / SECRET
    try:
        if not path.exists():
            _make_secret(path, secrets.token_hex(32).encode())
        return _checked(path.read_bytes(), path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"prefix_dir={folder}: its file '{SECRET}': {reason}") from None


def _make_secret(path: Path, secret: bytes) -> None:
    """Write a secret whole, unless another process does so first."""
    part = _unfinished(path, secret)
    try:
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(part)  # a rename would replace another's
    finally:
        _remove(part)


def _unfinished(path: Path, data: bytes) -> Path:
    """Write a private file next to `path`, to be renamed; return it."""
    part = path.with_name(f"{path.name}-{secrets.token_hex(8)}{UNFINISHED}")
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE)
    try:
        os.write(file, data)
        os.fsync(file)  # a lost secret would lose all blocks
    finally:
        os.close(file)
    return part


def _given_secret(path: Path) -> bytes:
    """Return the secret in a file that the user names.

    Raises:
        InputError: It cannot be read, or is too short.
    """
    try:
        return _checked(path.expanduser().read_bytes(), path)
    except OSError as error:
        raise InputError(f"prefix_secret={path}: {error.strerror or error}") from None


def _checked(secret: bytes, path: Path) -> bytes:
    text = secret.strip()
    if len(text) < LEAST_SECRET:
        must = f"the secret must have at least {LEAST_SECRET} bytes, not {len(text)}"
        raise InputError(f"{path}: {must}")
    return text


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
