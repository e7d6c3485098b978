"""A model hub on this machine: the two addresses of the Hugging Face Hub that pulls use.

Files are served with ranges, from a store at another port, as the hub points to one. A test can
make it refuse, cut connections, or ignore ranges.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee"


@dataclass
class FakeHub:
    """What the hub has, how it behaves, and what it was asked.

    Attributes:
        repos: Files by repository and path.
        gated: Repositories that need the token "sesame".
        cut_after: Bytes after which the store breaks off each answer; None for never.
        ranges: Whether the store sends parts of files.
        damaged: Whether it sends the bytes in another order.
        status: What hub and store answer for files; None for the files.
        asked: The requests: "index", "file" (both of the hub) or "store", path, range and token.
    """

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    cut_after: int | None = None
    ranges: bool = True
    damaged: bool = False
    status: int | None = None
    asked: list[tuple[str, str, str | None, str | None]] = field(default_factory=list)
    address: str = ""
    store: str = ""

    def index(self, repo: str) -> dict[str, Any]:
        """Return what the hub says of a repository."""
        files = [
            {
                "rfilename": path,
                "size": len(data),
                "blobId": hashlib.sha1(data).hexdigest(),
                **(
                    {
                        "lfs": {
                            "sha256": hashlib.sha256(data).hexdigest(),
                            "size": len(data),
                            "pointerSize": 134,
                        }
                    }
                    if path.endswith((".gguf", ".safetensors"))
                    else {}
                ),
            }
            for path, data in self.repos[repo].items()
        ]
        return {"id": repo, "sha": COMMIT, "siblings": files, "cardData": {"license": "mit"}}

    def sent(self, kind: str) -> list[str]:
        """Return the paths that were asked for of one kind."""
        return [path for each, path, _, _ in self.asked if each == kind]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, hub: FakeHub, store: bool, *arguments: Any) -> None:
        self.hub, self.store = hub, store
        super().__init__(*arguments)

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).lstrip("/")
        token = self.headers.get("Authorization")
        kind = "store" if self.store else "index" if path.startswith("api/") else "file"
        self.hub.asked.append((kind, path, self.headers.get("Range"), token))
        try:
            if self.hub.status is not None and kind != "index":
                self._end(self.hub.status)
            elif kind == "store":
                self._send(path)
            else:
                self._hub(kind, path, token)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _hub(self, kind: str, path: str, token: str | None) -> None:
        words = path.removeprefix("api/models/").split("/")
        repo, revision = "/".join(words[:2]), words[3]
        if repo not in self.hub.repos:
            self._end(401, code="RepoNotFound")
        elif repo in self.hub.gated and token != "Bearer sesame":
            self._end(403 if token else 401, code="GatedRepo")
        elif revision not in ("main", "v1", COMMIT):
            self._end(404, code="RevisionNotFound")
        elif kind == "index":
            self._end(200, json.dumps(self.hub.index(repo)).encode())
        else:
            self.send_response(302)
            self.send_header("Location", f"{self.hub.store}/{path}")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _send(self, path: str) -> None:
        words = path.split("/")
        data = self.hub.repos["/".join(words[:2])]["/".join(words[4:])]
        if self.hub.damaged:
            data = data[::-1]
        given = self.headers.get("Range") if self.hub.ranges else None
        start = int(given.removeprefix("bytes=").rstrip("-")) if given else 0
        self.send_response(206 if given else 200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        end = len(data) if self.hub.cut_after is None else start + self.hub.cut_after
        self.wfile.write(data[start:end])
        if end < len(data):
            self.close_connection = True

    def _end(self, status: int, body: bytes = b"", code: str | None = None) -> None:
        self.send_response(status)
        if code is not None:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve a hub while the block runs; its address goes to HF_ENDPOINT."""
    servers = [
        ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, hub, store))
        for store in (False, True)
    ]
    hub.address, hub.store = (f"http://127.0.0.1:{each.server_port}" for each in servers)
    threads = [threading.Thread(target=each.serve_forever, args=(0.05,)) for each in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()
