"""The folder of downloads and measurements."""

from __future__ import annotations

import os
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
