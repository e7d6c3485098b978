"""The folder of packed weights: which file is a model's, when it is written, how long it stays.

To pack a model's weights takes longer than to read them packed. So the first start keeps them in a
file, and later starts read it. Nobody waits for the file and nothing needs it: where there is none,
or none can be written, weights are packed.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import shutil
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from suffice import native
from suffice.checkpoints import packed_file
from suffice.checkpoints.files import fingerprint, weight_files
from suffice.checkpoints.packed_file import Origin, Weights
from suffice.errors import InputError
from suffice.outside import is_outside
from suffice.paths import cache_dir
from suffice.quant import PackedLinear, Quant
from suffice.quant.file import AsStored
from suffice.quant.none import NoQuant
from suffice.quant.panels import Allocate

# Bytes of packed weights from which on a file pays: what only changes its order is packed soon.
LEAST, LEAST_ROUNDED = 256 << 20, 16 << 20
_NAME = 16  # hexadecimal digits of each of two hashes
_SUFFIX = ".packed"
LOWEST, LOW = 19, 10  # niceness: of a thread next to an answer, of a child that holds memory


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
        """Write the weights next to other work, if that pays and there is room for them."""
        size = sum(
            each.bytes if isinstance(each, PackedLinear) else each.nbytes
            for each in weights.values()
        )
        too_large = self.limit is not None and size > self.limit
        if size < self.least or too_large or self.path.exists():  # of another process, meanwhile
            return
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            make_room(None if self.limit is None else self.limit - size)
            if shutil.disk_usage(self.path.parent).free >= 2 * size:  # some is left for others
                _Writer(packed_file.Unfinished(self.path, weights, self.origin)).start()


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
    """Writes a file in a thread that takes what time is left over.

    What it has not done at the end of the process is left to a child, so nobody waits for it.
    """

    file: packed_file.Unfinished

    def start(self) -> None:
        atexit.register(self._hand_over)
        threading.Thread(target=self._run, name="packed weights", daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.nice(LOWEST)  # of this thread
            self.file.finish()
        atexit.unregister(self._hand_over)
        self.file.close()

    def _hand_over(self) -> None:
        # Python 3.12.0 and 3.12.1 refuse a fork here: then the file is given up.
        with contextlib.suppress(OSError, RuntimeError), warnings.catch_warnings():
            # Of threads, whose locks a child may need: this one needs none.
            warnings.simplefilter("ignore", DeprecationWarning)
            if os.fork():
                return
            try:
                self._finish_alone()
            finally:
                os._exit(0)

    def _finish_alone(self) -> None:
        """Finish the file in a child that has nothing else of its parent open."""
        null = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(null, standard)
        for each in list(Path("/proc/self/fd").iterdir()):
            if int(each.name) not in (0, 1, 2, *self.file.descriptors):
                with contextlib.suppress(OSError):
                    os.close(int(each.name))
        os.nice(LOW)
        # Where memory runs short, this process is ended first.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
        self.file.finish()


def make_room(most: int | None) -> None:
    """Remove the files that were used longest ago until those that stay have at most `most` bytes.

    None sets no limit.
    """
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
