"""The folder of downloads and measurements, and files that are written as a whole."""

from __future__ import annotations

import glob
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_dir() -> Path:
    """Return the folder for models and measurements; it need not exist yet.

    `SUFFICE_CACHE` if set, else `suffice` under `XDG_CACHE_HOME`, else `~/.cache/suffice`.
    """
    if folder := os.environ.get("SUFFICE_CACHE"):
        return Path(folder).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "suffice"
    return Path.home() / ".cache" / "suffice"


PRIVATE = 0o600  # the mode of a file with a text, or with rows from which it can be guessed
PRIVATE_FOLDER, _OTHERS = 0o700, 0o077  # a mode, and its bits that let others in


def private_folder_fault(given: str) -> str | None:
    """Return what a folder's path must be that need not exist yet; None if it is that.

    One that others can open must be empty: `make_private_folder` closes it.
    """
    path = Path(given).expanduser()
    try:
        if not (given and (path.is_dir() or not path.exists())):
            return "must be a folder, or the path of a new one"
        shared = path.is_dir() and path.stat().st_mode & _OTHERS and any(path.iterdir())
    except OSError as error:
        return f"cannot be opened: {error.strerror}"
    if shared:
        return "must be a folder that only you can open (chmod 700), or a new one"
    return None


def make_private_folder(path: Path) -> None:
    """Make a folder, or close one that is there to others.

    Raises:
        OSError: It cannot be made or closed.
    """
    path.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
    if path.stat().st_mode & _OTHERS:
        path.chmod(PRIVATE_FOLDER)


_DIGITS = 16  # hexadecimal, in the name of a file that is being written


@contextmanager
def write_whole(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """Yield a new file next to `path`; it replaces `path` when the block ends.

    A reader sees the old file or the new one, never a part. The new file has the mode, without what
    the umask takes from it.
    If the block fails the new file is removed.

    Raises:
        OSError: The file cannot be made or renamed.
    """
    part = _part(path)
    part.touch(mode, exist_ok=False)
    try:
        usual = part.stat().st_mode
        yield part
        part.chmod(usual)  # a library may have given it others
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def try_write_whole(path: Path) -> None:
    """Find out whether `write_whole` can write a file; nothing of the try is left.

    Raises:
        OSError: The file cannot be made.
    """
    part = _part(path)
    part.touch(exist_ok=False)
    part.unlink()


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}-{secrets.token_hex(_DIGITS // 2)}.part")


def unfinished(path: Path) -> list[Path]:
    """Return the files that killed processes left when they wrote `path` by `write_whole`."""
    digits = "[0-9a-f]" * _DIGITS
    return sorted(path.parent.glob(f"{glob.escape(path.name)}-{digits}.part"))
