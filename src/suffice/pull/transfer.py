"""Downloads one file by HTTP, going on where an earlier attempt ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from suffice.errors import InputError, one_line
from suffice.pull.storage import BLOCK_BYTES, sha256

__all__ = ["TIMEOUT_SECONDS", "Remote", "Source", "download", "unreachable"]

TIMEOUT_SECONDS = 30
_ATTEMPTS = 5  # in a row that bring nothing
_PAUSE_SECONDS = 1.0  # before the second; then twice as long
_TOO_MANY = 429  # the status of a server that wants to be asked later
_PARTIAL = 206  # the status of an answer that begins where it was asked to


@dataclass(frozen=True)
class Remote:
    """A file on a server: the server's address, a new request, and what a refusal means."""

    address: str
    request: Callable[[], Request]
    refused: Callable[[HTTPError], InputError]


@dataclass(frozen=True)
class Source:
    """A file to download: how errors begin, where it is, and what it must be."""

    said: str
    remote: Remote
    size_bytes: int
    sha256: str | None


class _Cut(Exception):  # noqa: N818 (what happened to the connection)
    """The connection broke, or could not be made."""


def unreachable(said: str, address: str, error: Exception) -> str:
    """Return the message of a server that does not answer."""
    reason = error.reason if isinstance(error, URLError) else error
    return f"{said}: {address} cannot be reached: {one_line(reason)}"


def download(source: Source, part: Path, arrived: Callable[[int], None]) -> None:
    """Download a file to `part`, which may have its beginning; `arrived` is told of the bytes.

    Raises:
        InputError: The server refuses it or cannot be reached, or the file is not as announced;
            then `part` is removed.
        OSError: The file cannot be written.
    """
    part.touch()
    idle = 0
    while _size(part) < source.size_bytes:
        before = _size(part)
        try:
            with part.open("ab") as out:
                _receive(source, out, arrived)
        except _Cut as cut:
            idle = 0 if _size(part) > before else idle + 1
            if idle == _ATTEMPTS:
                raise InputError(
                    f"{cut}; {_size(part) / 1e6:.0f} MB are here: the same command goes on"
                ) from None
            time.sleep(_PAUSE_SECONDS * 2**idle if idle else 0)
    arrived(source.size_bytes)
    _check(source, part)


def _size(path: Path) -> int:
    return path.stat().st_size


def _receive(source: Source, out: IO[bytes], arrived: Callable[[int], None]) -> None:
    """Append what follows the bytes that are in a file, up to the end or until a cut."""
    request = source.remote.request()
    have = out.tell()
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = urlopen(request, timeout=TIMEOUT_SECONDS)
    except HTTPError as error:
        with error:
            if error.code >= 500 or error.code == _TOO_MANY:
                raise _Cut(f"{source.said}: the server answers {error.code}") from None
            raise source.remote.refused(error) from None
    except (OSError, HTTPException) as error:
        raise _Cut(unreachable(source.said, source.remote.address, error)) from None
    with answer:
        if have and answer.status != _PARTIAL:  # the server sends all of it again
            out.seek(0)
            out.truncate()
        while block := _block(source, answer):
            out.write(block)
            arrived(min(out.tell(), source.size_bytes))
            if out.tell() > source.size_bytes:
                return
    if out.tell() < source.size_bytes:
        raise _Cut(f"{source.said}: the connection ended early")


def _block(source: Source, answer: Any) -> bytes:
    try:
        block: bytes = answer.read1(BLOCK_BYTES)
    except (OSError, HTTPException) as error:
        raise _Cut(f"{source.said}: the connection broke: {one_line(error)}") from None
    return block


def _check(source: Source, part: Path) -> None:
    """Require the announced size and sha256; a file without them is removed."""
    size = _size(part)
    if size != source.size_bytes:
        wrong = f"{size} bytes instead of {source.size_bytes}"
    elif source.sha256 is not None and (found := sha256(part)) != source.sha256:
        wrong = f"the sha256 {found[:16]}... instead of {source.sha256[:16]}..."
    else:
        return
    part.unlink()
    raise InputError(f"{source.said} has {wrong}; it was not kept, try again")
