"""Works of an engine whose rows go to a file, or come from one.

Files take seconds, for which no other request waits: they are written and read by threads of their
own, from and into caches that nobody else has meanwhile. What was written or read stays in the
store of the engine, for prompts that begin so.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from suffice.engine import saved_rows
from suffice.engine.protocol import Sequence
from suffice.engine.request import Request
from suffice.engine.retained import CachedPrefix
from suffice.engine.work import Delta, Final, RowsFile, Work
from suffice.errors import Busy, Closed, InputError, OutOfMemory

if TYPE_CHECKING:
    from suffice.engine.llm import LLM

OnDelta = Callable[[Delta], None]
_THREADS = 4  # of those who wait until their text has been run, too
_log = logging.getLogger(__name__)


class Requests(Protocol):
    """What makes and runs the works' requests."""

    def made(self, work: Work, kept: CachedPrefix | None = None) -> Request:
        """Return a work's request."""

    def start(self, work: Work, on_delta: OnDelta, kept: CachedPrefix | None = None) -> Request:
        """Return a work's request, which runs now."""


class RowsFiles:
    """The works under way."""

    def __init__(self, llm: LLM, requests: Requests) -> None:
        self._llm = llm
        self._requests = requests
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="suffice-rows-file")

    def submit(self, work: Work, on_delta: OnDelta) -> None:
        """Write or read the file of a work, whose last delta says how that ended."""
        self._pool.submit(self._run, work, on_delta)

    def close(self) -> None:
        """Take no more works; files are whole or not there."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, work: Work, on_delta: OnDelta) -> None:
        assert work.file is not None, "it has a file"
        try:
            last = self._save(work, work.file) if work.file.saves else self._load(work, work.file)
        except OutOfMemory as error:
            last = _failed(work, str(error), "too_large")
        except (InputError, Busy, Closed) as error:
            last = _failed(work, str(error), "invalid")
        except Exception as error:  # or the client would wait for ever
            _log.exception("the file of request %s failed", work.id)
            last = _failed(work, f"the file failed: {type(error).__name__}", "internal")
        on_delta(last)

    def _save(self, work: Work, file: RowsFile) -> Delta:
        """Run a text, unless its rows are there, and write them.

        Raises:
            InputError: A bad prompt, or the file cannot be written.
        """
        depends_on = self._llm.rows_depend_on(work.adapter, self._requests.made(work).technique)
        saved_rows.check(Path(file.path))
        kept, ended = CachedPrefix(), queue.SimpleQueue[Delta]()

        def take(delta: Delta) -> None:
            if delta.final is not None:
                ended.put(delta)

        request = self._requests.start(dataclasses.replace(work, file=None), take, kept)
        last = ended.get()
        if (sequence := kept.sequence) is None:  # its error is in the last delta
            return dataclasses.replace(last, text="", tokens=())
        try:
            if last.finish_reason != "abort":
                with self._llm.loop.lock.turn():
                    sequence.cache.keep_state()
                    count = int(sequence.cache.reachable(kept.clean))
                saved_rows.save(Path(file.path), sequence.cache, kept.tokens[:count], depends_on)
        finally:
            with self._llm.loop.lock.turn():
                self._llm.loop.memory.keep(request, sequence, kept.tokens[: kept.clean])
        return dataclasses.replace(last, text="", tokens=())

    def _load(self, work: Work, file: RowsFile) -> Delta:
        """Read the rows of a text into the store.

        Raises:
            InputError: The file cannot be read, is damaged, of another model or another text, or
                the store has no room for it.
            OutOfMemory: There is no memory for its rows.
        """
        request = self._requests.made(work)
        depends_on = self._llm.rows_depend_on(work.adapter, request.technique)
        opened = partial(self._opened, file.path)
        sequence, tokens = saved_rows.load(Path(file.path), depends_on, opened)
        loop = self._llm.loop
        with loop.lock.turn():
            if tokens != list(work.prompt):
                self._llm.runner.close(sequence)
                raise InputError(f"{file.path} was replaced while it was read: try again")
            there = loop.memory.keep(request, sequence, tokens)
        if not there and len(tokens) >= loop.retained.least:
            raise InputError(
                f"the rows of {file.path} are more than the engine keeps: give it more "
                "prefix_cache_bytes"
            )
        return _last(work, Final(len(tokens), len(tokens), 0), "length")

    def _opened(self, path: str, tokens: int) -> Sequence:
        """Return a new sequence with memory for tokens, for which what was kept makes room."""
        loop, context = self._llm.loop, self._llm.config.max_model_len
        assert context is not None, "the config is resolved"
        with loop.lock.turn():
            while True:
                try:
                    return saved_rows.opened(self._llm.runner, context, path, tokens)
                except OutOfMemory:
                    if not loop.retained.drop_oldest():
                        raise


def _failed(work: Work, error: str, code: str) -> Delta:
    return _last(work, Final(len(work.prompt), 0, 0, error=error, error_code=code), "abort")


def _last(work: Work, final: Final, reason: str) -> Delta:
    return Delta(work.id, 0, "", (), None, reason, None, final)
