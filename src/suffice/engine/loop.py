"""The decode loop: start the requests that fit, run a step for all of them, sample, repeat.

A batch of one is a batch. A step is one call for everything in flight: the last token of each
sample and its drafts, and parts of prompts that are being run. Drafts are accepted in order, up to
the first that differs from the chosen token. Threads take turns: the thread that steps runs the
requests of all threads.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from suffice import sampling
from suffice.attention.rule import weakest
from suffice.engine.accepting import Accepting
from suffice.engine.disk_prefixes import DiskPrefixes
from suffice.engine.fair_lock import FairLock
from suffice.engine.interrupts import deferred
from suffice.engine.memory import Memory, Parked
from suffice.engine.protocol import LoopRunner, Rows, Tokenizer
from suffice.engine.request import Request, Sample
from suffice.engine.retained import LEAST_ROWS, Retained
from suffice.engine.scheduler import Scheduler
from suffice.engine.steps import STEP_SECONDS, Turns
from suffice.engine.token_log import TokenLog
from suffice.engine.work import EngineStats, Look
from suffice.errors import InputError, OutOfMemory
from suffice.speculate import NO_DRAFTS, Tree, Widths
from suffice.speculate.budget import Budget

Part = tuple[Request, int]  # of a prompt: how many tokens
Going = tuple[Sample, int]  # with how many rows more than one
POPULATED_BYTES = 8 << 20  # of new memory in a step: some milliseconds


class Loop:
    """Drives a runner through the scheduler's requests.

    `lock` is held while requests, the runner or the tokenizer are used. While anybody decodes,
    prompts take what is left of `step_seconds` (None: see `Turns`). `prefix_bytes` limits the
    caches that are kept for later requests (None: by the runner's limit alone), `least_prefix` is
    the shortest kept. `disk`: where more of them are kept.
    """

    def __init__(
        self,
        runner: LoopRunner,
        tokenizer: Tokenizer,
        budget: Budget,
        *,
        max_num_seqs: int,
        max_model_len: int,
        step_seconds: float | None = STEP_SECONDS,
        prefix_bytes: int | None = 0,
        least_prefix: int = LEAST_ROWS,
        disk: DiskPrefixes | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.runner = runner
        self.lock = FairLock()
        self.scheduler = Scheduler(max_num_seqs, clock)
        self.budget = budget
        self.retained = Retained(runner.close, prefix_bytes, least_prefix)
        self.turns: Turns[Request] = Turns(runner.tile_rows, step_seconds, runner.tile_unit)
        self.disk = disk
        self.memory = Memory(runner, self.scheduler, self.retained, max_model_len, disk)
        self._accepting = Accepting(self.abort)
        self._tokenizer, self._clock = tokenizer, clock
        self._prompt_tokens = self._generated_tokens = 0
        self._checked_drafts = self._accepted_drafts = 0

    def add(self, request: Request) -> None:
        """Queue a request."""
        with self.lock.turn(), deferred():
            self.scheduler.add(request)

    def step(self) -> None:
        """Start the requests that fit, and run a step of all that run.

        Each sample gets a new token, unless its prompt, or the tokens that it had before it was
        parked, are still being run. A request that fails, for lack of memory or because no token
        can be chosen, ends with finish reason "abort" and its error; the others continue. Ctrl-C is
        held back until the end of the step.
        """
        with self.lock.turn(), deferred():
            self._admit()
            prompts = [request for request in self.scheduler.running if request.left]
            ready, behind = self._reserved(prompts)
            prompts = [request for request in prompts if request.held]
            prompts = self._populated(prompts)
            began = self._clock()
            first, *rest = self.turns.rounds(prompts, len(ready)) or [[]]
            ran = self._run(ready, behind, first)
            for parts in rest:
                ran += self._run([], [], [part for part in parts if part[0].held])
            if ready or behind or prompts:
                seconds = self._clock() - began
                self.turns.times.learn(len(ready) + len(behind), ran, seconds)
                self.memory.disk.write_behind(seconds, self.turns.times.token)
            else:
                self.memory.disk.wait()
            self.scheduler.retire()

    def _populated(self, prompts: list[Request]) -> list[Request]:
        """Map a part of the memory that prompts lack, the shortest first; return who lacks none."""
        prompts = self.memory.disk.loaded(prompts)
        lacking = {
            id(each): each for each in prompts if not self.runner.populate(each.leader.sequence, 0)
        }
        room = sys.maxsize if self.turns.step_seconds is None else POPULATED_BYTES
        for each in sorted(lacking.values(), key=lambda request: request.left):
            if room <= 0:
                break
            if self.runner.populate(each.leader.sequence, room):
                del lacking[id(each)]
            room -= self.runner.bytes_of(each.left)
        return [each for each in prompts if id(each) not in lacking]

    def abort(self, request: Request, error: str | None = None, code: str | None = None) -> None:
        """End a request and free its memory; do nothing if it has finished.

        `error` says why it failed, in one line, and `code` in a word: see `Final.error_code`.
        """
        with self.lock.turn(), deferred():
            if not request.finished and error is not None:
                request.error, request.error_code = error, code
            for sample in request.running:
                sample.finish("abort")
                self._release(sample)
            self.scheduler.retire()

    def stats(self) -> EngineStats:
        """Return the state now."""
        with self.lock.turn():
            used, limit = self.runner.memory_bytes
            trace = self.runner.trace
            step_seconds, row_seconds = self.turns.times.line()
            return EngineStats(
                running=len(self.scheduler.running),
                waiting=self.scheduler.waiting,
                deferred=self.scheduler.deferred,
                kv_bytes_used=used,
                kv_bytes_limit=limit,
                prefix_bytes=self.retained.bytes,
                prefix_entries=len(self.retained),
                prefix_hits=self.retained.hits,
                prefix_queries=self.retained.queries,
                preemptions=self.memory.preemptions,
                prompt_tokens=self._prompt_tokens,
                prompt_rows_copied=self.memory.rows_copied,
                growth_bytes_copied=trace.growth_bytes_copied,
                generated_tokens=self._generated_tokens,
                key_rows_read=trace.key_rows_read,
                value_rows_read=trace.value_rows_read,
                rows_held=trace.rows_held,
                kv_bytes_read=trace.kv_bytes_read,
                kv_bytes_held=trace.kv_bytes_held,
                state_bytes_moved=trace.state_bytes_moved,
                weight_bytes_read=trace.weight_bytes_read,
                experts_read=trace.experts_read,
                experts_held=trace.experts_held,
                expert_bytes_read=trace.expert_bytes_read,
                expert_bytes_held=trace.expert_bytes_held,
                drafts=self._checked_drafts,
                accepted=self._accepted_drafts,
                token_seconds=self.turns.times.token or 0.0,
                step_seconds=step_seconds,
                row_seconds=row_seconds,
                **(self.disk.stats() if self.disk else {}),
            )

    def look(self) -> Look:
        """Return the state now, and what was read by layer and head; waits for a step's end."""
        with self.lock.turn():
            trace = self.runner.trace
            keys, values, held = trace.rows[:3].tolist()
            running = self.scheduler.running
            missing = [request.all_reads.missing for request in running]
            known = {
                self.runner.guarantee(request.technique, prompt_read=request.prompt_read)
                for request in running
            }
            return Look(
                self.stats(),
                keys,
                values,
                held,
                weakest(known) if known else None,
                max(missing, default=0.0),
                trace.audit.plain() if trace.audit and trace.audit.tokens else None,
            )

    def forget_prefixes(self) -> None:
        """Free the caches that are kept for later requests."""
        with self.lock.turn():
            self.retained.clear()

    def _admit(self) -> None:
        while request := self.scheduler.admit(self.memory.fits):
            request.count_time()
            try:
                self.memory.start(request)
            except Parked:
                return
            except OutOfMemory as error:
                self.abort(request, str(error), "too_large")

    def _reserved(self, prompts: list[Request]) -> tuple[list[Going], list[Going]]:
        """Reserve rows for the samples that decode, each with how many more rows fit.

        Returns those that are ready for a token, whose further rows are for drafts, none beyond a
        request's last token; and those that are behind, whose rows are for tokens that are known.
        """
        waiting = set(map(id, prompts))
        most = self.runner.most_drafts
        ready: list[Going] = []
        behind: list[Going] = []
        for sample in self.scheduler.samples():
            request = sample.request
            if (
                sample.sequence is None
                or sample.finish_reason is not None
                or id(request) in waiting
            ):
                continue
            more = min(most, request.limit - len(sample.tokens) - 1)
            if known := sample.behind:
                more = min(known, self.runner.known_rows) - 1
            try:
                room = self.memory.reserve(sample, more)
            except Parked:
                continue
            except OutOfMemory as error:
                self.abort(request, str(error), "too_large")
                continue
            (behind if known else ready).append((sample, room))
        return _held(ready), _held(behind)  # one that came later may have parked others

    def _run(self, ready: list[Going], behind: list[Going], parts: list[Part]) -> int:
        """Run a call for samples and parts of prompts; return how many tokens of prompts ran.

        Who is `ready` gets a token; for who is `behind`, known tokens are run.
        """
        parts = [(request, request.together(count)) for request, count in parts]
        samples, room = [sample for sample, _ in ready], [room for _, room in ready]
        shapes = self.budget.shapes(samples, room) if samples else []
        self._follow([*samples, *(s for s, _ in behind), *(each.leader for each, _ in parts)])
        proposed, drafts = self._drafts(samples, shapes, room)
        began = self._clock()
        follows = self.budget.follows
        rows = [
            Rows(s.sequence, [s.tokens[-1]], drafts=tree, follow=follows(s), **s.request.how)
            for s, tree in zip(samples, drafts, strict=True)
        ]
        rows += [
            Rows(s.sequence, s.next_known(1 + more), 0, follow=follows(s), **s.request.how)
            for s, more in behind
        ]
        rows += [self._part(request, count) for request, count in parts]
        if not rows:
            return 0
        logits = self.runner.run(rows)
        going = len(ready) + len(behind)
        for each in rows[len(ready) : going]:
            self.runner.commit(each.sequence, list(range(len(each.tokens))))
        if samples:
            self._accept(samples, proposed, drafts, logits[: len(samples)])
        if len(rows) == len(samples):
            self.budget.checked(drafts, self._clock() - began)
        else:
            self.budget.unchecked(self._clock() - began)
        self._score(parts, logits[going:])
        for (request, count), found in zip(parts, logits[going:], strict=True):
            self._prompt_tokens += count
            self.memory.disk.keep_state(request)
            self.scheduler.shares.charge(request.key, prompt=count)
            if request.held and not request.left:  # another's end may have parked it
                self._end_prompt(request, found[-1:])
        return sum(count for _, count in parts)

    def _part(self, request: Request, count: int) -> Rows:
        sequence = request.leader.sequence
        first = sequence.cache.length
        end = first + count
        outputs = max(end - max(first, request.settled), 0)
        if outputs == 1 and count == request.left:  # the last row is for samples without a token
            outputs = int(not all(sample.tokens for sample in request.running))
        tokens = request.tokens[first:end]
        states = request.reader is not None and request.reader.states
        follow = self.budget.follows(request.leader)
        return Rows(
            sequence, tokens, outputs, prompt=True, states=states, follow=follow, **request.how
        )

    def _score(self, parts: list[Part], logits: list[NDArray[np.float32]]) -> None:
        """Give the tokens of prompts whose log probabilities are asked for theirs, and readers
        their rows.

        No more rows have logits at a time than a call runs, however long the prompts are.
        """
        log = TokenLog(self._tokenizer)
        for (request, _), rows in zip(parts, logits, strict=True):
            log.add_prompt(request, rows)
            if request.reader is not None:
                request.reader.take(rows)
        self._write(log)

    def _follow(self, samples: list[Sample]) -> None:
        """Let a head read what waits for it; that has a time of its own, which drafts cost too."""
        began = self._clock()
        self.runner.follow([each.sequence for each in samples if self.budget.follows(each)])
        self.budget.followed(self._clock() - began)

    def _drafts(
        self, samples: list[Sample], shapes: list[Widths], room: list[int]
    ) -> tuple[list[Tree], list[Tree]]:
        """Return the drafts that were made for each sample, and those that are to be checked."""
        if not samples:
            return [], []
        began = self._clock()
        proposed = self.runner.propose(samples, shapes)
        drafts = self.budget.cut(samples, proposed, room)
        self.budget.drafted(samples, proposed, self._clock() - began)
        return proposed, drafts

    def _accept(
        self,
        samples: list[Sample],
        proposed: list[Tree],
        drafts: list[Tree],
        logits: list[NDArray[np.float32]],
    ) -> None:
        tokens = self._accepting.first_tokens(samples, drafts, logits, self.runner.maxima)
        log = TokenLog(self._tokenizer)
        for at, sample in enumerate(samples):
            path = self._accepting.accept(sample, drafts[at], logits[at], tokens[at], log)
            if not path:
                continue
            self.runner.commit(sample.sequence, path)
            sample.drafts.add(drafts[at], len(path) - 1)
            self._checked_drafts += len(drafts[at])
            self._accepted_drafts += len(path) - 1
            self.budget.learn(sample, proposed[at], sample.tokens[-len(path) :])
            self._note(sample, len(path))
        self._write(log)

    def _end_prompt(self, request: Request, logits: NDArray[np.float32]) -> None:
        """Choose the first token of each sample whose prompt has been run."""
        try:
            self.memory.end(request)
        except Parked:
            return
        except OutOfMemory as error:
            self.abort(request, str(error), "too_large")
            return
        request.count_time()
        samples = [sample for sample in request.running if not sample.tokens]
        if request.reader is not None:
            try:
                request.reader.end()
            except InputError as error:
                self.abort(request, str(error), "invalid")
                return
        if request.limit == 0:
            for sample in samples:
                sample.finish("length")
                self._release(sample)
        if request.limit == 0 or not samples:
            return
        states = [sample.state for sample in samples]
        rows = np.broadcast_to(logits, (len(samples), logits.shape[1]))
        log = TokenLog(self._tokenizer)
        for sample, token in zip(samples, sampling.sample(rows, states), strict=True):
            if self._accepting.accept(sample, NO_DRAFTS, logits, token, log):
                self._note(sample, 1)
        self._write(log)

    def _note(self, sample: Sample, tokens: int) -> None:
        self._generated_tokens += tokens
        self.scheduler.shares.charge(sample.request.key, output=tokens)
        if sample.finish_reason is not None:
            self._release(sample)

    def _write(self, log: TokenLog) -> None:
        for request, error in log.write():
            self.abort(request, str(error), "invalid")

    def _release(self, sample: Sample) -> None:
        sample.request.count_time()
        self.memory.release(sample)


def _held(going: list[Going]) -> list[Going]:
    """Return those that still have their sequence."""
    return [each for each in going if each[0].sequence is not None]
