"""Roundings of keys on disk, one file for each model and way to run it.

To fit one takes seconds, on a busy machine many, and every start of an engine would do it again.
The newest KEPT files stay. If a file cannot be written, the next start fits again. A file begins
with a digest of the rest, without which it is not read.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np

from suffice.decoder.key_rounding import VERSION, KeyRounding
from suffice.paths import cache_dir, write_whole

KEPT = 50
DIGEST = 16  # bytes


def folder() -> Path:
    """Return the folder of the files, which need not exist."""
    return cache_dir() / "key-roundings"


def stored(fitted_to: str, fit: Callable[[], KeyRounding]) -> KeyRounding:
    """Return what `fit` returned when it was last called for the same `fitted_to`, or call it.

    `fitted_to` names all that the rounding depends on: the model's files, how it runs, the text.
    """
    name = hashlib.blake2b(f"{VERSION} {fitted_to}".encode(), digest_size=16).hexdigest()
    path = folder() / f"{name}.rounding"
    found = _read(path)
    if found is None:
        found = fit()
        with contextlib.suppress(OSError):
            _write(path, found)
    return found


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST).digest()


def _read(path: Path) -> KeyRounding | None:
    """Return a file's rounding; None if there is no file, or it is damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if data[:DIGEST] != _digest(data[DIGEST:]):
        return None
    with np.load(io.BytesIO(data[DIGEST:]), allow_pickle=False) as parts:
        return KeyRounding(**{name: parts[name] for name in KeyRounding._fields})


def _write(path: Path, found: KeyRounding) -> None:
    stream = io.BytesIO()
    np.savez(stream, **found._asdict())
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_whole(path) as part:
        part.write_bytes(_digest(stream.getvalue()) + stream.getvalue())
    others = sorted(path.parent.glob("*.rounding"), key=lambda file: file.stat().st_mtime)
    for old in others[:-KEPT]:
        old.unlink(missing_ok=True)
