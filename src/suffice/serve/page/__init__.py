"""The files of the page for browsers. They are sent as they are: nothing builds them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True)
class File:
    """A file of the page; `tag` changes with its contents."""

    body: bytes
    kind: str
    tag: str


def _read() -> dict[str, File]:
    found: dict[str, File] = {}
    for each in sorted(files(__name__).iterdir(), key=lambda each: each.name):
        kind = _TYPES.get(each.name.rpartition(".")[2])
        if kind is not None:
            body = each.read_bytes()
            tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
            found["/" if each.name == "index.html" else f"/page/{each.name}"] = File(
                body, kind, tag
            )
    return found


FILES = _read()  # by their paths on the server
