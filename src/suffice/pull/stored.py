"""Models that have been pulled: what is there, which one a name means, and removing one.

A model of a hub has a folder of its own with a record of what was downloaded into it. Only what a
record or the catalogue names is ever removed.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from suffice.errors import InputError, one_line
from suffice.paths import write_whole
from suffice.pull.catalogue import MODELS, Model, model_path, models_dir
from suffice.pull.names import HubName

PARTS = ".parts"  # the folder of files that are not whole yet
_RECORD = "pulled.json"
_USED = ".used"  # its time of change is when the model was last loaded


@dataclass(frozen=True)
class Record:
    """What was downloaded from a hub.

    Attributes:
        name: The name that was pulled.
        repo, revision: Where it comes from.
        model: The .gguf file's path in the repository; "" for a folder of safetensors.
        files: The hash of each file, by its name in the folder.
        licence: Its name, None if the repository does not say.
        done: Whether all of it is there.
    """

    name: str
    repo: str
    revision: str
    model: str
    files: dict[str, str] = field(default_factory=dict)
    licence: str | None = None
    done: bool = False


@dataclass(frozen=True)
class Entry:
    """A model on this machine: its name, its folder, what to load, and the files that make it up.

    `record` is None for a model of the catalogue.
    """

    name: str
    folder: Path
    path: Path
    files: tuple[Path, ...]
    record: Record | None = None

    @property
    def done(self) -> bool:
        """Whether all of it is there."""
        return self.record is None or self.record.done

    @property
    def format(self) -> str:
        """How it is stored."""
        return "GGUF" if self.path.suffix == ".gguf" else "safetensors"

    @property
    def size_bytes(self) -> int:
        """The bytes it takes, of files that are not whole too."""
        parts = (self.folder / PARTS).glob("*")
        return sum(path.stat().st_size for path in (*self.files, *parts) if path.is_file())

    @property
    def last_used(self) -> float | None:
        """When it was last loaded, in seconds since 1970; None for never."""
        try:
            return (self.folder / _USED).stat().st_mtime
        except OSError:
            return None


def hub_dir() -> Path:
    """Return the folder that holds one folder per model of a hub."""
    return models_dir() / "hub"


def folder_of(name: HubName, model: str) -> Path:
    """Return the folder of a model, which need not exist yet; `model` as in `Record`."""
    return hub_dir() / name.of(model).replace("/", "--")


def entries() -> list[Entry]:
    """Return the models on this machine.

    Raises:
        InputError: A record cannot be read.
    """
    own = [_of_catalogue(each) for each in MODELS.values() if model_path(each).is_file()]
    records = sorted(hub_dir().glob(f"*/{_RECORD}"))
    return [*own, *(_of_record(path.parent, _read(path)) for path in records)]


def entry_in(folder: Path) -> Entry | None:
    """Return the model of a hub in its folder, None if there is none.

    Raises:
        InputError: Its record cannot be read.
    """
    path = folder / _RECORD
    return _of_record(folder, _read(path)) if path.is_file() else None


def find(name: HubName) -> Entry | None:
    """Return the pulled model that a name means, None if there is none.

    Raises:
        InputError: It means several, is not there as a whole, or a record cannot be read.
    """
    found = meant(name)
    if found is not None and not found.done:
        raise InputError(f"model '{name}' is here in part only: run `suffice pull {name}` again")
    return found


def meant(name: HubName) -> Entry | None:
    """Return the model that a name means, even if only a part of it is there.

    Raises:
        InputError: It means several, or a record cannot be read.
    """
    found = {
        each.record.model: each
        for each in entries()
        if each.record is not None
        and (each.record.repo, each.record.revision) == (name.repo, name.revision)
        and (name.matches(each.record.model) if each.record.model else name.whole)
    }
    if name.whole and "" in found:
        return found[""]
    if len(found) > 1:
        named = ", ".join(name.of(file) for file in sorted(found))
        raise InputError(f"model '{name}' may be one of several: {named}")
    return next(iter(found.values()), None)


def mark_used(folder: Path) -> None:
    """Note that the model in a folder is loaded now, where the folder can be written to."""
    with contextlib.suppress(OSError):
        (folder / _USED).touch()


def write_record(folder: Path, record: Record) -> None:
    """Keep a record in the model's folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    with write_whole(folder / _RECORD) as part:
        part.write_text(json.dumps(asdict(record), indent=1))


def remove(entry: Entry) -> bool:
    """Remove a model's files, and its folder if nothing else is in it; return whether it went.

    Raises:
        InputError: A file cannot be removed.
    """
    try:
        for path in entry.files:
            path.unlink(missing_ok=True)
        if entry.record is not None:
            shutil.rmtree(entry.folder / PARTS, ignore_errors=True)
            (entry.folder / _RECORD).unlink(missing_ok=True)
        (entry.folder / _USED).unlink(missing_ok=True)
        if any(entry.folder.iterdir()):
            return False
        entry.folder.rmdir()
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be removed: {error.strerror}") from None
    return True


def _of_catalogue(model: Model) -> Entry:
    path = model_path(model)
    notices = {Path(member).name for wheel in model.wheels for member in wheel.keep}
    files = (path, *(path.parent / name for name in sorted(notices)))
    return Entry(model.name, path.parent, path, files)


def _of_record(folder: Path, record: Record) -> Entry:
    path = folder / Path(record.model).name if record.model else folder
    return Entry(record.name, folder, path, tuple(folder / name for name in record.files), record)


def _read(path: Path) -> Record:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        record = Record(**found)
        sound = all(Path(name).name == name for name in record.files)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path} cannot be read: {one_line(error)}") from None
    if not sound:
        raise InputError(f"{path} names files outside of its folder")
    return record
