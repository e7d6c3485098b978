"""Maps the name of a model to its files on this machine, and hashes them."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from suffice.checkpoints.carried import without
from suffice.checkpoints.formats.gguf_header import read_header
from suffice.checkpoints.stored_file import StoredFile
from suffice.errors import InputError, shown
from suffice.pull import resolve
from suffice.pull.parts import parts_of

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_SUFFIX = ".safetensors"  # of files that `suffice quantize` writes
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
_PART = 1 << 20  # bytes read from each end of a file of weights
_LENGTH = 16  # hexadecimal digits


def locate(model: str | Path) -> Path:
    """Return the directory or file of a model; a hub id is downloaded or found cached.

    Short names are those of the models that `suffice pull` stores.

    Raises:
        InputError: No such name, a directory without a checkpoint, or no access to the hub.
    """
    path = Path(resolve(str(model))).expanduser()
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # perhaps a hub id
    except (OSError, ValueError) as error:  # too long a name, or one with a null character
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"model '{shown(str(path))}' cannot be opened: {reason}") from None
    if path.is_dir():
        return _checked_folder(path)
    if path.exists():
        if not path.is_file() or path.suffix not in (".gguf", _SUFFIX):
            raise InputError(
                f"{path} is not a model: give a directory, a .gguf file, one of `suffice quantize` "
                "(.safetensors) or a hub id"
            )
        return path
    if _HUB_ID.fullmatch(str(model)) and path.suffix not in (".gguf", _SUFFIX):
        return _checked_folder(_snapshot(str(model)))
    raise InputError(
        f"model '{model}' not found: give a name of `suffice list`, a directory, a .gguf file or "
        "a hub id (organisation/name)"
    )


def configured(model: str) -> Path | None:
    """Return the folder of a model's config.json if it is on this machine: nothing is downloaded.

    Raises:
        InputError: A known name of a model that has not been pulled, or no name at all.
    """
    path = Path(resolve(model)).expanduser()
    if path.is_dir():
        return path if (path / "config.json").is_file() else None
    if path.exists() or not _HUB_ID.fullmatch(model):
        return None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(model, "config.json")
    return Path(found).parent if isinstance(found, str) else None


def stored(model: str) -> Path | None:
    """Return the folder or file of a model if it is on this machine: nothing is downloaded."""
    try:
        path = Path(resolve(model)).expanduser()
        return path if path.is_file() else configured(model)
    except (InputError, OSError, ValueError):
        return None


def family_named(path: Path) -> str:
    """Return the family that a model's folder or .gguf file names; "" if it names none."""
    try:
        if path.is_dir():
            found = json.loads((path / "config.json").read_bytes()).get("model_type")
        elif path.suffix == ".gguf":
            found = read_header(StoredFile(path)).metadata.get("general.architecture")
        else:
            return ""
    except (InputError, OSError, ValueError, AttributeError):
        return ""
    return found if isinstance(found, str) else ""


def is_quantized(path: Path) -> bool:
    """Return whether a model's path, as `locate` returns it, is a file of `suffice quantize`."""
    return path.suffix == _SUFFIX


def fingerprint(path: Path) -> str:
    """Return a hash that distinguishes models, and versions of a model's files.

    It covers a folder's configuration and weights, or a .gguf file. Of files of weights it reads
    only the size and a MiB at each end, where their index lies. Of the configuration it leaves out
    a calibration that is carried there: that is of a model with this hash, and does not change it.

    Raises:
        InputError: A file cannot be read.
    """
    plain = [path / "config.json", *sorted(path.glob("*.index.json"))] if path.is_dir() else []
    found = hashlib.sha256()
    try:
        for file in plain:
            found.update(without(file.read_bytes()))
        for file in weight_files(path):
            size = file.stat().st_size
            found.update(size.to_bytes(8, "little"))
            with file.open("rb") as stream:
                found.update(stream.read(_PART))
                stream.seek(max(size - _PART, 0))
                found.update(stream.read(_PART))
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}") from None
    return found.hexdigest()[:_LENGTH]


def weight_files(path: Path) -> list[Path]:
    """Return the files of weights of a model, in order."""
    if path.is_dir():
        return sorted(path.glob("*.safetensors"))
    return [path.with_name(part) for part in parts_of(path.name)]


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
