"""What the engine takes and gives: works, deltas, counts."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from suffice.engine.config import Config
from suffice.engine.llm import LLM
from suffice.engine.protocol import Runner, Tokenizer
from suffice.engine.request import Logprob, Request
from suffice.sampling_params import SamplingParams


class Busy(Exception):
    """The queue is full; `wait` is the estimated time in seconds until there is room."""

    def __init__(self, message: str, wait: float = 1.0) -> None:
        super().__init__(message)
        self.wait = wait


class Closed(Exception):
    """The engine takes no more work."""


@dataclass(frozen=True)
class Work:
    """One request: tokens and how to go on from them."""

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    priority: int = 0
    key: str = ""
    deadline: float | None = None
    attention: str | None = None
    reuse: bool = True
    known: tuple[tuple[int, ...], ...] = ()  # tokens that each sample has emitted already


@dataclass(frozen=True)
class TokenLogprob:
    """A token with its log probability."""

    token: int
    logprob: float
    rank: int
    text: str


@dataclass(frozen=True)
class Final:
    """What a request cost, with its last delta."""

    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    drafts: int = 0
    accepted: int = 0
    key_rows_read: int = 0
    rows_held: int = 0
    value_rows_read: int = 0
    bytes_read: int = 0
    bytes_held: int = 0
    missing: float | None = None
    error: str | None = None
    error_code: str | None = None


@dataclass(frozen=True)
class Delta:
    """What a step gave one sample."""

    id: str
    sample: int
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[tuple[TokenLogprob, ...], ...] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    final: Final | None = None


@dataclass(frozen=True)
class EngineStats:
    """Counts of the engine."""

    running: int = 0
    waiting: int = 0
    kv_bytes_used: int = 0
    kv_bytes_limit: int = 0
    prefix_bytes: int = 0
    prefix_entries: int = 0
    prefix_hits: int = 0
    prefix_queries: int = 0
    preemptions: int = 0
    steps: int = 0
    last_step_at: float = 0.0


class Engine(Protocol):
    """An engine, used from any thread."""

    def submit(self, work: Work, on_delta: Callable[[Delta], None]) -> None: ...
    def cancel(self, id: str) -> bool: ...
    def stats(self) -> EngineStats: ...
    def drain(self) -> None: ...
    def close(self) -> None: ...


class LoopEngine:
    """Steps a loop in a thread of its own, and hands out what each step gave."""

    def __init__(self, config: Config, runner: Runner, tokenizer: Tokenizer) -> None:
        llm = LLM.from_parts(config, runner, tokenizer)
        self._loop, self._maker = llm._loop, llm._maker
        self._followed: dict[str, _Followed] = {}
        self._inbox: deque[_Followed] = deque()
        self._cancelled: deque[str] = deque()
        self._wake = threading.Event()
        self._closed = False
        self._steps = 0
        self._stepped = 0.0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, work: Work, on_delta: Callable[[Delta], None]) -> None:
        """Queue a request; its deltas are given in the engine's thread.

        Raises:
            InputError: The request is bad.
            Closed: The engine takes no more work.
        """
        if self._closed:
            raise Closed("the engine is closed")
        with self._loop.lock.turn():
            request = self._maker.make(list(work.prompt), work.params)
        self._inbox.append(_Followed(work, request, on_delta))
        self._wake.set()

    def cancel(self, id: str) -> bool:
        """End a request at the next step; return whether it was under way."""
        self._cancelled.append(id)
        self._wake.set()
        return id in self._followed

    def stats(self) -> EngineStats:
        """Return the counts so far."""
        running = {id(sample.request) for sample in self._loop.scheduler.samples()}
        return EngineStats(
            running=len(running),
            waiting=max(0, len(self._followed) - len(running)),
            steps=self._steps,
            last_step_at=self._stepped,
        )

    def drain(self) -> None:
        """Take no more work."""
        self._closed = True

    def close(self) -> None:
        """Take no more work, and stop."""
        self._closed = True
        self._wake.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while True:
            if not self._followed and not self._inbox:
                if self._closed:
                    return
                self._wake.wait()
                self._wake.clear()
            while self._inbox:
                followed = self._inbox.popleft()
                self._followed[followed.work.id] = followed
                self._loop.add(followed.request)
            while self._cancelled:
                if gone := self._followed.get(self._cancelled.popleft()):
                    self._loop.abort(gone.request)
            self._loop.step()
            self._steps += 1
            self._stepped = time.monotonic()
            for id, followed in list(self._followed.items()):
                if followed.give():
                    del self._followed[id]


class _Followed:
    """A request under way, and how much of it has been handed out."""

    def __init__(self, work: Work, request: Request, on_delta: Callable[[Delta], None]) -> None:
        self.work, self.request, self._on_delta = work, request, on_delta
        self._given = [len(known) for known in work.known] or [0] * work.params.n
        self._ended = [False] * work.params.n

    def give(self) -> bool:
        """Hand out what is new; return whether the request has ended."""
        over = self.request.finished
        open = [at for at, ended in enumerate(self._ended) if not ended]
        for at in open:
            self._give(at, last=over and at == open[-1])
        return over

    def _give(self, at: int, last: bool) -> None:
        sample, given = self.request.samples[at], self._given[at]
        text = sample.take_delta()
        tokens = tuple(sample.tokens[given:])
        ended = sample.finish_reason is not None
        if (not tokens and not text and not ended) or (len(sample.tokens) <= given and not ended):
            return  # tokens that are known already are generated again, with the same values
        self._given[at] = len(sample.tokens)
        self._ended[at] = ended
        entries = None
        if self.work.params.logprobs is not None:
            positions = zip(sample.tokens[given:], sample.logprobs[given:], strict=False)
            entries = tuple(_entry(token, found) for token, found in positions)
        self._on_delta(
            Delta(
                self.work.id,
                at,
                text,
                tokens,
                entries,
                sample.finish_reason,
                sample.stop_reason,
                self._final() if last else None,
            )
        )

    def _final(self) -> Final:
        request = self.request
        drafts = request.output().speculation
        return Final(
            prompt_tokens=len(request.tokens),
            cached_tokens=request.cached,
            generated_tokens=sum(len(sample.tokens) for sample in request.samples),
            queue_seconds=request.metrics.queue_seconds,
            prefill_seconds=request.metrics.prefill_seconds,
            decode_seconds=request.metrics.decode_seconds,
            drafts=drafts.num_draft_tokens,
            accepted=drafts.num_accepted_tokens,
            error=request.error,
            error_code="memory" if request.error else None,
        )


def _entry(token: int, found: dict[int, Logprob]) -> tuple[TokenLogprob, ...]:
    likely = sorted(found.items(), key=lambda each: each[1].rank)
    rows = [
        TokenLogprob(each, value.logprob, value.rank, value.decoded_token) for each, value in likely
    ]
    chosen = next(row for row in rows if row.token == token)
    return (chosen, *rows)
