"""Answers of both generating endpoints: as one body, and as a stream of chunks."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from suffice.dialects.reader import Part, Reader
from suffice.engine.work import Delta, Entries, Final, Progress
from suffice.serve.errors import Problem, of_engine
from suffice.serve.http.front import Front, Job
from suffice.serve.http.stream import (
    KEEP_ALIVE,
    EventStream,
    Frames,
    cancel_on_disconnect,
    reasoning,
)
from suffice.serve.interfaces import logprobs
from suffice.serve.interfaces.costs import costs, usage
from suffice.serve.interfaces.fields import Fields
from suffice.serve.interfaces.sample import Sample
from suffice.serve.processes.pending import Ticket

_CODES = {
    "too_large": "too_large_for_memory",
    "no_memory": "no_memory",
    "deadline": "deadline",
    "internal": "internal",
}
_WAIT_SECONDS = 3600.0


class Reply:
    """The answer to one HTTP request.

    `top` asks for log probabilities, with this many alternatives, and `scores` likewise for those
    of the prompt. `reader` makes what tells thinking and calls of tools apart in a sample's text;
    `hidden` leaves thinking out, and `marks` are the tokens around it. `before` are the prompts, if
    they precede the samples (`echo`).
    """

    def __init__(
        self,
        front: Front,
        job: Job,
        body: Fields,
        *,
        model: str,
        chat: bool,
        top: int | None = None,
        scores: int | None = None,
        reader: Callable[[], Reader] | None = None,
        hidden: bool = False,
        marks: tuple[int, int] | None = None,
        before: tuple[logprobs.Echo, ...] = (),
    ) -> None:
        self.front, self.job, self.body, self.model = front, job, body, model
        self.chat, self.top, self.scores, self.before = chat, top, scores, before
        self.reader, self.hidden, self.marks = reader, hidden, marks
        self._samples: dict[tuple[int, int], Sample] = {}
        self._prompts: dict[int, Entries] = {}  # scores of the prompts, by their number
        self._frames = Frames(self.head(streamed=True), chat=chat)
        self._begun: set[int] = set()  # choices whose first chunk has been made
        options = body.stream_options
        self._plain = reader is None
        self._quick = not (
            body.return_token_ids
            or job.copies > 1
            or (options is not None and options.continuous_usage_stats)
        )

    def head(self, *, streamed: bool) -> dict[str, Any]:
        """Return the fields that the answer, or each chunk of it, begins with."""
        chunk = ".chunk" if streamed and self.chat else ""
        return {
            "id": self.job.id,
            "object": f"chat.completion{chunk}" if self.chat else "text_completion",
            "created": self.job.stamp,
            "model": self.model,
            "system_fingerprint": self.front.facts.fingerprint or None,
        }

    async def response(self, request: Request) -> Response:
        """Return the whole answer, or the stream of it.

        Raises:
            Problem: The request failed before its first token.
        """
        if self.body.stream:
            quick = self.quick if self._quick else None
            return EventStream(self.front, self.job, self.events(), quick=quick)
        try:
            whole = await self.gathered(request)
        finally:
            self.front.finish(self.job)
        headers = {"x-request-id": self.job.id}
        return Response(msgspec.json.encode(whole), 200, headers, "application/json")

    async def gathered(self, request: Request) -> dict[str, Any]:
        """Return the whole answer once all samples have ended."""
        await collected(self.job, request, self.take)
        choices = [choice for ticket in self.job.tickets for choice in self._choices_of(ticket)]
        scores = self._scores(0) if self.chat else {}
        return {
            **self.head(streamed=False),
            "choices": choices,
            **scores,
            "usage": self.usage(),
            **costs(self.job),
        }

    def _choices_of(self, ticket: Ticket) -> list[dict[str, Any]]:
        return [
            self._whole(self._sample(ticket, at), index)
            for at in range(ticket.samples)
            for index in indexes(self.job, ticket, at)
        ]

    def _whole(self, sample: Sample, index: int) -> dict[str, Any]:
        found: dict[str, Any] = {"index": index}
        if self.chat:
            found["message"] = sample.message
        else:
            found["text"] = self._before(index).text + "".join(sample.texts)
            found |= self._scores(index)
        found["logprobs"] = self._logprobs(sample.entries, len(self._before(index).text))
        if (prompt := self._echoed(index)) is not None:
            found["logprobs"] = {
                name: own + found["logprobs"][name] for name, own in prompt.items()
            }
        if self.body.return_token_ids:
            found["token_ids"] = sample.tokens
        return {**found, "finish_reason": sample.reason, "stop_reason": sample.stop_reason}

    def _before(self, index: int) -> logprobs.Echo:
        return self.before[index // (self.body.n or 1)] if self.before else logprobs.Echo("")

    def _scores(self, index: int) -> dict[str, Any]:
        """Return the field with the scores of a choice's prompt, if they are asked for."""
        known = self._prompts.get(index // (self.body.n or 1))
        if self.scores is None:
            return {}
        found = None if known is None else logprobs.of_prompt(known, self.scores)
        return {"prompt_logprobs": found}

    def _echoed(self, index: int) -> dict[str, list[Any]] | None:
        """Return the log probabilities of an echoed prompt, if they are asked for and known."""
        known = self._prompts.get(index // (self.body.n or 1))
        if not self.before or self.top is None or known is None:
            return None
        return logprobs.of_echo(self._before(index), known, self.top)

    def _sample(self, ticket: Ticket, at: int) -> Sample:
        sample = self._samples.get((ticket.index, at))
        if sample is None:
            reader = None if self.reader is None else self.reader()
            sample = Sample(reader, self.hidden, self.marks)
            sample.characters = len(self._before(ticket.index * (self.body.n or 1)).text)
            self._samples[(ticket.index, at)] = sample
        return sample

    def usage(self) -> dict[str, Any]:
        """Return the tokens so far, with those of thinking if there can be any."""
        found = usage(self.job)
        if self.reader is not None:
            count = sum(sample.thinking_tokens for sample in self._samples.values())
            found["completion_tokens_details"] = {"reasoning_tokens": self.job.copies * count}
        return found

    def _logprobs(self, entries: Sequence[logprobs.Entry], offset: int) -> dict[str, Any] | None:
        if self.top is None:
            return None
        if self.chat:
            return logprobs.of_chat(self.front.text, entries, self.top)
        return logprobs.of_completion(entries, self.top, offset)

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the chunks of the stream, without the end mark."""
        mailbox, options = self.job.mailbox, self.body.stream_options
        frames, idle, shown = self._frames, self.front.settings.keep_alive_seconds, time.monotonic()
        while mailbox.open:
            batch = await mailbox.take(idle)
            parts: list[bytes] = []
            for ticket, delta in batch:
                found = self.take(ticket, delta)
                sample = self._sample(ticket, delta.sample)
                for index in indexes(self.job, ticket, delta.sample):
                    # The echo of a prompt has scores, which come with the first token.
                    begins = self.chat or not delta.is_progress
                    if begins and index not in self._begun:
                        self._begun.add(index)
                        parts += self._first(frames, index)
                    if delta.progress is not None:
                        parts.append(self._progress(delta.progress, index))
                    if delta.is_progress:
                        continue
                    if self._plain and self._quick:
                        parts.append(self._piece(sample, delta, index))
                    else:
                        parts += self._full(frames, sample, index, found)
                    if delta.finish_reason is not None:
                        parts.append(self._last(frames, sample, delta, index))
                sample.characters += len(delta.text)
            if part := b"".join(parts) or (b"" if time.monotonic() - shown < idle else KEEP_ALIVE):
                yield part
                shown = time.monotonic()
        if options and options.include_usage:
            yield frames.chunk([], {"usage": self.usage(), **costs(self.job)})

    def quick(self, ticket: Ticket, delta: Delta) -> bytes | None:
        """Return the chunk of a delta that is neither the first nor the last of its choice.

        None if it is the first.
        """
        index = ticket.index * ticket.samples + delta.sample
        if index not in self._begun:
            return None
        progress = b"" if delta.progress is None else self._progress(delta.progress, index)
        if delta.is_progress:
            return progress
        sample = self._sample(ticket, delta.sample)
        if self._plain:
            found = self._piece(sample, delta, index)
            sample.characters += len(delta.text)
        elif self.top is None and (kind := sample.passes(delta)) is not None:
            written = self._frames.text if kind == "text" else self._frames.thought
            found = written(index, delta.text)
        else:
            parts = self.take(ticket, delta)
            found = b"".join(self._full(self._frames, sample, index, parts))
        return progress + found

    def _piece(self, sample: Sample, delta: Delta, index: int) -> bytes:
        """Return the chunk of a delta's text; empty if there is nothing to show."""
        if self.top is None:
            return self._frames.text(index, delta.text) if delta.text else b""
        if not (delta.text or delta.tokens):
            return b""
        entries = self._logprobs(delta.logprobs or (), sample.characters)
        return self._frames.text(index, delta.text, entries)

    async def parts(self) -> AsyncIterator[list[Part]]:
        """Yield the parts of a request with one sample, as they come.

        There are none at the start, and when there was nothing to show for a while.
        """
        mailbox, idle, shown = self.job.mailbox, self.front.settings.keep_alive_seconds, -math.inf
        while mailbox.open:
            batch = await mailbox.take(idle)
            parts: list[Part] = []
            for ticket, delta in batch:
                parts += self.take(ticket, delta)
            if parts or time.monotonic() - shown >= idle:
                yield parts
                shown = time.monotonic()

    def take(self, ticket: Ticket, delta: Delta) -> list[Part]:
        """Add a delta to its sample; return its parts."""
        check(delta.final, self.job.mailbox.form)
        if delta.prompt_logprobs is not None:
            self._prompts[ticket.index] = delta.prompt_logprobs
        return self._sample(ticket, delta.sample).take(delta)

    @property
    def only(self) -> Sample:
        """The sample of a request that has one."""
        return self._sample(self.job.tickets[0], 0)

    def _first(self, frames: Frames, index: int) -> list[bytes]:
        if self.chat:
            delta = {"role": "assistant", "content": ""}
            return [frames.choice(self._choice(index, delta=delta), self._more())]
        if not self.before:
            return []
        return [frames.text(index, self._before(index).text, self._echoed(index))]

    def _progress(self, found: Progress, index: int) -> bytes:
        """Return the chunk that says how far a prompt is, in llama.cpp's form.

        It is that of the prompt's first choice; for the others it is empty.
        """
        if index % (self.body.n or 1):
            return b""
        progress = {
            "total": found.total,
            "cache": found.cached,
            "processed": found.done,
            "time_ms": round(1000 * found.seconds),
        }
        choice = self._choice(index, **self._nothing)
        return self._frames.choice(choice, {"prompt_progress": progress})

    @property
    def _nothing(self) -> dict[str, Any]:
        return {"delta": {}} if self.chat else {"text": ""}

    def _choice(self, index: int, **fields: Any) -> dict[str, Any]:
        return {"index": index, **fields, "logprobs": None, "finish_reason": None}

    def _full(
        self,
        frames: Frames,
        sample: Sample,
        index: int,
        parts: Sequence[Part],
    ) -> list[bytes]:
        """Return the chunks of a delta with all that was asked for."""
        more = self._more()
        found = [self._choice(index, **self._content(part)) for part in parts]
        tokens = sample.new_tokens
        if not found and ((tokens and self.top is not None) or self.body.return_token_ids):
            found.append(self._choice(index, **self._content(Part("text", ""))))
        if found:
            found[0]["logprobs"] = self._logprobs(sample.new_entries, sample.characters)
            if self.body.return_token_ids:
                found[0]["token_ids"] = list(tokens)
        return [frames.choice(each, more) for each in found]

    def _content(self, part: Part) -> dict[str, Any]:
        """Return a part as a chunk has it."""
        if not self.chat:
            return {"text": part.text}
        if part.kind == "text":
            return {"delta": {"content": part.text}}
        if part.kind == "thinking":
            return {"delta": reasoning(part.text)}
        call: dict[str, Any] = {"index": part.call}
        if part.kind == "call":
            function = {"name": part.text, "arguments": ""}
            call |= {"id": part.ident, "type": "function", "function": function}
        else:
            call["function"] = {"arguments": part.text}
        return {"delta": {"tool_calls": [call]}}

    def _more(self) -> dict[str, Any]:
        options = self.body.stream_options
        continuous = options is not None and options.continuous_usage_stats
        return {"usage": self.usage()} if continuous else {}

    def _last(self, frames: Frames, sample: Sample, delta: Delta, index: int) -> bytes:
        choice = self._choice(index, **self._nothing)
        choice |= {"finish_reason": sample.reason, "stop_reason": delta.stop_reason}
        whole = all(each.final is not None for each in self.job.tickets)
        return frames.choice(choice, self._more() | (costs(self.job) if whole else {}))


def indexes(job: Job, ticket: Ticket, sample: int) -> range:
    """Return the numbers of the choices that a sample gives."""
    first = ticket.index * ticket.samples * job.copies + sample * job.copies
    return range(first, first + job.copies)


async def collected(job: Job, request: Request, take: Any) -> None:
    """Call `take(ticket, delta)` for all that comes until the end; stop if the client leaves.

    Raises:
        Problem: The request failed.
    """
    job.task = asyncio.current_task()
    listener = asyncio.create_task(cancel_on_disconnect(job, request.receive))
    try:
        while job.mailbox.open:
            for ticket, delta in await job.mailbox.take(_WAIT_SECONDS):
                take(ticket, delta)
    except asyncio.CancelledError:
        if not job.gone:
            raise
        raise Problem("cancelled", "the client left") from None
    finally:
        listener.cancel()


def check(final: Final | None, form: str | None = None) -> None:
    """Raise the error that a request ended with, if it did; `form` is the grammar's field.

    Raises:
        Problem: It ended with one.
    """
    if final is not None and final.error is not None:
        code = _CODES.get(final.error_code or "", "invalid_value")
        wait = 1.0 if code == "no_memory" else None
        raise of_engine(code, final.error, form=form, wait=wait)
