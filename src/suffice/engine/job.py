"""A request under way in an engine, and what its receiver has not been told yet."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from suffice.attention.rule import Guarantee
from suffice.engine.request import Logprob, Request, Sample
from suffice.engine.work import Delta, Entries, Final, Progress, TokenLogprob, Work
from suffice.trace import Reads

PROGRESS_SECONDS = 0.1  # between two deltas that say how far a prompt is, at least


class Job:
    """A work under way since now, in seconds of the engine's clock."""

    def __init__(
        self,
        work: Work,
        request: Request,
        on_delta: Callable[[Delta], None],
        clock: Callable[[], float],
    ) -> None:
        self.work = work
        self.request = request
        self.on_delta = on_delta
        self.cancelled = False
        self._scored = False  # whether the prompt's scores have been given
        self.ends = None if work.deadline is None else clock() + work.deadline
        self._clock = clock
        # Who has tokens already has been told of the prompt by the engine that gave them.
        self._tells = work.progress and not any(work.known)
        self._told, self._told_at = 0, -math.inf
        self._sent = [len(sample.tokens) for sample in request.samples]
        # A sample may have ended elsewhere; the last delta is given here in any case.
        self._ended = [sample.finish_reason is not None for sample in request.samples]
        if request.finished:
            self._ended[-1] = False

    def news(self, final: Callable[[Request], Final]) -> list[Delta]:
        """Return what its samples got since the last call; the last delta has the `final`."""
        told = self._progress() if self._tells else []
        found: list[Delta] = []
        for at, sample in enumerate(self.request.samples):
            new = tuple(sample.tokens[self._sent[at] :])
            text = sample.take_delta()
            if not (new or text) and (self._ended[at] or sample.finish_reason is None):
                continue
            found.append(
                Delta(
                    self.work.id,
                    at,
                    text,
                    new,
                    _logprobs(sample, len(new)),
                    sample.finish_reason,
                    sample.stop_reason,
                )
            )
            self._sent[at] += len(new)
            self._ended[at] = sample.finish_reason is not None
        if found and not self._scored and (scores := self.request.prompt_logprobs) is not None:
            self._scored = True
            found[0] = dataclasses.replace(found[0], prompt_logprobs=_entries(scores[1:]))
        if found and self.request.finished:
            vector = None if self.request.reader is None else self.request.reader.encoded
            found[-1] = dataclasses.replace(found[-1], final=final(self.request), vector=vector)
        return told + found

    def _progress(self) -> list[Delta]:
        """Return how far the prompt is, if there is news of it; its end is always told."""
        request = self.request
        done, total = request.prompt_done, len(request.tokens)
        now = self._clock()
        early = done < total and now - self._told_at < PROGRESS_SECONDS
        if early or done in (0, self._told):
            return []
        self._told, self._told_at, self._tells = done, now, done < total
        progress = Progress(done, total, request.cached, request.prompt_seconds)
        return [Delta(self.work.id, 0, "", (), progress=progress)]


def _logprobs(sample: Sample, count: int) -> Entries | None:
    if sample.request.params.logprobs is None:
        return None
    return _entries(sample.logprobs[len(sample.logprobs) - count :])


def _entries(logprobs: Sequence[dict[int, Logprob] | None]) -> Entries:
    return tuple(
        tuple(
            TokenLogprob(token, each.logprob, each.rank, each.decoded_token)
            for token, each in (entry or {}).items()
        )
        for entry in logprobs
    )


def final(request: Request, attention: str, guarantee: Guarantee) -> Final:
    """Return the counts of a request that has ended."""
    output = request.output()
    metrics, drafts = output.metrics, output.speculation
    reads = request.reads
    return Final(
        prompt_tokens=len(request.tokens),
        cached_tokens=request.cached,
        cached_from_disk=request.from_disk,
        generated_tokens=sum(len(sample.tokens) for sample in request.samples),
        queue_seconds=metrics.queue_seconds,
        prefill_seconds=metrics.prefill_seconds,
        decode_seconds=metrics.decode_seconds,
        drafts=drafts.num_draft_tokens,
        draft_steps=drafts.num_drafts,
        accepted_at=tuple(drafts.num_accepted_tokens_per_pos),
        accepted=drafts.num_accepted_tokens,
        key_rows_read=reads.key_rows,
        value_rows_read=reads.value_rows,
        rows_held=reads.rows_held,
        bytes_read=reads.bytes_read,
        bytes_held=reads.bytes_held,
        state_bytes_moved=reads.state_bytes_moved,
        attention=attention,
        guarantee=guarantee,
        **_left_out(reads, guarantee),
        prompt_rows_read=reads.tile_rows_read,
        prompt_rows_held=reads.tile_rows_held,
        audited=reads.audited,
        audited_missing=reads.audited_missing,
        audited_error=reads.audited_error,
        preemptions=request.preemptions,
        error=request.error,
        error_code=request.error_code,
    )


def _left_out(reads: Reads, guarantee: Guarantee) -> dict[str, Any]:
    """Return what is known of what decode steps left out, by the names that `Final` has."""
    if guarantee == "none":
        return {}
    if (means := reads.bounds.means) is None:
        return dict.fromkeys(("missing", "missing_mean", "shift", "shift_mean"), 0.0)
    found = {
        "missing": reads.missing,
        "missing_mean": means[0],
        "softmaxes": reads.bounds.softmaxes,
    }
    return found | ({"shift": reads.shift, "shift_mean": means[1]} if reads.shift else {})
