"""Roundings of keys on disk, one file for each model and way to run it.

To fit one takes seconds, on a busy machine many, and every start of an engine would do it again.
The newest KEPT files stay. If a file cannot be written, the next start fits again.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from suffice.models.key_rounding import VERSION, KeyRounding
from suffice.paths import cache_dir, write_whole

KEPT = 50


def folder() -> Path:
    """Return the folder of the files, which need not exist."""
    return cache_dir() / "key-roundings"


def stored(fitted_to: str, fit: Callable[[], KeyRounding]) -> KeyRounding:
    """Return what `fit` returned when it was last called for the same `fitted_to`, or call it.

    `fitted_to` names all that the rounding depends on: the model's files, how it runs, the text.
    """
    name = hashlib.blake2b(f"{VERSION} {fitted_to}".encode(), digest_size=16).hexdigest()
    path = folder() / f"{name}.npz"
    found = _read(path)
    if found is None:
        found = fit()
        with contextlib.suppress(OSError):
            _write(path, found)
    return found


def _read(path: Path) -> KeyRounding | None:
    """Return a file's rounding; None if there is no file, or it is damaged."""
    import zipfile  # which takes time, and most engines need no rounding

    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as parts:
            return KeyRounding(**{name: parts[name] for name in KeyRounding._fields})
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _write(path: Path, found: KeyRounding) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_whole(path) as part, part.open("wb") as stream:
        np.savez(stream, **found._asdict())
    others = sorted(path.parent.glob("*.npz"), key=lambda file: file.stat().st_mtime)
    for old in others[:-KEPT]:
        old.unlink(missing_ok=True)
