"""The one decode loop: start what fits, run one token of everything that runs, sample, repeat.

A batch of one is a batch. Prompts are run one at a time, samples of a prompt share its one run,
and every step is one call for all rows. Threads take turns: who steps runs everybody's requests.
"""

from __future__ import annotations

import torch

from suffice import sampling
from suffice.engine.protocol import Runner, Tokenizer
from suffice.engine.request import Logprob, Request, Sample
from suffice.engine.scheduler import Scheduler
from suffice.engine.torch_threads import one_torch_thread
from suffice.engine.turns import Turns
from suffice.errors import InputError, OutOfMemory


class Loop:
    """Drives a runner through the scheduler's requests.

    `turns` is held while requests, the runner or the tokenizer are used.
    """

    def __init__(
        self, runner: Runner, tokenizer: Tokenizer, *, max_num_seqs: int, max_model_len: int
    ) -> None:
        self.runner = runner
        self.turns = Turns()
        self.scheduler = Scheduler(max_num_seqs)
        self._tokenizer = tokenizer
        self._rows = max_model_len

    def add(self, request: Request) -> None:
        """Queue a request."""
        with self.turns:
            self.scheduler.add(request)

    def step(self) -> None:
        """Start the next request if it fits, or else run one token of every running sample.

        Either way there is a new token for somebody, unless there is nothing to do. A request that
        fails, for lack of memory or because no token can be chosen, ends with finish reason "abort"
        and its error; the others go on.
        """
        with self.turns:
            if request := self.scheduler.admit():
                self._start(request)
            elif samples := self._reserved():
                sequences = [sample.sequence for sample in samples]
                logits = self.runner.step(sequences, [sample.tokens[-1] for sample in samples])
                self._sample(samples, logits)
            self.scheduler.retire()

    def abort(self, request: Request, error: str | None = None) -> None:
        """End a request where it is and give its memory back; nothing if it has finished."""
        with self.turns:
            request.error = request.error or error
            for sample in request.running:
                self._finish(sample, "abort")
            self.scheduler.retire()

    def _start(self, request: Request) -> None:
        request.metrics.queue_seconds = request.lap()
        first, *others = request.samples
        try:
            first.sequence = self._open(request)
            logits = self.runner.prefill(first.sequence, request.tokens[request.cached :])
            for sample in others:
                sample.sequence = self.runner.fork(first.sequence)
        except OutOfMemory as error:
            self._close(request)
            self.abort(request, str(error))
            return
        request.metrics.prefill_seconds = request.lap()
        self._sample(request.samples, logits.expand(len(request.samples), -1))

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

    def _reserved(self) -> list[Sample]:
        """Return the running samples after making room for one more token of each."""
        for sample in self.scheduler.samples():
            if sample.finish_reason is not None:
                continue
            try:
                self.runner.reserve(sample.sequence)
            except OutOfMemory as error:
                self.abort(sample.request, str(error))
        return self.scheduler.samples()

    @one_torch_thread()
    def _sample(self, samples: list[Sample], logits: torch.Tensor) -> None:
        tokens = sampling.sample(logits, [sample.state for sample in samples])
        for sample, row, token in zip(samples, logits, tokens, strict=True):
            if isinstance(token, InputError):
                self.abort(sample.request, str(token))
            elif sample.finish_reason is None:
                self._log(sample, row, token)
                sample.accept(token)
                if sample.finish_reason is not None:
                    self._release(sample)

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

    def _release(self, sample: Sample) -> None:
        """Give a finished sample's memory back, or to the one who keeps it."""
        request, sequence = sample.request, sample.sequence
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
