"""Answers of the Responses API that are kept, in a file of SQLite, each for its API key alone."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from suffice.paths import PRIVATE

LOG = logging.getLogger("suffice.serve")
_BUSY_SECONDS = 2.0  # that another process may hold the file
_DEEPEST = 1000  # answers that one goes on from
_TABLE = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT NOT NULL, owner BLOB NOT NULL, created REAL NOT NULL, bytes INTEGER NOT NULL,
    previous TEXT, items BLOB NOT NULL, response BLOB NOT NULL, PRIMARY KEY (id, owner)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_age ON responses (created, bytes);
"""


class Stored(NamedTuple):
    """An answer, and what it was asked: its items, and the answer it goes on from."""

    response: dict[str, Any]
    items: list[Any]
    previous: str | None


class Responses:
    """The file. All methods may be called in any thread, and by several processes.

    What cannot be written is lost with a line in the log: no answer fails for it.
    """

    def __init__(self, path: Path, most_bytes: int, most_seconds: float) -> None:
        self._path, self._most_bytes, self._most_seconds = path, most_bytes, most_seconds
        self._lock = threading.Lock()
        self._open: sqlite3.Connection | None = None

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        with self._lock:
            if self._open is not None:
                self._open.close()
                self._open = None

    def put(self, ident: str, key: str, stored: Stored) -> None:
        """Keep an answer; older ones go if there are too many bytes, or if they are too old."""
        items, response = map(msgspec.json.encode, (stored.items, stored.response))
        size, now = len(items) + len(response), time.time()
        row = (ident, _owner(key), now, size, stored.previous, items, response)
        try:
            with self._used() as file:
                file.execute("INSERT OR REPLACE INTO responses VALUES (?,?,?,?,?,?,?)", row)
                file.execute("DELETE FROM responses WHERE created < ?", (now - self._most_seconds,))
                self._shrink(file)
        except (sqlite3.Error, OSError) as error:
            LOG.warning("a response is not kept: %s: %s", self._path, error)

    def _shrink(self, file: sqlite3.Connection) -> None:
        (total,) = file.execute("SELECT coalesce(sum(bytes), 0) FROM responses").fetchone()
        if total <= self._most_bytes:  # as almost always: no list is made of thousands
            return
        oldest = "SELECT id, owner, bytes FROM responses ORDER BY created"
        for ident, owner, size in file.execute(oldest).fetchall():
            if total <= self._most_bytes:
                return
            file.execute("DELETE FROM responses WHERE id = ? AND owner = ?", (ident, owner))
            total -= size

    def get(self, ident: str, key: str) -> Stored | None:
        """Return an answer; None if there is none of this key, or the file cannot be read."""
        wanted = "SELECT response, items, previous FROM responses WHERE id = ? AND owner = ?"
        oldest = time.time() - self._most_seconds
        try:
            with self._used() as file:
                own = (ident, _owner(key), oldest)
                found = file.execute(f"{wanted} AND created >= ?", own).fetchone()
        except (sqlite3.Error, OSError) as error:
            LOG.warning("kept responses cannot be read: %s: %s", self._path, error)
            return None
        if found is None:
            return None
        response, items, previous = found
        return Stored(msgspec.json.decode(response), msgspec.json.decode(items), previous)

    def delete(self, ident: str, key: str) -> bool:
        """Remove an answer; return whether there was one."""
        try:
            with self._used() as file:
                own = (ident, _owner(key))
                done = file.execute("DELETE FROM responses WHERE id = ? AND owner = ?", own)
                return done.rowcount > 0
        except (sqlite3.Error, OSError) as error:
            LOG.warning("a kept response is not removed: %s: %s", self._path, error)
            return False

    def talk(self, ident: str, key: str) -> list[Any] | None:
        """Return the items of a conversation up to an answer, which is its last one.

        None if an answer of it is not kept.
        """
        parts: list[list[Any]] = []
        at: str | None = ident
        while at is not None and len(parts) < _DEEPEST:
            found = self.get(at, key)
            if found is None:
                return None
            parts.append([*found.items, *found.response["output"]])
            at = found.previous
        return [item for part in reversed(parts) for item in part]

    @contextlib.contextmanager
    def _used(self) -> Iterator[sqlite3.Connection]:
        """Yield the open file in a transaction."""
        with self._lock:
            if self._open is None:
                self._open = self._opened()
            try:
                with self._open:
                    yield self._open
            except sqlite3.DatabaseError:  # of a file that was damaged or removed
                self._open.close()
                self._open = None
                raise

    def _opened(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.touch(PRIVATE)
        file = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, check_same_thread=False)
        try:
            file.execute("PRAGMA journal_mode=WAL")
            file.execute("PRAGMA synchronous=NORMAL")
            file.executescript(_TABLE)
        except sqlite3.Error:
            file.close()
            raise
        return file


def _owner(key: str) -> bytes:
    """Return what the file has in place of an API key."""
    return hashlib.blake2b(key.encode(), digest_size=16, person=b"suffice key").digest()
