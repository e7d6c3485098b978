"""The decode loop: start the requests that fit, run a step of all running samples, sample, repeat.

A batch of one is a batch. Prompts are run one at a time, and the samples of a prompt share its run.
A step is one call for all tokens in flight: the last token of each sample and its drafts. Drafts
are accepted in order, up to the first that differs from the chosen token. Threads take turns: the
thread that steps runs the requests of all threads.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from suffice import sampling
from suffice.engine.fair_lock import FairLock
from suffice.engine.interrupts import allowed, deferred
from suffice.engine.protocol import Runner, Tokenizer
from suffice.engine.request import Request, Sample
from suffice.engine.scheduler import Scheduler
from suffice.engine.token_log import TokenLog
from suffice.engine.work import EngineStats
from suffice.errors import InputError, OutOfMemory
from suffice.speculate import NO_DRAFTS, Tree
from suffice.speculate.acceptance import next_token
from suffice.speculate.budget import Budget


class Loop:
    """Drives a runner through the scheduler's requests.

    `lock` is held while requests, the runner or the tokenizer are used.
    """

    def __init__(
        self,
        runner: Runner,
        tokenizer: Tokenizer,
        budget: Budget,
        *,
        max_num_seqs: int,
        max_model_len: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.runner = runner
        self.lock = FairLock()
        self.scheduler = Scheduler(max_num_seqs)
        self.budget = budget
        self._tokenizer = tokenizer
        self._clock = clock
        self._rows = max_model_len

    def add(self, request: Request) -> None:
        """Queue a request."""
        with self.lock.turn(), deferred():
            self.scheduler.add(request)

    def step(self) -> None:
        """Start the next request if it fits, or else run a decode step of every running sample.

        Either gives some sample a new token, unless there is nothing to do. A request that fails,
        for lack of memory or because no token can be chosen, ends with finish reason "abort" and
        its error; the others continue. Ctrl-C is held back during a decode step. A prompt that it
        interrupts is run again, unless its caller aborts the request.
        """
        with self.lock.turn(), deferred():
            if request := self.scheduler.admit():
                self._start(request)
            elif reserved := self._reserved():
                self._decode([sample for sample, _ in reserved], [room for _, room in reserved])
            self.scheduler.retire()

    def abort(self, request: Request, error: str | None = None, code: str | None = None) -> None:
        """End a request and free its memory; do nothing if it has finished."""
        with self.lock.turn(), deferred():
            if not request.finished and error is not None:
                request.error, request.error_code = error, code
            for sample in request.running:
                self._finish(sample, "abort")
            self.scheduler.retire()

    def stats(self) -> EngineStats:
        """Return the state now."""
        with self.lock.turn():
            used, limit = self.runner.memory_bytes
            trace = self.runner.trace
            return EngineStats(
                running=self.scheduler.running,
                waiting=self.scheduler.waiting,
                kv_bytes_used=used,
                kv_bytes_limit=limit,
                key_rows_read=trace.key_rows_read,
                value_rows_read=trace.value_rows_read,
                rows_held=trace.rows_held,
                kv_bytes_read=trace.kv_bytes_read,
                kv_bytes_held=trace.kv_bytes_held,
                weight_bytes_read=trace.weight_bytes_read,
            )

    def _start(self, request: Request) -> None:
        request.metrics.queue_seconds = request.lap()
        first, *others = request.samples
        try:
            first.sequence = self._open(request)
            with allowed():
                logits = self.runner.prefill(first.sequence, request.tokens[request.cached :])
            for sample in others:
                sample.sequence = self.runner.fork(first.sequence)
        except OutOfMemory as error:
            self._close(request)
            self.abort(request, str(error), "too_large")
            return
        except BaseException:  # an interruption, perhaps of another caller: run the prompt again
            for sample in request.samples:
                self._release(sample)
            self.scheduler.put_back(request)
            raise
        request.metrics.prefill_seconds = request.lap()
        row = logits[None]
        samples = request.running
        states = [sample.state for sample in samples]
        tokens = sampling.sample(np.broadcast_to(row, (len(samples), row.shape[1])), states)
        log = TokenLog(self._tokenizer)
        for sample, token in zip(samples, tokens, strict=True):
            self._accept(sample, NO_DRAFTS, row, token, log)
            self._release_finished(sample)
        self._write(log)

    def _open(self, request: Request) -> object:
        """Return a request's first sequence: the kept one, cut to the prefix that the prompt
        shares with it, or a new one.
        """
        kept = request.kept
        if kept is None or kept.sequence is None:
            return self.runner.open(request.id, self._rows)
        request.cached = kept.shared(request.tokens)
        sequence, kept.sequence = kept.sequence, None
        sequence.cache.truncate(request.cached)
        return sequence

    def _reserved(self) -> list[tuple[Sample, int]]:
        """Reserve a row for each running sample; return the samples and how many drafts fit too.

        No drafts are asked for beyond a request's last token.
        """
        room: dict[int, int] = {}
        for sample in self.scheduler.samples():
            if sample.finish_reason is not None:
                continue
            drafts = min(self.runner.most_drafts, sample.request.limit - len(sample.tokens) - 1)
            try:
                room[id(sample)] = self.runner.reserve(
                    sample.sequence, drafts=drafts, tokens_per_step=sample.drafts.tokens_per_step
                )
            except OutOfMemory as error:
                self.abort(sample.request, str(error), "too_large")
        return [(sample, room[id(sample)]) for sample in self.scheduler.samples()]

    def _decode(self, samples: list[Sample], room: list[int]) -> None:
        began = self._clock()
        proposed = self.runner.propose(samples, self.budget.lengths(samples, room))
        drafts = self.budget.cut(samples, proposed)
        drafted = self._clock()
        self.budget.drafted(samples, proposed, drafted - began)
        sequences = [sample.sequence for sample in samples]
        logits = self.runner.verify(sequences, [sample.tokens[-1] for sample in samples], drafts)
        rows = np.split(logits, [*itertools.accumulate(1 + len(tree) for tree in drafts[:-1])])
        tokens = self._first_tokens(samples, drafts, rows, logits)
        log = TokenLog(self._tokenizer)
        for at, sample in enumerate(samples):
            if path := self._accept(sample, drafts[at], rows[at], tokens[at], log):
                self.runner.commit(sample.sequence, path)
                sample.drafts.add(drafts[at], len(path) - 1)
                self.budget.learn(sample, proposed[at], sample.tokens[-len(path) :])
                self._release_finished(sample)
        self._write(log)
        self.budget.checked(drafts, self._clock() - drafted)

    def _first_tokens(
        self,
        samples: list[Sample],
        drafts: list[Tree],
        rows: Sequence[NDArray[np.float32]],
        logits: NDArray[np.float32],
    ) -> Sequence[int | InputError | None]:
        """Choose the token after each sample's last one, for all at once, as without drafts.

        None where that depends on how drafts were sampled. `rows` are `logits`, split by sample.
        """
        if any(tree.draft_probs is not None for tree in drafts):
            return [None] * len(samples)
        if len(logits) > len(samples):  # there are drafts
            logits = np.stack([own[0] for own in rows])
        return sampling.sample(logits, [sample.state for sample in samples])

    def _accept(
        self,
        sample: Sample,
        tree: Tree,
        logits: NDArray[np.float32],
        token: int | InputError | None,
        log: TokenLog,
    ) -> list[int]:
        """Choose the sample's next tokens: the accepted drafts and the token after them.

        `logits` [1 + drafts, V] follow the sample's last token and each draft. `token` is the
        first of the next tokens if it is chosen already. Returns the rows after which tokens were
        chosen; none if choosing failed.
        """
        path: list[int] = []
        node = -1
        while sample.finish_reason is None:
            if token is None:
                token = self._choose(sample, tree, node, logits[node + 1])
            if isinstance(token, InputError):
                self.abort(sample.request, str(token), "invalid")
                return []
            log.add(sample, logits[node + 1], token)
            sample.accept(token)
            path.append(node + 1)
            if (child := tree.child(node, token)) is None:
                break
            node, token = child, None
        return path

    def _choose(
        self, sample: Sample, tree: Tree, node: int, logits: NDArray[np.float32]
    ) -> int | InputError:
        probs = None if tree.draft_probs is None else tree.draft_probs[node + 1]
        if probs is None:
            return sampling.sample(logits[None], [sample.state])[0]
        drafts = [tree.tokens[child] for child in tree.children(node)]
        try:
            return next_token(logits, sample.state, drafts, probs)
        except InputError as error:
            return error

    def _write(self, log: TokenLog) -> None:
        for request, error in log.write():
            self.abort(request, str(error), "invalid")

    def _finish(self, sample: Sample, reason: str) -> None:
        sample.finish(reason)
        self._release(sample)

    def _release_finished(self, sample: Sample) -> None:
        if sample.finish_reason is not None:
            self._release(sample)

    def _release(self, sample: Sample) -> None:
        """Free a finished sample's memory, or hand its cache to the session that keeps it."""
        request, sequence = sample.request, sample.sequence
        self.runner.forget(sample)
        request.metrics.decode_seconds += request.lap()
        sample.sequence = None
        if sequence is None:
            return
        if request.kept is None or sample is not request.samples[0]:
            self.runner.close(sequence)
            return
        # An interruption may have come between the run of a token and its commit, or before the
        # run: keep only the tokens that both the request and the cache have.
        held = (request.tokens + sample.tokens)[: sequence.cache.length]
        sequence.cache.truncate(len(held))
        if request.kept.sequence is not None:
            self.runner.close(request.kept.sequence)
        request.kept.sequence, request.kept.tokens = sequence, held

    def _close(self, request: Request) -> None:
        for sample in request.samples:
            if sample.sequence is not None:
                self.runner.close(sample.sequence)
                sample.sequence = None
