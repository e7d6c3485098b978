"""A client of OpenAI's API that notes when each part of a stream came.

It is written on sockets, since a library's work per chunk would be part of what is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from suffice.errors import InputError, one_line

_MOST_LINE = 1 << 20
_CUT = (asyncio.IncompleteReadError, asyncio.LimitOverrunError)


@dataclass(frozen=True)
class Target:
    """Where a server is: of `http://host:port/prefix`."""

    host: str
    port: int
    prefix: str
    tls: bool
    key: str = ""

    @classmethod
    def of(cls, url: str, key: str = "") -> Target:
        """Read a base URL, with or without `/v1`.

        Raises:
            InputError: It is no http or https URL.
        """
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise InputError(
                f"--base-url {url}: is no URL; it looks like http://host:8000"
            ) from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"--base-url {url}: must be like http://host:8000")
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, port, prefix, parts.scheme == "https", key)


@dataclass
class Exchange:
    """One request and its answer. Times are those of `time.perf_counter`, in seconds.

    Attributes:
        chunks: When a part of the text came.
        tokens: Generated tokens as the server counts them; the number of chunks if it does not.
        error: Why there is no whole answer; None if there is one.
    """

    sent: float
    chunks: list[float] = field(default_factory=list)
    ended: float = 0.0
    tokens: int = 0
    prompt_tokens: int = 0
    text: str = ""
    error: str | None = None


async def exchange(
    target: Target,
    path: str,
    body: Mapping[str, Any],
    seconds: float,
    into: Exchange | None = None,
) -> Exchange:
    """Send a request that streams, and read all of its answer.

    `into` is filled meanwhile, for a caller who watches it; it is what is returned.
    """
    found = Exchange(time.perf_counter()) if into is None else into
    try:
        await asyncio.wait_for(_exchanged(target, path, body, found), seconds)
    except asyncio.TimeoutError:
        found.error = f"no whole answer within {seconds:g} seconds"
    except (OSError, ValueError, LookupError, AttributeError, *_CUT) as error:
        found.error = one_line(f"{type(error).__name__}: {error}")
    found.ended = found.chunks[-1] if found.chunks else time.perf_counter()
    return found


async def get(target: Target, path: str) -> Any:
    """Return the JSON that a GET answers.

    Raises:
        InputError: There is no answer, or another.
    """
    found = await text(target, path)
    try:
        return json.loads(found)
    except ValueError as error:
        raise InputError(f"{target.host}:{target.port}{path}: {one_line(error)}") from None


async def text(target: Target, path: str) -> str:
    """Return the text that a GET answers.

    Raises:
        InputError: There is no answer, or its status is not 200.
    """
    where = f"{target.host}:{target.port}{target.prefix}{path}"
    try:
        async with _connected(target) as (reader, writer):
            writer.write(_head(target, "GET", path, 0))
            status, headers = await _status(reader)
            data = b"".join([part async for part in _body(reader, headers)])
        if status != 200:
            raise InputError(f"{where} answers {status}: {one_line(data.decode(errors='replace'))}")
        return data.decode()
    except (OSError, ValueError, LookupError, *_CUT) as error:
        if isinstance(error, InputError):
            raise
        if isinstance(error, ConnectionRefusedError):
            raise InputError(
                f"no server answers at {target.host}:{target.port}: start `suffice serve`, or give "
                "another --base-url"
            ) from None
        raise InputError(f"{where}: {one_line(error) or type(error).__name__}") from None


@contextlib.asynccontextmanager
async def _connected(
    target: Target,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    context = ssl.create_default_context() if target.tls else None
    reader, writer = await asyncio.open_connection(
        target.host, target.port, ssl=context, limit=_MOST_LINE
    )
    try:
        yield reader, writer
    finally:
        writer.close()


def _head(target: Target, method: str, path: str, length: int) -> bytes:
    lines = [
        f"{method} {target.prefix}{path} HTTP/1.1",
        f"Host: {target.host}:{target.port}",
        "Connection: close",
        "Accept: */*",
    ]
    if target.key:
        lines.append(f"Authorization: Bearer {target.key}")
    if method == "POST":
        lines += ["Content-Type: application/json", f"Content-Length: {length}"]
    return "\r\n".join([*lines, "", ""]).encode()


async def _status(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first = (await reader.readuntil(b"\r\n")).split(None, 2)
    headers = {}
    while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip().lower()
    return int(first[1]), headers


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    if "chunked" in headers.get("transfer-encoding", ""):
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            yield (await reader.readexactly(size + 2))[:-2]
    elif "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"]))
    else:
        while part := await reader.read(1 << 16):
            yield part


async def _exchanged(target: Target, path: str, body: Mapping[str, Any], found: Exchange) -> None:
    data = json.dumps(body).encode()
    async with _connected(target) as (reader, writer):
        found.sent = time.perf_counter()
        writer.write(_head(target, "POST", path, len(data)) + data)
        await writer.drain()
        status, headers = await _status(reader)
        rest = b""
        async for part in _body(reader, headers):
            now = time.perf_counter()
            if status != 200:
                rest += part
                continue
            *events, rest = (rest + part).replace(b"\r\n", b"\n").split(b"\n\n")
            for event in events:
                _read(event, now, found)
    if status != 200:
        found.error = one_line(f"{status}: {rest.decode(errors='replace')}")
    elif not found.chunks and found.error is None:
        found.error = "the stream has no text"
    found.tokens = found.tokens or len(found.chunks)


def _read(event: bytes, now: float, found: Exchange) -> None:
    """Take one event of a stream that came at `now`."""
    line = next((each for each in event.split(b"\n") if each.startswith(b"data:")), b"")
    data = line[5:].strip()
    if not data or data == b"[DONE]":
        return
    chunk = json.loads(data)
    if "error" in chunk:
        found.error = one_line(chunk["error"])
    for choice in chunk.get("choices") or ():
        text = choice.get("text") or (choice.get("delta") or {}).get("content")
        if text:
            found.chunks.append(now)
            found.text += text
    if usage := chunk.get("usage"):
        found.tokens = usage.get("completion_tokens") or 0
        found.prompt_tokens = usage.get("prompt_tokens") or 0
