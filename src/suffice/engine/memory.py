"""Gives samples their sequences: from what is free, from the prefix store, or from who gives way.

One limit of bytes holds for the caches of running requests and those of the store together. When it
is reached, the store's caches go first, then the newest request of the lowest priority is parked:
it waits again, and its prompt and its tokens so far are run again unless its cache is still there.
Its text does not change by that. Only a request that does not fit alone ends for lack of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from suffice.engine.disk_prefixes import DiskPrefixes
from suffice.engine.protocol import LoopRunner
from suffice.engine.protocol import Sequence as RunnerSequence
from suffice.engine.request import Request, Sample
from suffice.engine.requests_on_disk import RequestsOnDisk
from suffice.engine.retained import Entry, Retained
from suffice.engine.scheduler import Answer, Scheduler
from suffice.errors import OutOfMemory
from suffice.trace import Reads

T = TypeVar("T")


class Parked(Exception):  # noqa: N818
    """The request that asked for memory was parked itself."""


class Memory:
    """The sequences of all requests of a scheduler; a sequence may grow to `rows` tokens."""

    def __init__(
        self,
        runner: LoopRunner,
        scheduler: Scheduler,
        retained: Retained,
        rows: int,
        disk: DiskPrefixes | None = None,
    ) -> None:
        self.retained = retained
        self.disk = RequestsOnDisk(disk, runner, scheduler, retained)
        self.preemptions = 0
        self.rows_copied = 0  # of the beginnings of prompts
        self._runner = runner
        self._scheduler = scheduler
        self._rows = rows

    def fits(self, request: Request) -> Answer:
        """Say whether a request may start; requests of a lower priority are parked for it.

        They give way for memory, and for places among those that decode together.
        """
        tokens = tuple(request.tokens[: request.settled])
        if self._shares(request) and not request.parked:
            _, ready = self.retained.find(tokens, self._group(request))
            source, rows = self.retained.coming(tokens, self._group(request))
            if source is not None and rows >= max(ready + 1, self.retained.least):
                source.marks.add(rows)
                return "later"
        while not self._has_room(request):
            victim = self._scheduler.who_gives_way(to=request)
            if victim is None:
                return "no" if self._scheduler.running else "yes"
            self.park(victim)
        while self._scheduler.lacking(request):
            victim = self._scheduler.who_gives_way(to=request)
            assert victim is not None, "the scheduler has counted them"
            self.park(victim)
        return "yes"

    def _shares(self, request: Request) -> bool:
        """Whether a request may use rows of others, and they of it."""
        return request.reuse and self.retained.enabled and self._runner.shares_prompts

    def _group(self, request: Request) -> str:
        """Return the name of the caches that a request may use and leave.

        Adapters change keys and values, so requests of different ones share none.
        """
        technique = request.technique if self._runner.prompts_by_technique else 0
        return f"{technique}:{request.adapter}:{request.group}"

    def _has_room(self, request: Request) -> bool:
        used, limit = self._runner.memory_bytes
        if limit == 0:
            return True
        held = sum(
            int(entry.sequence.cache.bytes)
            for entry in request.parked.values()
            if self.retained.has(entry)
        )
        lengths = (len(request.tokens) + len(sample.tokens) for sample in request.running)
        needed = sum(map(self._runner.bytes_of, lengths)) - held
        if request.preemptions:  # it waits until those who run can grow, or it would soon be back
            needed += len(self._scheduler.samples()) * self._runner.bytes_of(0)
        return needed <= limit - used + self.retained.bytes - held

    def start(self, request: Request) -> None:
        """Give an admitted request the sequence in which its prompt is run.

        Raises:
            Parked: There was no memory after all: it waits again.
            OutOfMemory: It does not fit even alone.
        """
        if self._restored(request):
            return
        leader = request.leader
        leader.sequence, branches = self._first(request)
        found = self.disk.found(request)
        left = len(request.tokens) - leader.sequence.cache.length
        self._get(lambda: self._runner.begin(leader.sequence, left), request)
        self.disk.load(request, found)
        if self._shares(request):
            tokens = tuple(request.tokens)
            request.source = self.retained.add_running(
                tokens, leader.sequence, self._group(request)
            )
            request.source.marks |= branches

    def _restored(self, request: Request) -> bool:
        """Give a parked request its caches back; False if one of them is gone."""
        entries = {at: request.parked.get(sample) for at, sample in enumerate(request.running)}
        parked, request.parked = list(request.parked.values()), {}
        whole = all(entry is not None and self.retained.has(entry) for entry in entries.values())
        if whole and entries:
            for sample, entry in zip(request.running, entries.values(), strict=True):
                assert entry is not None
                sample.sequence = self.retained.take(entry)
                sample.chain = self.disk.chain(request)
            return True
        for entry in parked:
            entry.wanted = False
        return False

    def _first(self, request: Request) -> tuple[RunnerSequence, set[int]]:
        """Return a request's first sequence, with the rows that its prompt need not run.

        The second are the lengths after which its prompt leaves others.
        """
        branches: set[int] = set()
        request.leader.chain = self.disk.chain(request)
        kept = request.kept
        if kept is not None and kept.sequence is not None:
            shared = min(kept.shared(request.tokens), request.settled)
            sequence, kept.sequence = kept.sequence, None
            request.cached = sequence.cache.reachable(shared)
            sequence.cache.truncate(request.cached)
            exact = self._runner.shares_answers(request.technique)
            request.clean = exact or request.cached <= kept.clean
            if not request.clean:
                request.leader.chain = None
            return sequence, branches
        if self._shares(request):
            tokens = tuple(request.tokens[: request.settled])
            entry, rows = self.retained.find(tokens, self._group(request))
            self.retained.queries += len(request.tokens)
            branches = self._branches(request, tokens, rows)
            if entry is not None and (copied := self._reused(entry, rows, request)) is not None:
                self.retained.hits += rows
                request.cached = rows
                return copied, branches
        request.cached = 0
        return self._runner.open(request.id, self._rows), branches

    def _branches(self, request: Request, tokens: tuple[int, ...], rows: int) -> set[int]:
        """Return where a prompt leaves others that were run, if they cannot be cut back to it.

        Where two prompts part, a third may well part from them.
        """
        common = self.retained.common(tokens, self._group(request))
        return {common} if common >= rows + self.retained.least else set()

    def _reused(self, entry: Entry, rows: int, request: Request) -> RunnerSequence | None:
        """Take an entry's cache over, or copy its first rows; None if there is no memory."""
        free = not (entry.running or entry.wanted)
        # A prompt ends with the marks of the turn that it begins, which those who go on have not.
        stays = entry.kept > rows + self.retained.least
        if free and not stays and 2 * rows >= entry.sequence.cache.length:
            sequence: RunnerSequence = self.retained.take(entry)
        else:
            self.retained.touch(entry)
            spare = len(request.tokens) - rows + 1
            while True:
                try:
                    sequence = self._runner.fork(entry.sequence, rows, spare)
                    self.rows_copied += rows
                    break
                except OutOfMemory:
                    if not self.retained.drop_oldest(but=entry):
                        return None
        self._runner.rewind(sequence, rows)
        return sequence

    def end(self, request: Request) -> None:
        """End a request's prompt, and give each of its samples a copy of its sequence.

        Raises:
            Parked: There was no memory: the request waits again.
            OutOfMemory: It does not fit even alone.
        """
        try:
            self._runner.end(request.leader.sequence)
        except OutOfMemory:
            if not self.retained.drop_oldest() and len(self._scheduler.running) == 1:
                raise
            # The policy may have evicted from some layers already: the prompt runs again.
            self._runner.close(self._detached(request.leader))
            self.park(request)
            raise Parked from None
        leader, *others = request.running
        for sample in others:
            sample.sequence = self._get(lambda: self._runner.fork(leader.sequence), request)
            sample.chain = leader.chain and leader.chain.copy()

    def reserve(self, sample: Sample, drafts: int) -> int:
        """Reserve a row for a sample; return how many of `drafts` drafts fit as well.

        Raises:
            Parked: There was no memory: its request waits again.
            OutOfMemory: It does not fit even alone.
        """
        speed = sample.drafts.tokens_per_step
        return self._get(
            lambda: self._runner.reserve(sample.sequence, drafts=drafts, tokens_per_step=speed),
            sample.request,
        )

    def _get(self, act: Callable[[], T], request: Request) -> T:
        while True:
            try:
                return act()
            except OutOfMemory:
                if self.retained.drop_oldest() or self._copies_dropped():
                    continue
                victim = self._scheduler.who_gives_way()
                if victim is None or len(self._scheduler.running) == 1:
                    if self._tightened(request):
                        continue
                    raise
                self.park(victim)
                if victim is request:
                    raise Parked from None

    def _copies_dropped(self) -> bool:
        """Free the states that running requests have kept; return whether there were any."""
        samples = (*self._scheduler.samples(),)
        dropped = [each.sequence.cache.drop_states() for each in samples if each.sequence]
        return any(dropped)

    def _tightened(self, request: Request) -> bool:
        """Let the caches of a request that is alone grow by no more than they need, from now on.

        Returns False if they do already: then there is no memory for it at all.
        """
        caches = [sample.sequence.cache for sample in request.running if sample.sequence]
        loose = [cache for cache in caches if not cache.tight]
        for cache in loose:
            cache.tight = True
        return bool(loose)

    def park(self, request: Request) -> None:
        """Let a request wait again; its caches stay as long as nobody needs their memory."""
        self.preemptions += 1
        request.preemptions += 1
        request.count_time()
        for sample in request.running:
            sequence = self._detached(sample)
            if sequence is None:
                continue
            whole = sequence.cache.length >= len(request.tokens) and sample.tokens
            if request.kept is not None or not whole:
                self._leave(request, sample, sequence)
                continue
            tokens = self._shared_tokens(request, sample, sequence)
            entry = self.retained.add(tokens, sequence, self._group(request), wanted=True)
            if entry is not None:
                request.parked[sample] = entry
        self._scheduler.put_back(request)

    def release(self, sample: Sample) -> None:
        """Take a finished sample's sequence: free it, or keep it for those who begin alike."""
        request = sample.request
        sequence = self._detached(sample)
        if sequence is None:
            return
        if request.kept is not None and sample is request.samples[0]:
            self._keep(request, sample, sequence)
        else:
            self._leave(request, sample, sequence)

    def _leave(self, request: Request, sample: Sample, sequence: RunnerSequence) -> None:
        """Keep a sequence for others that begin alike, or free it."""
        if request.kept is None and self._shares(request):
            tokens = self._shared_tokens(request, sample, sequence)
            kept = len(request.tokens) if request.keeps else 0
            self.retained.add(tokens, sequence, self._group(request), kept=kept)
        else:
            self._runner.close(sequence)

    def keep(self, request: Request, sequence: RunnerSequence, tokens: Sequence[int]) -> bool:
        """Keep a sequence for those who begin with these tokens, as if the request had run them.

        Returns False if there is no room for it, or too few tokens: then it is closed.
        """
        if self._shares(request):
            return self.retained.add(tuple(tokens), sequence, self._group(request)) is not None
        self._runner.close(sequence)
        return False

    def _detached(self, sample: Sample) -> RunnerSequence | None:
        """Take a sample's sequence from it, and count what was read of it."""
        request = sample.request
        sequence: RunnerSequence | None = sample.sequence
        self.disk.leave(sample)
        self._runner.forget(sample)
        sample.sequence = None
        if sequence is None:
            return None
        if request.source is not None and request.source.sequence is sequence:
            self.retained.take(request.source)
            request.source = None
        request.reads.add(sequence.reads)
        sequence.reads = Reads()
        return sequence

    def _shared_tokens(
        self, request: Request, sample: Sample, sequence: RunnerSequence
    ) -> tuple[int, ...]:
        """Return the tokens whose rows serve any request that begins with them."""
        if not self._shares(request):
            return ()
        tokens = request.tokens
        if self._runner.shares_answers(request.technique):
            tokens = tokens + sample.tokens
        return tuple(tokens[: sequence.cache.length])

    def _keep(self, request: Request, sample: Sample, sequence: RunnerSequence) -> None:
        """Hand a cache to the session that keeps it."""
        assert request.kept is not None
        # An interruption may have come between the run of a token and its commit, or before the
        # run: keep only the tokens that both the request and the cache have.
        held = (request.tokens + sample.tokens)[: sequence.cache.length]
        held = held[: sequence.cache.reachable(len(held))]
        sequence.cache.truncate(len(held))
        if request.kept.sequence is not None:
            self._runner.close(request.kept.sequence)
        kept = request.kept
        if self._runner.shares_answers(request.technique):
            kept.clean = len(held)
        elif request.clean:
            kept.clean = min(len(request.tokens), len(held))
        kept.sequence, kept.tokens = sequence, held
