"""What requests take from disk and leave there, around the sequences that `memory` gives them."""

from __future__ import annotations

import math

from suffice.engine.disk_prefixes import NOTHING, ROWS, Chain, DiskPrefixes, Found
from suffice.engine.protocol import LoopRunner
from suffice.engine.request import Request, Sample
from suffice.engine.retained import Retained
from suffice.engine.scheduler import Scheduler

_COPIED = 100e6  # bytes that are copied for the writer after a step, for each second that it took
_WAIT = 0.005  # seconds, for rows from disk while nothing else is to be done


class RequestsOnDisk:
    """The requests of a scheduler, and what is kept on disk; without `disk`, nothing is."""

    def __init__(
        self,
        disk: DiskPrefixes | None,
        runner: LoopRunner,
        scheduler: Scheduler,
        retained: Retained,
    ) -> None:
        self._disk = disk
        self._runner = runner
        self._scheduler = scheduler
        self._retained = retained

    def chain(self, request: Request) -> Chain | None:
        """Return the names under which a request's rows are kept; None if they are not."""
        if self._disk is None or not (request.reuse and self._runner.shares_prompts):
            return None
        technique = request.technique if self._runner.prompts_by_technique else 0
        return self._disk.chain(technique, request.adapter, request.group)

    def found(self, request: Request) -> Found:
        """Return what is to be read, behind rows that a request's first sequence has already.

        The sequence is cut back to where blocks begin, or states.
        """
        chain, cache = request.leader.chain, request.leader.sequence.cache
        request.from_disk = 0
        if self._disk is None or chain is None:
            return NOTHING
        found = self._disk.find(chain, cache, request.tokens, request.settled)
        have, least = cache.length, self._retained.least
        if cache.stateful and found.common >= max(have, found.rows) + least:
            chain.marks.add(found.common)  # where a third text may well part from these two
        if found.rows < have + least or not self._disk.pays(cache, found.rows - have):
            return NOTHING
        if cache.stateful:
            chain.states[found.rows] = found.places[-1].name
        cache.truncate(0 if cache.stateful else have // ROWS * ROWS)
        request.cached = cache.length
        return found

    def load(self, request: Request, found: Found) -> None:
        """Begin to read what was found; there is memory for it."""
        if self._disk is not None and found.rows:
            request.loading = self._disk.load(request.leader.sequence.cache, found)

    def loaded(self, prompts: list[Request]) -> list[Request]:
        """Return the prompts that wait for nothing from disk."""
        for request in prompts:
            load = request.loading
            if load is not None and load.done:
                request.loading, request.from_disk = None, load.finish()
                request.cached = request.leader.sequence.cache.length
                request.leader.chain.done = request.cached // ROWS
        return [request for request in prompts if request.loading is None]

    def wait(self) -> None:
        """Wait a little for what is on its way, if anything is."""
        if self._disk is not None and self._disk.loading:
            self._disk.wait(_WAIT)

    def write_behind(self, seconds: float, token_seconds: float | None) -> None:
        """Hand rows that have become whole blocks to the writer, which yields to all others.

        What is copied takes hundredths of the `seconds` of the step before, or is one block; the
        rest comes after the next steps.
        """
        if self._disk is None:
            return
        self._disk.token_seconds = token_seconds
        room = _COPIED * seconds
        for sample in self._scheduler.samples():
            if room > 0:
                room -= self._offer(sample, room)

    def _offer(self, sample: Sample, room: float = math.inf) -> int:
        """Hand over blocks until they have `room` bytes; return how many they have."""
        chain, request = sample.chain, sample.request
        if self._disk is None or chain is None or sample.sequence is None:
            return 0
        ready = sample.sequence.cache.length
        if not self._runner.shares_answers(request.technique):
            ready = min(ready, len(request.tokens))
        if (chain.done + 1) * ROWS > ready:
            return 0
        tokens = [*request.tokens, *sample.tokens]
        return self._disk.offer(chain, sample.sequence.cache, tokens, ready, room)

    def keep_state(self, request: Request) -> None:
        """Keep the states of a prompt whose tokens so far end where others may begin."""
        if not request.held:
            return
        chain, cache = request.leader.chain, request.leader.sequence.cache
        if cache.stateful and cache.length in request.marks:
            cache.keep_state()
            if self._disk is not None and chain is not None:
                self._disk.offer_state(chain, cache, request.tokens)

    def leave(self, sample: Sample) -> None:
        """Hand over what a sample leaves, whose sequence others get: nothing reads into it then.

        All blocks of its text were used, also those whose rows came from memory.
        """
        if sample.request.loading is not None:
            sample.request.loading.cancel()
            sample.request.loading = None
        self._offer(sample)
        if self._disk is not None and sample.chain is not None and (kept := sample.chain.kept):
            self._disk.writer.used(kept)
        sample.chain = None
