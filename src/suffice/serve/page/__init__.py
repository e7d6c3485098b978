"""The files of the page for browsers. They are sent as they are: nothing builds them.

`lib` has libraries of others, which tools/vendor.py gets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Traversable

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


def _read(folder: Traversable, path: str) -> Iterator[tuple[str, File]]:
    for each in sorted(folder.iterdir(), key=lambda each: each.name):
        if each.is_dir():
            yield from _read(each, f"{path}{each.name}/")
        elif kind := _TYPES.get(each.name.rpartition(".")[2]):
            body = each.read_bytes()
            tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
            yield "/" if each.name == "index.html" else path + each.name, File(body, kind, tag)


FILES = dict(_read(files(__name__), "/page/"))  # by their paths on the server
