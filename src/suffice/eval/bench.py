"""Speed of prompts and decoding, in llama-bench's terms.

`pp512` runs a prompt of 512 tokens; `tg64 @ d3000` decodes 64 tokens after 3000 cached ones. The
tokens are arbitrary. Tokenization and sampling are not timed. The first run of each case is a
warm-up and not counted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from suffice.engine.protocol import Runner
from suffice.errors import InputError

Clock = Callable[[], float]


@dataclass(frozen=True)
class BenchCase:
    """One test: run `prompt` or decode `generate` tokens for `batch` requests, `depth` cached."""

    prompt: int
    generate: int
    depth: int
    batch: int

    @property
    def name(self) -> str:
        """The test's name in llama-bench's form."""
        what = f"pp{self.prompt}" if self.prompt else f"tg{self.generate}"
        return f"{what} @ d{self.depth}" if self.depth else what

    @property
    def tokens(self) -> int:
        """Tokens in the measured part."""
        return self.batch * (self.prompt or self.generate)


@dataclass(frozen=True)
class BenchResult:
    """The result of one test; bytes are those of decode steps, zero for prompts."""

    case: BenchCase
    seconds: tuple[float, ...]
    kv_bytes_per_token: float
    weight_bytes_per_token: float
    expert_bytes_per_token: float  # included in weight_bytes_per_token
    expert_fraction: float  # of the experts' bytes that a step read; 0 without experts
    prompt_fraction: float  # of the keys that tiles of prompts saw; 0 without tiles
    roof_bytes_per_second: float

    @property
    def speeds(self) -> list[float]:
        """Tokens per second of each repetition."""
        return [self.case.tokens / seconds for seconds in self.seconds]

    @property
    def mean(self) -> float:
        """Mean of the speeds."""
        return statistics.mean(self.speeds)

    @property
    def deviation(self) -> float:
        """Standard deviation of the speeds; 0 for a single one."""
        return statistics.stdev(self.speeds) if len(self.seconds) > 1 else 0.0

    @property
    def read_bytes_per_second(self) -> float:
        """Bytes of weights, keys and values read per second."""
        return (self.kv_bytes_per_token + self.weight_bytes_per_token) * self.mean

    @property
    def roof_fraction(self) -> float:
        """Bytes read per second, as a fraction of the machine's streaming read bandwidth."""
        return self.read_bytes_per_second / self.roof_bytes_per_second


def cases(
    prompts: Sequence[int],
    generates: Sequence[int],
    depths: Sequence[int],
    batch: int,
    repetitions: int,
) -> list[BenchCase]:
    """Return a case for each prompt and decode length at each depth; lengths of 0 are skipped.

    `repetitions` is only checked.

    Raises:
        InputError: A number is too small, or there is nothing to measure.
    """
    for name, value, least in (
        *(("-p/--n-prompt", prompt, 0) for prompt in prompts),
        *(("-n/--n-gen", generate, 0) for generate in generates),
        ("-b/--batch-size", batch, 1),
        ("-r/--repetitions", repetitions, 1),
        *(("-d/--n-depth", depth, 0) for depth in depths),
    ):
        if value < least:
            raise InputError(f"{name}={value}: must be at least {least}")
    if not depths or not (any(prompts) or any(generates)):
        raise InputError("nothing to measure: give -p or -n above 0 and at least one depth")
    found = []
    for depth in depths:
        found += [BenchCase(prompt, 0, depth, batch) for prompt in prompts if prompt]
        found += [BenchCase(0, generate, depth, batch) for generate in generates if generate]
    return found


def check_context(wanted: Sequence[BenchCase], context: int) -> None:
    """Refuse cases that do not fit the context.

    Raises:
        InputError: The longest case needs more tokens than the context holds.
    """
    longest = max(wanted, key=rows)
    if rows(longest) > context:
        raise InputError(
            f"{longest.name} needs {rows(longest)} tokens, but the context holds {context}"
        )


def measure(
    runner: Runner,
    wanted: Sequence[BenchCase],
    repetitions: int,
    roof_bytes_per_second: float,
    clock: Clock = time.perf_counter,
) -> Iterator[BenchResult]:
    """Yield the result of each case.

    Every repetition decodes on a fresh copy of the cache, so its time includes cache growth.

    Raises:
        OutOfMemory: There is no memory for a case.
    """
    for case in wanted:
        started = runner.trace.copy()
        start = runner.open("bench", rows(case))
        try:
            if case.depth:
                runner.prefill(start, _tokens(runner, case.depth))
            _once(runner, case, start, clock)
            before = runner.trace.copy()
            seconds = tuple(_once(runner, case, start, clock) for _ in range(repetitions))
        finally:
            runner.close(start)
        decoded = case.generate * case.batch * repetitions
        read, prompts = runner.trace.since(before), runner.trace.since(started)
        yield BenchResult(
            case,
            seconds,
            read.kv_bytes_read / decoded if decoded else 0.0,
            read.weight_bytes_read / decoded if decoded else 0.0,
            read.expert_bytes_read / decoded if decoded else 0.0,
            read.expert_bytes_read / read.expert_bytes_held if read.expert_bytes_held else 0.0,
            prompts.tile_rows_read / prompts.tile_rows_held if prompts.tile_rows_held else 0.0,
            roof_bytes_per_second,
        )


def rows(case: BenchCase) -> int:
    """Return the number of tokens in the cache of each request at the end of a case."""
    return case.depth + (case.prompt or case.generate)


def _once(runner: Runner, case: BenchCase, start: Any, clock: Clock) -> float:
    """Run a case once on copies of the sequence `start`; return the seconds, copying excluded."""
    sequences: list[Any] = []
    try:
        sequences += (runner.fork(start) for _ in range(case.batch))
        began = clock()
        if case.prompt:
            _prompts(runner, case.prompt, sequences)
        else:
            _decode(runner, case.generate, sequences)
        return clock() - began
    finally:
        for sequence in sequences:
            runner.close(sequence)


def _prompts(runner: Runner, count: int, sequences: list[Any]) -> None:
    for sequence in sequences:
        runner.prefill(sequence, _tokens(runner, count))


def _decode(runner: Runner, count: int, sequences: list[Any]) -> None:
    for token in _tokens(runner, count):
        for sequence in sequences:
            runner.reserve(sequence)
        runner.step(sequences, [token] * len(sequences))


def _tokens(runner: Runner, count: int) -> list[int]:
    """Return tokens spread over the vocabulary, the same in every call."""
    return [index * 7919 % runner.vocabulary for index in range(count)]
