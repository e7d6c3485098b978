"""Pulls models from a hub with the interface of the Hugging Face Hub.

The variables of its own library are respected: HF_ENDPOINT, HF_TOKEN (or a stored login) and
HF_HUB_OFFLINE. That library starts a file again after an interruption, so files are downloaded
here: a part that has arrived stays, and the next pull goes on from there.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from suffice.errors import InputError, one_line
from suffice.pull.hub_files import HubFile, chosen
from suffice.pull.names import HubName
from suffice.pull.storage import Report, locked, require_space, storing
from suffice.pull.stored import PARTS, Record, entry_in, find, folder_of, write_record
from suffice.pull.transfer import TIMEOUT_SECONDS, Remote, Source, download, unreachable

__all__ = ["pull_hub"]

_ENDPOINT = "https://huggingface.co"
_MOST_INDEX_BYTES = 1 << 26
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
        from huggingface_hub import get_token  # takes as long to import as all else here

        self._name = name
        self._endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or _ENDPOINT
        self._token = get_token()
        self._revision = name.revision

    def index(self) -> dict[str, Any]:
        """Return what the hub says of the repository: its files, and the card's facts."""
        revision = quote(self._revision, safe="")
        place = f"api/models/{self._name.repo}/revision/{revision}?blobs=true"
        try:
            with urlopen(self._request(place), timeout=TIMEOUT_SECONDS) as answer:
                found = json.loads(answer.read(_MOST_INDEX_BYTES))
        except HTTPError as error:
            with error:
                raise self._refused(error) from None
        except OSError as error:
            raise InputError(unreachable(self._said(), self._endpoint, error)) from None
        except ValueError:
            raise InputError(f"{self._said()}: {self._endpoint} is no model hub") from None
        if not isinstance(found, dict) or not isinstance(found.get("siblings"), list):
            raise InputError(f"{self._said()}: {self._endpoint} is no model hub")
        # All files are of one commit, even if somebody changes the repository meanwhile.
        self._revision = str(found.get("sha") or self._revision)
        return found

    def source(self, file: HubFile) -> Source:
        """Return where a file is downloaded from, and what it must be."""
        place = f"{self._name.repo}/resolve/{quote(self._revision, safe='')}/{quote(file.path)}"
        return Source(
            said=f"{self._said()}: {one_line(file.path)}",
            remote=Remote(self._endpoint, lambda: self._request(place), self._refused),
            size_bytes=file.size_bytes,
            sha256=file.sha256,
        )

    def _said(self) -> str:
        return f"cannot pull '{self._name}'"

    def _request(self, place: str) -> Request:
        request = Request(f"{self._endpoint}/{place}", headers={"User-Agent": "suffice"})
        if self._token:  # for the hub alone, not for the stores that it points to
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        return request

    def _refused(self, error: HTTPError) -> InputError:
        code = error.headers.get("X-Error-Code", "")
        page = f"{self._endpoint}/{self._name.repo}"
        if code == "GatedRepo" or error.code == 403:
            why = f"the hub asks for an accepted licence: accept it at {page} and set HF_TOKEN"
        elif code == "RevisionNotFound":
            why = f"the repository has no revision '{self._name.revision}'"
        elif code == "EntryNotFound":
            why = "the hub lists a file that it does not have"
        elif error.code in (401, 404):
            why = "the hub has no such repository (or HF_TOKEN does not open it)"
        else:
            why = f"{self._endpoint} answers {error.code} {one_line(error.reason)}"
        return InputError(f"{self._said()}: {why}")


def _files(name: HubName, index: dict[str, Any]) -> list[HubFile]:
    """Return the files that an index lists; sizes and hashes become names and are checked."""
    found = []
    for each in index["siblings"]:
        try:
            large = each.get("lfs") or {}
            sha256 = large.get("sha256")
            hashed = str(sha256 or each["blobId"])
            file = HubFile(str(each["rfilename"]), int(each["size"]), hashed, sha256)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise InputError(f"cannot pull '{name}': the hub's list of files is damaged") from None
        if hashed.isalnum() and file.name and not file.name.startswith("."):
            found.append(file)
    return found


def _licence(index: dict[str, Any]) -> str | None:
    card = index.get("cardData")
    licence = card.get("license") if isinstance(card, dict) else None
    return one_line(licence) if isinstance(licence, str) else None
