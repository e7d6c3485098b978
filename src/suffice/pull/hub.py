"""Pulls models from a hub with the interface of the Hugging Face Hub.

Its own library, `huggingface_hub`, does it, with its variables: HF_ENDPOINT, HF_TOKEN (or a stored
login) and HF_HUB_OFFLINE. Its `snapshot_download` removes what has arrived when it is interrupted;
so files are downloaded by its `http_get`, which is given what is there and goes on.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from suffice.errors import InputError, one_line
from suffice.pull.hub_files import HubFile, chosen
from suffice.pull.names import HubName
from suffice.pull.storage import Report, locked, require_space, storing
from suffice.pull.stored import PARTS, Record, entry_in, find, folder_of, write_record
from suffice.pull.transfer import Source, download

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo
    from huggingface_hub.errors import HfHubHTTPError

_ENDPOINT = "https://huggingface.co"
_TRUE = ("1", "true", "yes", "on")


def pull_hub(name: HubName, report: Report) -> Path:
    """Download a model of a hub unless it is present as it is there; return its file or folder.

    Raises:
        InputError: There is no such model, file or revision, it needs a permission, the hub cannot
            be reached, the disk has too little space, or a file is not what the hub announced.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE:
        present = find(name)
        if present is None:
            raise InputError(f"cannot pull '{name}': HF_HUB_OFFLINE is set, and it is not here")
        return present.path
    hub = _Hub(name)
    index = hub.index()
    model, files = chosen(name, _files(name, index))
    folder = folder_of(name, model)
    with storing(str(name)), locked(folder.name, report):
        _fetch(
            hub,
            Record(str(name), name.repo, name.revision, model, {}, _licence(index)),
            files,
            folder,
            report,
        )
    return folder / Path(model).name if model else folder


def _fetch(hub: _Hub, record: Record, files: list[HubFile], folder: Path, report: Report) -> None:
    """Download the files that are not in the folder as the hub has them; keep a record of them."""
    known = entry_in(folder)
    before = {} if known is None or known.record is None else known.record.files
    here = {name: each for name, each in before.items() if (folder / name).is_file()}
    missing = [each for each in files if here.get(each.name) != each.hash]
    parts = folder / PARTS
    arrived = sum(_size(parts / each.hash) for each in missing)
    total = sum(each.size_bytes for each in missing)
    require_space(record.name, total - arrived)
    done = 0
    for each in missing:
        write_record(folder, _with(record, here | {each.name: ""}, done=False))
        parts.mkdir(exist_ok=True)
        download(hub.source(each), parts / each.hash, partial(_add, report, done, total))
        (parts / each.hash).replace(folder / each.name)
        here[each.name] = each.hash
        done += each.size_bytes
    for name in here.keys() - {each.name for each in files}:  # the hub has it no longer
        (folder / name).unlink()
        del here[name]
    write_record(folder, _with(record, here, done=True))
    if parts.is_dir() and not any(parts.iterdir()):
        parts.rmdir()


def _add(report: Report, done: int, total: int, arrived: int) -> None:
    report("downloading", done + arrived, total)


def _with(record: Record, files: dict[str, str], *, done: bool) -> Record:
    return replace(record, files=files, done=done)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


class _Hub:
    """A hub, asked for one repository at one revision."""

    def __init__(self, name: HubName) -> None:
        from huggingface_hub import HfApi  # takes as long to import as all else here

        self._name = name
        self._endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or _ENDPOINT
        self._api = HfApi(endpoint=self._endpoint, library_name="suffice")
        self._revision = name.revision

    def index(self) -> ModelInfo:
        """Return what the hub says of the repository: its files, and the card's facts."""
        from huggingface_hub.errors import HfHubHTTPError, HTTPError  # type: ignore[attr-defined]

        try:
            found = self._api.model_info(
                self._name.repo, revision=self._revision, files_metadata=True
            )
        except HfHubHTTPError as error:
            raise self._refused(error) from None
        except (OSError, HTTPError) as error:
            why = f"{self._endpoint} cannot be reached: {one_line(error)}"
            raise InputError(f"{self._said()}: {why}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(f"{self._said()}: {self._endpoint} is no model hub") from None
        if found.siblings is None:
            raise InputError(f"{self._said()}: {self._endpoint} is no model hub")
        # All files are of one commit, even if somebody changes the repository meanwhile.
        self._revision = found.sha or self._revision
        return found

    def source(self, file: HubFile) -> Source:
        """Return where a file is downloaded from, and what it must be."""
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        url = hf_hub_url(
            self._name.repo, file.path, revision=self._revision, endpoint=self._endpoint
        )
        return Source(
            said=f"{self._said()}: {one_line(file.path)}",
            url=url,
            headers=build_hf_headers(library_name="suffice"),
            refused=self._refused,
            size_bytes=file.size_bytes,
            sha256=file.sha256,
        )

    def _said(self) -> str:
        return f"cannot pull '{self._name}'"

    def _refused(self, error: HfHubHTTPError) -> InputError:
        code, status = error.response.headers.get("X-Error-Code", ""), error.response.status_code
        page = f"{self._endpoint}/{self._name.repo}"
        if code == "GatedRepo" or status == 403:
            why = f"the hub asks for an accepted licence: accept it at {page} and set HF_TOKEN"
        elif code == "RevisionNotFound":
            why = f"the repository has no revision '{self._name.revision}'"
        elif code == "EntryNotFound":
            why = "the hub lists a file that it does not have"
        elif status in (401, 404):
            why = "the hub has no such repository (or HF_TOKEN does not open it)"
        else:
            why = f"{self._endpoint} answers {status}"
        return InputError(f"{self._said()}: {why}")


def _files(name: HubName, index: ModelInfo) -> list[HubFile]:
    """Return the files that an index lists; sizes and hashes become names and are checked."""
    found = []
    for each in index.siblings or ():
        sha256 = each.lfs.sha256 if each.lfs else None
        hashed = str(sha256 or each.blob_id)
        if each.size is None or not hashed.isalnum():
            raise InputError(f"cannot pull '{name}': the hub's list of files is damaged")
        file = HubFile(each.rfilename, each.size, hashed, sha256)
        if file.name and not file.name.startswith("."):
            found.append(file)
    return found


def _licence(index: ModelInfo) -> str | None:
    licence = index.card_data.license if index.card_data is not None else None
    return one_line(licence) if isinstance(licence, str) else None
