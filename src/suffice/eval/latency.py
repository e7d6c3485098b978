"""Latency and throughput, as vLLM's serving benchmark defines them.

All requests of a case arrive at once; at most `batch_size` run together, the others wait. With t_0
a request's arrival, t_1 ... t_k the times at which it received tokens, and n its output tokens:

    TTFT            t_1 - t_0, time to first token, waiting included
    TPOT            (t_k - t_1) / (n - 1), time per output token after the first
    ITL             t_2 - t_1, ..., t_k - t_{k-1}: inter-token latencies, of all requests
    queue           the part of the TTFT before the request's prompt starts
    throughput      tokens, or requests, per second from arrival to the last token of all

The requests of all repetitions are pooled. Times include sampling and detokenization, but not
tokenization of the prompts.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from suffice.engine.inputs import RequestMaker
from suffice.engine.llm import LLM
from suffice.engine.loop import Loop
from suffice.engine.request import Request
from suffice.errors import InputError
from suffice.sampling_params import SamplingParams
from suffice.trace import Trace

Clock = Callable[[], float]  # seconds
Report = Callable[[int], None]  # called with the number of new tokens

WARM_UP_TOKENS = 2  # of output: one from the prompt, one from a decode step


@dataclass(frozen=True)
class LatencyCase:
    """Requests that arrive together, as token ids; `batch_size` of them run together."""

    name: str
    batch_size: int
    prompts: Sequence[list[int]]
    params: SamplingParams

    @property
    def most_tokens(self) -> int:
        """Maximum number of output tokens per request."""
        assert self.params.max_tokens is not None, "a case needs max_tokens"
        return self.params.max_tokens

    @property
    def context(self) -> int:
        """Context that the longest request may need, in tokens."""
        return max(map(len, self.prompts)) + self.most_tokens


@dataclass(frozen=True)
class Spread:
    """Mean, median and 99th percentile of some values; None if there are no values."""

    mean: float | None
    median: float | None
    p99: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Compute the figures; percentiles are interpolated linearly."""
        if not values:
            return cls(None, None, None)
        median, p99 = np.percentile(values, (50, 99)).tolist()
        return cls(statistics.fmean(values), median, p99)


@dataclass(frozen=True)
class Rate:
    """A rate per second: mean and standard deviation over repetitions (None for a single one)."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, counts: Iterable[int], seconds: Iterable[float]) -> Rate:
        """Compute the rate from the counts and durations of the repetitions."""
        rates = [count / each for count, each in zip(counts, seconds, strict=True)]
        return cls(statistics.fmean(rates), statistics.stdev(rates) if len(rates) > 1 else None)


@dataclass(frozen=True)
class LatencyResult:
    """The result of a case; counts are over all repetitions, bytes those of decode steps."""

    case: str
    batch_size: int
    context: int  # that the longest request may need, in tokens
    requests: int
    prompt_tokens: int
    output_tokens: int
    ttft_seconds: Spread
    tpot_seconds: Spread
    itl_seconds: Spread
    queue_seconds: Spread
    output_tokens_per_second: Rate
    total_tokens_per_second: Rate  # prompts included
    requests_per_second: Rate
    kv_bytes_per_token: float | None  # None: no decode step, all tokens came with the prompts
    weight_bytes_per_token: float | None
    peak_memory_bytes: int | None = None  # of the process so far, if measured


@dataclass
class Timing:
    """Times at which a request received its tokens."""

    request: Request
    arrival: float
    started: float = math.nan
    tokens: int = 0
    stamps: list[float] = field(default_factory=list)  # one per step that gave tokens

    @property
    def ttft(self) -> float:
        """Time to first token."""
        return self.stamps[0] - self.arrival

    @property
    def tpot(self) -> float:
        """Time per output token; needs at least two tokens."""
        return (self.stamps[-1] - self.stamps[0]) / (self.tokens - 1)

    @property
    def gaps(self) -> list[float]:
        """Inter-token latencies."""
        return [late - early for early, late in zip(self.stamps, self.stamps[1:], strict=False)]

    def stamp(self, now: float) -> int:
        """Record the time of the tokens since the last call; return their number."""
        new = len(self.request.samples[0].tokens) - self.tokens
        if new:
            self.tokens += new
            self.stamps.append(now)
        return new


def fixed(
    lengths: Sequence[tuple[int, int]], batch_sizes: Sequence[int], vocabulary: int
) -> list[LatencyCase]:
    """Return a case for each pair of prompt and output length with each batch size.

    Prompts are tokens spread over the vocabulary, different from each other and the same in every
    call. Generation is greedy and ignores end-of-sequence tokens, so outputs have full length.
    """
    return [
        LatencyCase(
            f"{prompt}/{output}",
            batch,
            [_arbitrary(number, prompt, vocabulary) for number in range(batch)],
            SamplingParams(temperature=0, max_tokens=output, ignore_eos=True),
        )
        for prompt, output in lengths
        for batch in batch_sizes
    ]


def _arbitrary(number: int, count: int, vocabulary: int) -> list[int]:
    return [(number + index) * 7919 % vocabulary for index in range(count)]


def check_fits(cases: Iterable[LatencyCase], llm: LLM) -> None:
    """Refuse requests that do not fit the context.

    Raises:
        InputError: A request needs more tokens than the context holds.
    """
    context = llm.config.max_model_len or 0
    for case in cases:
        for number, prompt in enumerate(case.prompts, 1):
            tokens = len(prompt)
            if tokens + case.most_tokens > context:
                raise InputError(
                    f"{case.name}: request {number} may need {tokens + case.most_tokens} tokens "
                    f"({tokens} and {case.most_tokens} new ones), but the context holds {context}"
                )


def warm_up(llm: LLM, case: LatencyCase) -> None:
    """Run one batch of a case's requests, for `WARM_UP_TOKENS` tokens.

    Raises:
        OutOfMemory: There is no memory for them.
    """
    params = replace(case.params, max_tokens=min(WARM_UP_TOKENS, case.most_tokens))
    run(llm, replace(case, prompts=case.prompts[: case.batch_size], params=params))


def measure(
    llm: LLM,
    case: LatencyCase,
    repetitions: int,
    report: Report | None = None,
    clock: Clock = time.perf_counter,
) -> LatencyResult:
    """Run a case `repetitions` times and return the result.

    Raises:
        InputError: A request failed, for example for lack of memory.
    """
    before = llm.runner.trace.copy()
    runs = [run(llm, case, report, clock) for _ in range(repetitions)]
    return result(case, runs, llm.runner.trace.since(before))


def run(
    llm: LLM, case: LatencyCase, report: Report | None = None, clock: Clock = time.perf_counter
) -> list[Timing]:
    """Run a case once and return the times of its requests' tokens."""
    context = llm.config.max_model_len
    assert context is not None, "an engine's config is resolved"
    loop = Loop(
        llm.runner,
        llm.tokenizer,
        llm.budget,
        max_num_seqs=case.batch_size,
        max_model_len=context,
    )
    maker = RequestMaker(llm.config, llm.tokenizer, llm.runner)
    requests = [maker.make(prompt, case.params) for prompt in case.prompts]
    arrival = clock()
    timings = [Timing(request, arrival) for request in requests]
    for request in requests:
        loop.add(request)
    try:
        _drive(loop, timings, report or (lambda new: None), clock)
    finally:
        for request in requests:
            loop.abort(request)
    for request in requests:
        if request.error:
            raise InputError(f"{case.name}: {request.error}")
    return timings


def _drive(loop: Loop, timings: Sequence[Timing], report: Report, clock: Clock) -> None:
    """Run the loop until all requests have ended."""
    waiting = deque(timings)
    running: list[Timing] = []
    while waiting or running:
        began = clock()
        loop.step()
        now = clock()
        while waiting and waiting[0].request.begun:  # they start in the order of arrival
            running.append(waiting.popleft())
            running[-1].started = began
        report(sum(timing.stamp(now) for timing in running))
        running = [timing for timing in running if not timing.request.finished]


def result(case: LatencyCase, runs: Sequence[Sequence[Timing]], reads: Trace) -> LatencyResult:
    """Return the figures of at least one run of a case; `reads` has the counts of all runs."""
    timings = [timing for timings in runs for timing in timings]
    outputs = [sum(timing.tokens for timing in timings) for timings in runs]
    seconds = [max(t.stamps[-1] for t in timings) - timings[0].arrival for timings in runs]
    prompts = sum(map(len, case.prompts))
    decoded = sum(outputs) - len(timings)  # each request's first token comes with its prompt
    return LatencyResult(
        case=case.name,
        batch_size=case.batch_size,
        context=case.context,
        requests=len(timings),
        prompt_tokens=prompts * len(runs),
        output_tokens=sum(outputs),
        ttft_seconds=Spread.of([timing.ttft for timing in timings]),
        tpot_seconds=Spread.of([timing.tpot for timing in timings if timing.tokens > 1]),
        itl_seconds=Spread.of([gap for timing in timings for gap in timing.gaps]),
        queue_seconds=Spread.of([timing.started - timing.arrival for timing in timings]),
        output_tokens_per_second=Rate.of(outputs, seconds),
        total_tokens_per_second=Rate.of([prompts + output for output in outputs], seconds),
        requests_per_second=Rate.of([len(case.prompts)] * len(runs), seconds),
        kv_bytes_per_token=reads.kv_bytes_read / decoded if decoded else None,
        weight_bytes_per_token=reads.weight_bytes_read / decoded if decoded else None,
    )
