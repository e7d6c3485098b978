"""A request while it runs, and its output."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from suffice.engine.protocol import Cache, Detokenizer, How
from suffice.engine.reading import Reader
from suffice.engine.retained import CachedPrefix, Entry
from suffice.engine.stops import StopText
from suffice.sampling import SamplingState
from suffice.sampling_params import SamplingParams
from suffice.speculate import GoesOn
from suffice.speculate.rates import Rates
from suffice.speculate.stats import DraftStats
from suffice.trace import Reads

_TURN = 16  # tokens: more than the marks of a turn that a prompt ends with, and the next one lacks
_UNIT = 32  # of tokens of a prompt
LEAST_SPARED = 16  # tokens of a prompt: reading all weights once more takes as long as 8 or so


@dataclass(frozen=True)
class Logprob:
    """A token's log probability, its rank (1 = most likely) and its text."""

    logprob: float
    rank: int
    decoded_token: str


@dataclass(frozen=True)
class CompletionOutput:
    """One sample.

    Attributes:
        index: Its number among the request's `n`.
        text: The generated text, without the stop text or token unless asked for.
        token_ids: All generated tokens, including a stop token.
        cumulative_logprob: Sum of the tokens' log probabilities if `logprobs` was asked for.
        logprobs: Per token, token id -> `Logprob`, if asked for.
        finish_reason: "stop" (end-of-sequence, stop token or stop text), "length" (max_tokens or
            the context is full), "abort" (interrupted, or an error: see `RequestOutput.error`);
            None while it runs.
        stop_reason: The stop token id or stop text that ended it; None for end-of-sequence.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    cumulative_logprob: float | None
    logprobs: tuple[dict[int, Logprob], ...] | None
    finish_reason: str | None
    stop_reason: int | str | None


@dataclass
class Metrics:
    """Times of a request in seconds: `arrival_time` since the epoch; the others are durations.

    The first token comes `queue_seconds + prefill_seconds` after arrival; `decode_seconds` runs
    from there to the end.
    """

    arrival_time: float = field(default_factory=time.time)
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    @property
    def first_token_seconds(self) -> float:
        """Time from arrival to the first token."""
        return self.queue_seconds + self.prefill_seconds


@dataclass(frozen=True)
class RequestOutput:
    """The output of a request so far.

    Attributes:
        prompt: The prompt's text; None if it was given as tokens.
        num_cached_tokens: Prompt tokens whose keys and values were cached already.
        prompt_logprobs: Per prompt token, token id -> `Logprob`, None for the first; None unless
            asked for, and if the request ended before its prompt had been run.
        num_prompt_tokens_done: Prompt tokens whose keys and values are there, those included.
        error: One line on why the request failed; the tokens until then are kept.
        speculation: Counts of drafts over all samples.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    finished: bool
    metrics: Metrics
    num_cached_tokens: int = 0
    prompt_logprobs: tuple[dict[int, Logprob] | None, ...] | None = None
    error: str | None = None
    speculation: DraftStats = field(default_factory=DraftStats)
    num_prompt_tokens_done: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the output as plain values that JSON can hold: dicts, lists, texts, numbers."""
        found: dict[str, Any] = _plain(dataclasses.asdict(self))
        return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


class Sample:
    """One of a request's `n` continuations."""

    def __init__(self, request: Request, state: SamplingState, detokenizer: Detokenizer) -> None:
        self.request = request
        self.state = state
        self.sequence: Any = None
        self.chain: Any = None  # of names under which its rows are kept on disk; None: they are not
        self.drafter: Any = None
        self.rates: Rates | None = None
        self.goes_on: GoesOn | None = None
        self.drafts = DraftStats()
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.logprobs: list[dict[int, Logprob]] = []
        self.delta = ""
        self._restored = 0  # tokens that were generated elsewhere; `logprobs` has none of them
        self._detokenizer = detokenizer
        params = request.params
        self._text = StopText(params.stops, include=params.include_stop_str_in_output)

    @property
    def tokens(self) -> list[int]:
        """The tokens generated so far."""
        return self.state.output

    @property
    def _late(self) -> bool:
        """Whether there are more than `min_tokens` tokens, so that the sample may end."""
        return len(self.tokens) > self.request.params.min_tokens

    @property
    def behind(self) -> int:
        """How many of its known tokens, without the last, have not been run."""
        held = self.sequence.cache.length if self.sequence is not None else 0
        return max(len(self.request.tokens) + len(self.tokens) - 1 - held, 0)

    def next_known(self, most: int) -> list[int]:
        """Return the first of those tokens, at most `most`."""
        first = self.sequence.cache.length - len(self.request.tokens)
        return self.tokens[first : min(first + most, len(self.tokens) - 1)]

    def restore(self, tokens: Sequence[int]) -> None:
        """Begin with tokens that were generated elsewhere, and whose text is known there."""
        for token in tokens:
            self.accept(token)
        self._restored = len(tokens)
        self.take_delta()

    def accept(self, token: int) -> None:
        """Add a generated token and check whether it ends the sample."""
        params = self.request.params
        self.state.append(token)
        ends = self._late and token in self.state.stop_ids
        if not ends or params.include_stop_str_in_output:
            self.delta += self._text.push(self._detokenizer.push(token), search=self._late)
        if ends:
            own = token in (params.stop_token_ids or ())
            self.finish("stop", token if own else None)
        elif self._text.hit is not None:
            self.finish("stop", self._text.hit)
        elif len(self.tokens) >= self.request.limit:
            self.finish("length")

    def finish(self, reason: str, stop_reason: int | str | None = None) -> None:
        """End the sample."""
        if self._text.hit is None:
            self.delta += self._text.push(self._detokenizer.flush(), search=self._late)
        if self._text.hit is not None and reason == "length":
            reason, stop_reason = "stop", self._text.hit
        self.delta += self._text.flush()
        self.finish_reason, self.stop_reason = reason, stop_reason

    def take_delta(self) -> str:
        """Return the text that became certain since the last call."""
        delta, self.delta = self.delta, ""
        return delta

    def output(self) -> CompletionOutput:
        """Return the sample's output so far."""
        asked = self.request.params.logprobs is not None
        chosen = zip(self.logprobs, self.tokens[self._restored :], strict=False)
        return CompletionOutput(
            index=self.state.index,
            text=self._text.text,
            token_ids=tuple(self.tokens),
            cumulative_logprob=sum(p[t].logprob for p, t in chosen) if asked else None,
            logprobs=tuple(self.logprobs) if asked else None,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )


class Request:
    """A prompt, its parameters and its samples."""

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        tokens: list[int],
        params: SamplingParams,
        *,
        limit: int,
        kept: CachedPrefix | None = None,
        priority: int = 0,
        key: str = "",
        reuse: bool = False,
        keeps: bool = False,
        technique: int = 0,
        adapter: int = -1,
        group: str = "",
        reader: Reader | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.id = request_id
        self.prompt = prompt
        self.tokens = tokens
        self.params = params
        self.limit = limit
        self.kept = kept
        self.priority = priority
        self.key = key
        self.reuse, self.keeps = reuse, keeps
        self.technique = technique  # of attention, by the runner's number
        self.adapter = adapter  # by its index; -1: none
        self.group = group  # whose kept keys and values it may use
        self.reader = reader  # of its prompt, after which nothing is generated
        self.arrival = self.overtaken = self.preemptions = 0
        self.samples: list[Sample] = []
        self.parked: dict[Sample, Entry] = {}  # caches to go on with, if they are still there
        self.source: Entry | None = None  # of others that begin alike
        # Of the prompt's tokens so far; None: nobody asks, or they were handed out elsewhere.
        self.scores: list[dict[int, Logprob] | None] | None
        self.scores = None if params.prompt_logprobs is None else [None]
        self.reads, self.metrics = Reads(), Metrics()
        self.cached = self.from_disk = 0  # tokens of the prompt that need not run
        self.clean = True  # its prompt follows only rows that a prompt would have, bit for bit
        self.loading: Any = None  # rows of it that are on their way from disk
        self.error: str | None = None
        self.error_code: str | None = None
        self._clock = clock
        self._counted = clock()  # until when `metrics` has counted

    def together(self, count: int) -> int:
        """Return how many of `count` tokens of the prompt run in one call.

        They end where a state is kept. Where many layers store nothing, the last token, which has
        logits, runs alone: the others end before these layers.
        """
        cache: Cache = self.leader.sequence.cache
        if cache.tail * count >= LEAST_SPARED and count == self.left:
            return max(count - 1, 1) if self.settled == len(self.tokens) - 1 else count
        if not cache.stateful:
            return count
        return min([count, *(mark - cache.length for mark in self.marks if mark > cache.length)])

    @property
    def how(self) -> How:
        """How its rows run."""
        return {"technique": self.technique, "adapter": self.adapter}

    @property
    def running(self) -> list[Sample]:
        """The samples that have not ended."""
        return [sample for sample in self.samples if sample.finish_reason is None]

    @property
    def finished(self) -> bool:
        """Whether all samples have ended."""
        return not self.running

    @property
    def leader(self) -> Sample:
        """The sample in whose sequence the prompt is run."""
        return self.running[0]

    @property
    def begun(self) -> bool:
        """Whether it has started; it may have ended since."""
        first = self.samples[0]
        return self.finished or first.sequence is not None or bool(first.tokens)

    @property
    def held(self) -> bool:
        """Whether it runs and has its sequences; a request that was parked has none."""
        return bool(self.running) and self.leader.sequence is not None

    @property
    def left(self) -> int:
        """Tokens of the prompt that have not been run; it must be `held`."""
        held: int = self.leader.sequence.cache.length
        return max(len(self.tokens) - held, 0)

    @property
    def marks(self) -> set[int]:
        """The lengths of its prompt to which others, or its next turn, may return."""
        others = [each for each in (self.source, self.leader.chain) if each is not None]
        if not others and self.kept is None:
            return set()
        end = (len(self.tokens) - _TURN) // _UNIT * _UNIT
        return {end, len(self.tokens)}.union(*(each.marks for each in others))

    @property
    def settled(self) -> int:
        """The rows of the prompt, from the first, whose logits or states nobody needs.

        They are all but the last, or those after which scores are known. Only these may come from
        another's cache: what is found there has neither.
        """
        if self.reader is not None:
            return self.reader.settled
        return len(self.tokens if self.scores is None else self.scores) - 1

    @property
    def prompt_logprobs(self) -> tuple[dict[int, Logprob] | None, ...] | None:
        """The scores of all tokens of the prompt; None without them, or while some are missing."""
        whole = self.scores is not None and len(self.scores) == len(self.tokens)
        return tuple(self.scores or ()) if whole else None

    @property
    def prompt_done(self) -> int:
        """Tokens of the prompt whose keys and values are there; 0 while it waits."""
        if any(sample.tokens or sample.finish_reason == "length" for sample in self.samples):
            return len(self.tokens)
        sequence = next((sample.sequence for sample in self.running), None)
        return 0 if sequence is None else min(sequence.cache.length, len(self.tokens))

    @property
    def prompt_seconds(self) -> float:
        """Seconds that its prompt has run so far."""
        runs = self.held and not any(sample.tokens for sample in self.samples)
        return self.metrics.prefill_seconds + (self._clock() - self._counted if runs else 0.0)

    @property
    def all_reads(self) -> Reads:
        """What it has read so far, in sequences that are open, too."""
        found = dataclasses.replace(self.reads)
        for sample in self.samples:
            if sample.sequence is not None:
                found.add(sample.sequence.reads)
        return found

    @property
    def prompt_read(self) -> bool:
        """Whether tiles of its prompt have read all that they saw, as far as it is known."""
        reads = self.all_reads
        return not self.cached and reads.tile_rows_read == reads.tile_rows_held

    def count_time(self) -> None:
        """Count the time since the last call to the queue, the prompt or the tokens after it."""
        metrics, seconds = self.metrics, self.lap()
        if any(sample.tokens for sample in self.samples):
            metrics.decode_seconds += seconds
        elif any(sample.sequence is not None for sample in self.samples):
            metrics.prefill_seconds += seconds
        else:
            metrics.queue_seconds += seconds

    def lap(self) -> float:
        """Return the seconds since the last call, or, at the first, since the request was made."""
        last, self._counted = self._counted, self._clock()
        return self._counted - last

    def output(self) -> RequestOutput:
        """Return the request's output so far."""
        drafts = DraftStats()
        for sample in self.samples:
            drafts.include(sample.drafts)
        return RequestOutput(
            request_id=self.id,
            prompt=self.prompt,
            prompt_token_ids=tuple(self.tokens),
            outputs=tuple(sample.output() for sample in self.samples),
            finished=self.finished,
            metrics=self.metrics,
            num_cached_tokens=self.cached,
            prompt_logprobs=self.prompt_logprobs,
            error=self.error,
            speculation=drafts,
            num_prompt_tokens_done=self.prompt_done,
        )
