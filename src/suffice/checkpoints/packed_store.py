"""The folder of packed weights: which file is a model's, when it is written, how long it stays.

To pack a model's weights takes longer than to read them packed. So the first start keeps them in a
file, in a thread that goes on after the first token, and later starts read it. Nothing needs the
file: where there is none, or none can be written, weights are packed.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import shutil
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from suffice import native
from suffice.checkpoints import packed_file
from suffice.checkpoints.files import fingerprint, weight_files
from suffice.checkpoints.packed_file import Origin, Weights
from suffice.errors import InputError
from suffice.outside import is_outside
from suffice.paths import cache_dir
from suffice.progress import status
from suffice.quant import PackedLinear, Quant
from suffice.quant.file import AsStored
from suffice.quant.none import NoQuant
from suffice.quant.panels import Allocate

# Bytes of packed weights from which on a file pays: what only changes its order is packed soon.
LEAST, LEAST_ROUNDED = 256 << 20, 16 << 20
LEFT_AFTER = 3600  # seconds without a change; then a file that is not whole has no writer
_NAME = 16  # hexadecimal digits of each of two hashes
_SUFFIX = ".packed"
_LOWEST = 19  # priority


@dataclass(frozen=True)
class Place:
    """Where a model's weights, packed by a method, are kept; the folder has at most `limit` bytes.

    None sets no limit.
    """

    path: Path
    origin: Origin
    least: int
    limit: int | None

    def read(self, allocate: Allocate | None) -> dict[str, PackedLinear | np.ndarray] | None:
        """Read the weights; None if there is no sound file of them. An unsound one is removed."""
        if not self.path.exists():
            return None
        try:
            found = packed_file.read(self.path, self.origin, allocate)
        except (InputError, OSError):
            _remove(self.path)
            return None
        with contextlib.suppress(OSError):  # a folder that cannot be written to
            os.utime(self.path, (time.time(), self.origin.time))
        return found

    def keep(self, weights: Weights) -> None:
        """Write the weights in a thread, if that pays and there is room for them."""
        size = sum(
            each.bytes if isinstance(each, PackedLinear) else each.nbytes
            for each in weights.values()
        )
        if size >= self.least and (self.limit is None or size <= self.limit):
            _Writer(self, weights, size).start()


def place_of(path: Path, stamp: str, method: Quant, limit: int | None) -> Place | None:
    """Return where a model's weights, packed by `method`, are kept; None if they are not.

    `stamp` is the fingerprint of the model's files. A method of another package is not kept: nobody
    knows when it changes.

    Raises:
        InputError: A file of the model cannot be read.
    """
    if is_outside(type(method)):
        return None
    rounds = not isinstance(method, AsStored | NoQuant)
    # Instruction sets differ in what they round, not in what they only put in order.
    by = f"{method!r} {native.isa() if rounds else ''} {_code()}"
    source, when = _source(path, stamp)
    name = f"{source}-{_hash(by)}{_SUFFIX}"
    origin = Origin(f"{source} {by}", when)
    return Place(folder() / name, origin, LEAST_ROUNDED if rounds else LEAST, limit)


def folder() -> Path:
    """Return the folder of the files, which need not exist."""
    return cache_dir() / "packed"


def files_of(path: Path) -> list[Path]:
    """Return what is kept of a model, packed by any method.

    Raises:
        InputError: A file of the model cannot be read.
    """
    if not folder().is_dir():
        return []
    source, _ = _source(path, fingerprint(path))
    return sorted(folder().glob(f"{source}-*{_SUFFIX}"))


def _source(path: Path, stamp: str) -> tuple[str, int]:
    """Return a hash of a model's files and their times, and the time of the newest."""
    try:
        times = [file.stat().st_mtime_ns for file in weight_files(path)]
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}") from None
    newest = max(times) // 10**9
    return _hash(f"{stamp} {times}"), newest - newest % 2


def _code() -> list[int]:
    """Return when what packs was changed, and its size: another version may pack otherwise."""
    package, core = Path(__file__).parent.parent, Path(native.extension())
    rooms = ("checkpoints", "decoder", "quant", "backends")
    files = [core, *(each for room in rooms for each in (package / room).rglob("*.py"))]
    return [max(each.stat().st_mtime_ns for each in files), core.stat().st_size]


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=_NAME // 2).hexdigest()


@dataclass
class _Writer:
    """Writes a file in a thread of its own, which the end of the process waits for.

    Ctrl-C ends the wait; then no file is left.
    """

    place: Place
    weights: Weights
    size: int
    stopped: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="packed weights", daemon=True)
        self._thread.start()
        atexit.register(self._finish)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)
            path, limit = self.place.path, self.place.limit
            path.parent.mkdir(parents=True, exist_ok=True)
            make_room(None if limit is None else limit - self.size)
            if shutil.disk_usage(path.parent).free >= 2 * self.size:  # some is left for others
                packed_file.write(path, self.weights, self.place.origin, self.stopped)
        atexit.unregister(self._finish)
        self.weights = {}

    def _finish(self) -> None:
        try:
            with status("keeping packed weights for the next start (Ctrl-C: not)"):
                self._thread.join()
        except KeyboardInterrupt:
            self.stopped.set()
            self._thread.join()


def make_room(most: int | None) -> None:
    """Remove the files that were used longest ago until those that stay have at most `most` bytes.

    So are files that were not finished.
    """
    for part in folder().glob(f"*{_SUFFIX}-*.part"):
        with contextlib.suppress(OSError):
            if time.time() - part.stat().st_mtime > LEFT_AFTER:
                part.unlink()
    if most is None:
        return
    found = [(each.stat(), each) for each in folder().glob(f"*{_SUFFIX}")]
    total = sum(about.st_size for about, _ in found)
    for about, path in sorted(found, key=lambda each: each[0].st_atime):
        if total <= most:
            return
        _remove(path)
        total -= about.st_size


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
