"""From what the user calls a model to its files on this machine."""

from __future__ import annotations

import re
from pathlib import Path

from suffice.errors import InputError
from suffice.pull import resolve

__all__ = ["SUFFIX", "locate"]

SUFFIX = ".safetensors"  # of what `suffice quantize` writes

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]


def locate(model: str | Path) -> Path:
    """Return the directory or file of a model; a hub id is downloaded or found cached.

    A short name is that of a model that `suffice pull` stores.

    Raises:
        InputError: Nothing of that name, a directory without a checkpoint, or no way to the hub.
    """
    path = Path(resolve(str(model))).expanduser()
    if path.is_dir():
        return _checked_folder(path)
    if path.is_file():
        if path.suffix not in (".gguf", SUFFIX):
            raise InputError(
                f"{path} is not a model: give a directory, a .gguf file, one of `suffice quantize` "
                "(.safetensors) or a hub id"
            )
        return path
    if _HUB_ID.fullmatch(str(model)) and path.suffix not in (".gguf", SUFFIX):
        return _checked_folder(_snapshot(str(model)))
    raise InputError(
        f"model '{model}' not found: give a directory, a .gguf file or a hub id (organisation/name)"
    )


def _checked_folder(folder: Path) -> Path:
    if (folder / "config.json").is_file():
        return folder
    files = sorted(folder.glob("*.gguf"))
    if files:
        raise InputError(f"{folder} has no config.json; did you mean the file {files[0]}?")
    raise InputError(f"{folder} has no config.json, so it is not a Hugging Face checkpoint")


def _snapshot(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except GatedRepoError:
        reason = "the hub asks for an accepted licence; accept it there and set HF_TOKEN"
    except RepositoryNotFoundError:
        reason = "the hub has no such repository (or HF_TOKEN does not open it)"
    except (LocalEntryNotFoundError, OfflineModeIsEnabled):
        reason = "it is not in the local cache and the hub cannot be reached"
    except HFValidationError as error:
        reason = " ".join(str(error).split())
    except (HfHubHTTPError, OSError) as error:
        reason = f"the download failed: {' '.join(str(error).split())}"
    raise InputError(f"model '{name}' is neither a local path nor available: {reason}")
