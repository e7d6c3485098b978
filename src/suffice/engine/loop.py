"""The one decode loop: start what fits, run a step of everything that runs, sample, repeat.

A batch of one is a batch. Prompts are run one at a time, samples of a prompt share its one run,
and every step is one call for all rows: the last token of each sample and the drafts behind it,
which become tokens as far as sampling, draft by draft, chooses the same. Threads take turns: who
steps runs everybody's requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from suffice import sampling
from suffice.engine.fair_lock import FairLock
from suffice.engine.interrupts import allowed, deferred
from suffice.engine.protocol import Runner, Tokenizer
from suffice.engine.request import Logprob, Request, Sample
from suffice.engine.scheduler import Scheduler
from suffice.engine.torch_threads import one_torch_thread
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

        Either way there is a new token for somebody, unless there is nothing to do. A request that
        fails, for lack of memory or because no token can be chosen, ends with finish reason "abort"
        and its error; the others go on. Ctrl-C is held back for the time of a decode step; a prompt
        that it interrupts is run again, unless its caller aborts the request.
        """
        with self.lock.turn(), deferred():
            if request := self.scheduler.admit():
                self._start(request)
            elif reserved := self._reserved():
                self._decode([sample for sample, _ in reserved], [room for _, room in reserved])
            self.scheduler.retire()

    def abort(self, request: Request, error: str | None = None) -> None:
        """End a request where it is and give its memory back; nothing if it has finished."""
        with self.lock.turn(), deferred():
            request.error = request.error or error
            for sample in request.running:
                self._finish(sample, "abort")
            self.scheduler.retire()

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
            self.abort(request, str(error))
            return
        except BaseException:  # an interruption, maybe of somebody else: it starts again
            for sample in request.samples:
                self._release(sample)
            self.scheduler.put_back(request)
            raise
        request.metrics.prefill_seconds = request.lap()
        with one_torch_thread():
            samples = request.running
            states = [sample.state for sample in samples]
            tokens = sampling.sample(logits.expand(len(samples), -1), states)
            for sample, token in zip(samples, tokens, strict=True):
                self._accept(sample, NO_DRAFTS, logits[None], token)
                self._release_finished(sample)

    def _open(self, request: Request) -> object:
        """Return the sequence a request starts from: the kept one, cut to what the prompt shares
        with it, or a new one.
        """
        kept = request.kept
        if kept is None or kept.sequence is None:
            return self.runner.open(request.id, self._rows)
        request.cached = kept.shared(request.tokens)
        sequence, kept.sequence = kept.sequence, None
        sequence.cache.truncate(request.cached)
        return sequence

    def _reserved(self) -> list[tuple[Sample, int]]:
        """Return the running samples, with room for one more token of each and for so many drafts.

        Drafts that would go beyond the last token that is wanted are not asked for.
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
                self.abort(sample.request, str(error))
        return [(sample, room[id(sample)]) for sample in self.scheduler.samples()]

    def _decode(self, samples: list[Sample], room: list[int]) -> None:
        began = self._clock()
        proposed = self.runner.propose(samples, self.budget.lengths(samples, room))
        drafts = self.budget.cut(samples, proposed)
        drafted = self._clock()
        self.budget.drafted(samples, proposed, drafted - began)
        sequences = [sample.sequence for sample in samples]
        logits = self.runner.verify(sequences, [sample.tokens[-1] for sample in samples], drafts)
        rows = torch.split(logits, [1 + len(tree) for tree in drafts])
        with one_torch_thread():
            tokens = self._first_tokens(samples, drafts, rows, logits)
            for at, sample in enumerate(samples):
                if path := self._accept(sample, drafts[at], rows[at], tokens[at]):
                    self.runner.commit(sample.sequence, path)
                    sample.drafts.add(drafts[at], len(path) - 1)
                    self.budget.learn(sample, proposed[at], sample.tokens[-len(path) :])
                    self._release_finished(sample)
        self.budget.checked(drafts, self._clock() - drafted)

    def _first_tokens(
        self,
        samples: list[Sample],
        drafts: list[Tree],
        rows: Sequence[torch.Tensor],
        logits: torch.Tensor,
    ) -> Sequence[int | InputError | None]:
        """Choose what follows each sample's last token, for all at once, as without drafts.

        None where that depends on how drafts were drawn. `rows` are each sample's of `logits`.
        """
        if any(tree.draft_probs is not None for tree in drafts):
            return [None] * len(samples)
        if len(logits) > len(samples):  # somebody has drafts
            logits = torch.stack([own[0] for own in rows])
        return sampling.sample(logits, [sample.state for sample in samples])

    def _accept(
        self, sample: Sample, tree: Tree, logits: torch.Tensor, token: int | InputError | None
    ) -> list[int]:
        """Choose the sample's next tokens: as many drafts as are chosen, and the one after them.

        `logits` [1 + drafts, V] are those after the sample's last token and after each draft;
        `token` is the first one if it has been chosen. Returns the rows after which tokens were
        chosen; none if that failed.
        """
        path: list[int] = []
        node = -1
        while sample.finish_reason is None:
            if token is None:
                token = self._choose(sample, tree, node, logits[node + 1])
            if isinstance(token, InputError):
                self.abort(sample.request, str(token))
                return []
            self._log(sample, logits[node + 1], token)
            sample.accept(token)
            path.append(node + 1)
            if (child := tree.child(node, token)) is None:
                break
            node, token = child, None
        return path

    def _choose(
        self, sample: Sample, tree: Tree, node: int, logits: torch.Tensor
    ) -> int | InputError:
        probs = None if tree.draft_probs is None else tree.draft_probs[node + 1]
        if probs is None:
            return sampling.sample(logits[None], [sample.state])[0]
        drafts = [tree.tokens[child] for child in tree.children(node)]
        try:
            return next_token(logits, sample.state, drafts, probs)
        except InputError as error:
            return error

    def _log(self, sample: Sample, logits: torch.Tensor, token: int) -> None:
        count = sample.request.params.logprobs
        if count is None:
            return
        (chosen, *likeliest), rank = sampling.top_logprobs(logits, token, count)
        ranks = {chosen[0]: rank} | {pair[0]: place + 1 for place, pair in enumerate(likeliest)}
        sample.logprobs.append(
            {
                ident: Logprob(value, ranks[ident], self._tokenizer.decode([ident]))
                for ident, value in [chosen, *likeliest]
            }
        )

    def _finish(self, sample: Sample, reason: str) -> None:
        sample.finish(reason)
        self._release(sample)

    def _release_finished(self, sample: Sample) -> None:
        if sample.finish_reason is not None:
            self._release(sample)

    def _release(self, sample: Sample) -> None:
        """Give a finished sample's memory back, or to the one who keeps it."""
        request, sequence = sample.request, sample.sequence
        self.runner.forget(sample)
        request.metrics.decode_seconds += request.lap()
        sample.sequence = None
        if sequence is None:
            return
        if request.kept is None or sample is not request.samples[0]:
            self.runner.close(sequence)
            return
        # An interruption may come between the run of a token and its entry here, or before its
        # run: only what is in both is sure.
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
