"""A hash that tells models, and changed files of one, apart without reading all of the weights."""

from __future__ import annotations

import hashlib
from pathlib import Path

from suffice.errors import InputError

_PART = 1 << 20  # bytes read of each end of a file of weights
_LENGTH = 16  # hexadecimal digits


def fingerprint(path: Path) -> str:
    """Return the hash of a checkpoint: a folder's configuration and weights, or a .gguf file.

    Of weights the size and a MiB of each end go into it, which is where their index lies.

    Raises:
        InputError: A file cannot be read.
    """
    folder = path.is_dir()
    weights = sorted(path.glob("*.safetensors")) if folder else [path]
    plain = [path / "config.json", *sorted(path.glob("*.index.json"))] if folder else []
    found = hashlib.sha256()
    try:
        for file in plain:
            found.update(file.read_bytes())
        for file in weights:
            size = file.stat().st_size
            found.update(size.to_bytes(8, "little"))
            with file.open("rb") as stream:
                found.update(stream.read(_PART))
                stream.seek(max(size - _PART, 0))
                found.update(stream.read(_PART))
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}") from None
    return found.hexdigest()[:_LENGTH]
