"""An engine that runs in a thread of its own and hands out what each step gives.

Everything that uses the model happens in that thread. Other threads put requests and cancellations
into its inbox; it looks there before every step.
"""

from __future__ import annotations

import atexit
import dataclasses
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from suffice.attention import ATTENTIONS
from suffice.engine.job import Job, final
from suffice.engine.pace import Pace
from suffice.engine.request import Request
from suffice.engine.retained import CachedPrefix
from suffice.engine.rows_files import RowsFiles
from suffice.engine.steps import STEP_SECONDS
from suffice.engine.work import Delta, EngineStats, Final, Look, TokenLogprob, Work
from suffice.errors import Busy, Closed, InputError
from suffice.outside import blamed

if TYPE_CHECKING:
    from suffice.engine.llm import LLM

__all__ = ["Busy", "Closed", "Delta", "Engine", "EngineStats", "Final", "TokenLogprob", "Work"]

DEFAULT_PREFIX_BYTES = 1 << 30
_KEPT_STEPS = 1 << 14  # whose tokens nobody has asked for yet

_log = logging.getLogger(__name__)
_open: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _close_open() -> None:
    """End the threads of engines that nobody closed: Python kills a thread that outlives it."""
    for engine in list(_open):
        engine.close()


class Engine:
    """Runs requests of any thread, and calls back with what each step gives.

    A result is the same, bit for bit, whatever else runs. A failure of one request ends that one.
    """

    def __init__(
        self,
        llm: LLM,
        *,
        max_queue: int = 256,
        max_queued_tokens: int | None = None,
        step_ms: float = 1000 * STEP_SECONDS,
        prefix_bytes: int | None = None,
        attentions: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the thread. The engine shares the loop with `llm`, which may be used meanwhile.

        Args:
            llm: The model.
            max_queue: How many requests may wait.
            max_queued_tokens: How many tokens their prompts may have together; None: any number.
            step_ms: Milliseconds that a step should take at most while anybody decodes.
            prefix_bytes: Limit of the caches that are kept for later requests; 0 keeps none. None
                is the limit of all caches (`kv_cache_bytes`), or 1 GiB if there is none.
            attentions: Attention techniques that requests may ask for, besides the model's own.
            clock: Seconds, for deadlines.

        Raises:
            InputError: A technique that does not exist, or contradicts the model's other options.
        """
        self._loop = llm.loop
        self._loop.turns.step_seconds = step_ms / 1000
        if prefix_bytes is None:
            prefix_bytes = llm.config.kv_cache_bytes or DEFAULT_PREFIX_BYTES
        self._loop.retained.limit = prefix_bytes
        self._maker = llm.maker
        self._techniques = {llm.config.attention: 0}  # and their numbers, the runner's
        for config in map(llm.config.with_attention, attentions):
            if config.attention not in self._techniques:
                self._techniques[config.attention] = llm.runner.allow(config)
        self._files = RowsFiles(llm, self)
        self._names = {n: ATTENTIONS.text_of(each) for each, n in self._techniques.items()}
        self._max_queue = max_queue
        self._max_queued_tokens = max_queued_tokens
        self._clock = clock
        self._jobs: dict[str, Job] = {}  # in order of arrival
        self._inbox: list[Job] = []
        self._wake = threading.Condition()
        self._closing = self._draining = False
        self._settled = True  # the thread has nothing left to do or to tell
        self._stats = EngineStats()
        self._step_tokens: deque[int] = deque(maxlen=_KEPT_STEPS)
        self._pace = Pace(clock())
        self._thread = threading.Thread(target=self._run, name="suffice-engine", daemon=True)
        self._thread.start()
        _open.add(self)

    def submit(self, work: Work, on_delta: Callable[[Delta], None]) -> None:
        """Queue a request; `on_delta` gets its deltas, from the engine's thread, step by step.

        The deltas of a step are handed out before the next begins, so `on_delta` must be quick.

        Raises:
            InputError: A bad prompt or parameter, or an id that is under way already.
            Busy: The queue is full.
            Closed: The engine takes no more work.
        """
        if work.file is None:
            self.start(work, on_delta)
        else:
            self._check_open()
            self._files.submit(work, on_delta)

    def made(self, work: Work, kept: CachedPrefix | None = None) -> Request:
        """Return a work's request; its first sample leaves its cache in `kept`.

        Raises:
            InputError: A bad prompt or parameter.
        """
        return self._maker.make(
            list(work.prompt),
            work.params,
            kept,
            priority=work.priority,
            key=work.key,
            reuse=work.reuse,
            keeps=work.keeps,
            group=work.group,
            technique=self._technique(work.attention),
            adapter=self._maker.adapter(work.adapter),
            reading=work.reading,
        )

    def start(
        self, work: Work, on_delta: Callable[[Delta], None], kept: CachedPrefix | None = None
    ) -> Request:
        """Do as `submit`, and return the request, which the engine's thread changes until it ends.

        See `made` for `kept`.

        Raises:
            InputError: See `submit`, like the following.
            Busy: The queue is full.
            Closed: The engine takes no more work.
        """
        self._check_open()
        request = self.made(work, kept)
        _check_known(work, request)
        if work.grammar is not None:
            if work.params.structured_outputs is not None:
                raise InputError("grammar and structured_outputs contradict each other: give one")
            for sample in request.samples:
                sample.state.constraint = work.grammar.start()
        if work.thinking is not None:
            self._maker.think(request, work.thinking)
        for sample, tokens in zip(request.samples, work.known, strict=False):
            sample.restore(tokens)
        if any(work.known):
            request.scores = None  # they came with the first of these tokens
        job = Job(work, request, on_delta, self._clock)
        with self._wake:
            self._check_open()
            if work.id in self._jobs:
                raise InputError(f"id {work.id!r}: a request of this id is under way")
            self._check_queue(len(work.prompt))
            self._settled = False
            self._jobs[work.id] = job
            self._inbox.append(job)
            self._wake.notify_all()
        return request

    @property
    def attentions(self) -> list[str]:
        """The techniques that requests may ask for; the first is used if they ask for none."""
        return list(self._names.values())

    def _technique(self, asked: str | None) -> int:
        if asked is None:
            return 0
        found = self._techniques.get(ATTENTIONS.build(asked, imports=False))
        if found is None:
            allowed = ", ".join(self.attentions)
            raise InputError(f"attention={asked}: is not allowed; allowed are: {allowed}")
        return found

    def _check_queue(self, tokens: int) -> None:
        scheduler = self._loop.scheduler
        queued = [job.request.tokens for job in self._jobs.values() if not job.request.begun]
        wait = scheduler.wait(len(queued))
        if len(queued) >= self._max_queue:
            raise Busy(f"{len(queued)} requests are waiting already", wait)
        total, most = sum(map(len, queued)), self._max_queued_tokens
        if queued and most is not None and total + tokens > most:
            raise Busy(f"prompts of {total} tokens are waiting already", wait)

    def cancel(self, id: str) -> bool:
        """End a request before the next step; its last delta has finish reason "abort".

        Returns whether it was under way.
        """
        with self._wake:
            job = self._jobs.get(id)
            if job is None:
                return False
            job.cancelled = True
            self._wake.notify_all()
            return True

    @property
    def alive(self) -> bool:
        """Whether its thread runs: without it, nothing that is asked for comes."""
        return self._thread.is_alive()

    def stats(self) -> EngineStats:
        """Return the state after the last step."""
        with self._wake:
            speed = self._pace.per_second(self._stats.generated_tokens, self._clock())
            return dataclasses.replace(self._stats, tokens_per_second=speed)

    def step_tokens(self) -> list[int]:
        """Return the tokens of each step since the last call, of prompts and answers."""
        with self._wake:
            found = [tokens for tokens in self._step_tokens if tokens]
            self._step_tokens.clear()
            return found

    def look(self) -> Look:
        """Return the state and the rows read by layer and head; waits for the end of a step."""
        look, own = self._loop.look(), self.stats()
        stats = dataclasses.replace(
            look.stats,
            steps=own.steps,
            last_step_at=own.last_step_at,
            tokens_per_second=own.tokens_per_second,
        )
        return dataclasses.replace(look, stats=stats)

    def drain(self) -> None:
        """Take no more work, and return when all requests under way have ended."""
        with self._wake:
            self._draining = True
            self._wake.wait_for(lambda: (self._settled and not self._jobs) or self._closing)

    def close(self) -> None:
        """Take no more work, end all requests before the next step, and end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._files.close()
        _open.discard(self)

    def _check_open(self) -> None:
        if self._closing or self._draining:
            raise Closed("the engine takes no more requests: it is being closed")

    def _run(self) -> None:
        while self._wait():
            try:
                self._loop.step()
            except (Exception, SystemExit) as error:  # the engine outlives its bugs, and others'
                _log.exception("a step failed")
                self._fail_all(error)
            self._hand_out()
            self._note()
        for job in list(self._jobs.values()):
            self._end(job)
        self._hand_out()
        self._loop.forget_prefixes()
        self._note()

    def _wait(self) -> bool:
        """Wait for something to do, and start and end what was asked for; False to stop."""
        with self._wake:
            self._wake.wait_for(lambda: self._jobs or self._closing)
            if self._closing:
                return False
            inbox, self._inbox = self._inbox, []
            jobs = list(self._jobs.values())
        for job in inbox:
            self._loop.add(job.request)
        now = self._clock()
        for job in jobs:
            if job.cancelled:
                self._end(job)
            elif job.ends is not None and now >= job.ends:
                seconds = f"{job.work.deadline:g} s"
                self._end(job, f"the deadline of {seconds} has passed", "deadline")
        return True

    def _end(self, job: Job, error: str | None = None, code: str | None = None) -> None:
        self._loop.abort(job.request, error, code)

    def _fail_all(self, error: BaseException) -> None:
        known = str(error) if isinstance(error, InputError) else blamed(error)
        jobs = [job for job in list(self._jobs.values()) if job not in self._inbox]
        held = [job for job in jobs if job.request.held]
        for job in held or jobs:
            self._end(job, f"a step failed: {known or type(error).__name__}", "internal")

    def _hand_out(self) -> None:
        for job in list(self._jobs.values()):
            if job.request.finished:
                with self._wake:
                    del self._jobs[job.work.id]
                    self._wake.notify_all()
            for delta in job.news(self._final):
                try:
                    job.on_delta(delta)
                except Exception:  # the receiver's own
                    _log.exception("the receiver of request %s failed", job.work.id)
                    job.cancelled = True

    def _final(self, request: Request) -> Final:
        guarantee = self._loop.runner.guarantee(request.technique, prompt_read=request.prompt_read)
        return final(request, self._names[request.technique], guarantee)

    def _note(self) -> None:
        stats = dataclasses.replace(
            self._loop.stats(), last_step_at=self._clock(), steps=self._stats.steps + 1
        )
        with self._wake:
            self._step_tokens.append(stats.tokens_run - self._stats.tokens_run)
            self._stats = stats
            self._pace.note(stats.generated_tokens, stats.last_step_at)
            self._settled = not self._jobs
            self._wake.notify_all()


def _check_known(work: Work, request: Request) -> None:
    if work.known and len(work.known) != len(request.samples):
        raise InputError(
            f"known: {len(work.known)} lists of tokens for {len(request.samples)} samples"
        )
    if any(len(tokens) > request.limit for tokens in work.known):
        raise InputError(f"known: a sample has more than the {request.limit} tokens asked for")
