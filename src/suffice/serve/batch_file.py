"""The files of `suffice batch`: requests and results in OpenAI's batch format, a line each.

A result has an id that follows from its request, so that a run that was interrupted knows what is
done. Results are appended as they come; once all are there, the file is put in the requests' order.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from suffice.errors import InputError, brief, nearest, one_line
from suffice.serve import batch_setting
from suffice.serve.batch_setting import Setting

ENDPOINTS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
    *("/v1/embeddings", "/v1/rerank", "/v1/score"),
)
_FIELDS = ("custom_id", "method", "url", "body")


@dataclass(frozen=True)
class Entry:
    """Where a request is in its file; `fault` says why it cannot be one, or is empty."""

    id: str
    custom_id: str | None
    offset: int
    size: int
    fault: str = ""


class Requests:
    """A file of requests. Only their places are kept in memory.

    Raises:
        InputError: The file cannot be read, is empty, or names a request twice.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[Entry] = []
        lines: dict[str, int] = {}
        offset = 0
        for number, whole in enumerate(_lines(path), 1):
            offset += len(whole)
            line = whole.removeprefix(BOM_UTF8) if number == 1 else whole
            if not line.strip():
                continue
            entry = entry_of(number, line, offset - len(line))
            named = entry.custom_id
            if named is not None and named in lines:
                raise InputError(
                    f"{path}: lines {lines[named]} and {number} have the same custom_id "
                    f"'{one_line(named, 60)}'"
                )
            if named is not None:
                lines[named] = number
            self.entries.append(entry)
        if not self.entries:
            raise InputError(f"{path}: has no requests, one JSON object per line")

    def read(self, file: BinaryIO, entry: Entry) -> bytes:
        """Return the line of a request."""
        file.seek(entry.offset)
        return file.read(entry.size)


def parsed(line: bytes) -> tuple[str, dict[str, Any]]:
    """Return the url and the body of a request without a fault."""
    found = msgspec.json.decode(line)
    return found["url"], found["body"]


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from file
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def entry_of(number: int, line: bytes, offset: int = 0) -> Entry:
    """Return the entry of a line; its id follows from all of the request, not from its place."""
    try:
        found = msgspec.json.decode(line)
        fault = _fault(found)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        found, fault = None, f"is not JSON: {one_line(error, 100)}"
    named = found.get("custom_id") if isinstance(found, dict) else None
    named = named if isinstance(named, str) and named else None
    if fault:
        fault = f"line {number}: {fault}"
        # Two bad lines may be alike: their places are what tells them apart.
        unique = b"%d:" % number + line if named is None else line
    else:
        unique = msgspec.json.encode([found[name] for name in _FIELDS], order="sorted")
    ident = f"batch_req_{hashlib.sha256(unique).hexdigest()[:24]}"
    return Entry(ident, named, offset, len(line), fault)


def _fault(found: Any) -> str:
    """Return why a line's value is no request; empty if it is one."""
    if not isinstance(found, dict):
        return f"must be a JSON object, not {type(found).__name__}"
    for name in found:
        if name not in _FIELDS:
            return f"unknown field '{one_line(name, 60)}'.{nearest(name[:60], _FIELDS)}"
    named, method, url = (found.get(name) for name in _FIELDS[:3])
    if not isinstance(named, str) or not named:
        return f"custom_id: must be a text, not {brief(named)}"
    if method != "POST":
        return f"method: must be 'POST', not {brief(method)}"
    if url not in ENDPOINTS:
        near = nearest(url[:60], ENDPOINTS) if isinstance(url, str) else ""
        return f"url: {brief(url)} is none of {', '.join(ENDPOINTS)}.{near}"
    if not isinstance(found.get("body"), dict):
        return f"body: must be a JSON object, not {brief(found.get('body'))}"
    return ""


class Results:
    """The file of results, opened to go on with it; a context manager.

    What an interruption left of a line is cut off; a new file that gets no result is removed.
    `setting` is what is known of how its results are to be made; see `settle` for the rest.

    Raises:
        InputError: It cannot be written, has results of other requests or of another setting, or
            another process writes it.
    """

    def __init__(self, path: Path, requests: Requests, setting: Setting) -> None:
        self.path, self._requests, self._setting = path, requests, setting
        if path.exists() and path.samefile(requests.path):
            raise InputError(f"{path}: is the file of the requests: give another for the results")
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: is no regular file, which results need to go on with them")
        self._new = not path.exists()
        try:
            self._file = path.open("w+b" if self._new else "r+b")
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._places = self._read()
            self._made = self._made_with()
            if self._made is not None:
                setting.check(self._made, path)
        except BlockingIOError:
            self._file.close()
            raise InputError(f"{path}: another process writes it") from None
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Results:
        return self

    def __exit__(self, *_: object) -> None:
        if self._new and self._file.seek(0, os.SEEK_END) == 0:
            self.path.unlink(missing_ok=True)
        self._file.close()

    @property
    def todo(self) -> list[Entry]:
        """The requests without a result."""
        return [entry for entry in self._requests.entries if entry.id not in self._places]

    def _read(self) -> dict[str, tuple[int, int]]:
        """Return the place of each result; cut off what is no whole line."""
        known = {entry.id for entry in self._requests.entries}
        places: dict[str, tuple[int, int]] = {}
        end = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            ident = id_of(line)
            if not ident:
                raise InputError(
                    f"{self.path}: is no file of results, whose lines have an id: give another"
                )
            if ident not in known:
                raise InputError(
                    f"{self.path}: has results of other requests than {self._requests.path}: "
                    "give another file, or remove it"
                )
            places[ident] = (end, len(line))
            end += len(line)
        self._file.truncate(end)
        self._file.seek(end)
        return places

    def _lines(self) -> Iterator[bytes]:
        """Yield the results that are there; then more can be added."""
        try:
            for offset, size in self._places.values():
                self._file.seek(offset)
                yield self._file.read(size)
        finally:
            self._file.seek(0, os.SEEK_END)

    def _made_with(self) -> Setting | None:
        """Return what answers that are there were made with; None without an answer.

        Raises:
            InputError: Nothing says it. An answer's fingerprint would tell the model alone.
        """
        if not any(msgspec.json.decode(line)["response"] for line in self._lines()):
            return None
        if (made := batch_setting.read(self.path)) is not None:
            return made
        raise InputError(
            f"{self.path}: nothing says which model and flags its results were made with: put "
            f"{self.path.name}{batch_setting.SUFFIX} back next to it, give another file with -o, "
            "or remove it"
        )

    def settle(self, fingerprint: str, isa: str) -> None:
        """Add what the engines say of the setting; called before the first answer is added.

        Raises:
            InputError: The results that were there are of another.
        """
        self._setting = msgspec.structs.replace(self._setting, fingerprint=fingerprint, isa=isa)
        if self._made is not None:
            self._setting.check(self._made, self.path)
        batch_setting.write(self.path, self._setting)

    def add(self, line: bytes) -> None:
        """Append the line of a result; see `result`."""
        offset = self._file.tell()
        self._file.write(line + b"\n")
        self._file.flush()
        self._places[id_of(line)] = (offset, len(line) + 1)

    def finish(self) -> None:
        """Put the results, which are all there, in the order of the requests."""
        order = [self._places[entry.id] for entry in self._requests.entries]
        os.fsync(self._file.fileno())
        if order == sorted(order):
            return
        ordered = self.path.with_name(self.path.name + ".ordered")
        with ordered.open("wb") as file:
            for offset, size in order:
                self._file.seek(offset)
                file.write(self._file.read(size))
            file.flush()
            os.fsync(file.fileno())
        ordered.replace(self.path)


def result(
    entry: Entry, response: Mapping[str, Any] | None, error: Mapping[str, Any] | None
) -> bytes:
    """Return the line of a request's result, without its end."""
    return msgspec.json.encode(
        {"id": entry.id, "custom_id": entry.custom_id, "response": response, "error": error}
    )


def refusal(entry: Entry) -> bytes:
    """Return the line of the result of a line that is no request."""
    return result(entry, None, {"code": "invalid_line", "message": entry.fault})


def id_of(line: bytes) -> str:
    """Return the id of a result; empty if a line has none."""
    try:
        found = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    ident = found.get("id") if isinstance(found, dict) else None
    return ident if isinstance(ident, str) else ""
