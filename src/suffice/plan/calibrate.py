"""Measures what steps of a model cost here, with its engine at work.

The engine is the server's; a runner around the real one notes what each call computes and how long
it takes. Requests are made so that calls of 1 to 32 samples at several depths occur, parts of
prompts of 8 to 128 tokens at several depths, and both together. What each of these scenes gave is
kept in a file at once, so that a measurement that was interrupted goes on.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from suffice import native
from suffice.cache import GROWTHS, machine
from suffice.engine.config import Config
from suffice.engine.llm import LLM
from suffice.engine.load import load
from suffice.engine.protocol import Rows
from suffice.engine.runner import Runner
from suffice.engine.service import Engine
from suffice.engine.work import Delta, Work
from suffice.errors import Closed, InputError, one_line
from suffice.plan import stored
from suffice.plan.costs import Call, Hardware, Residual, StepCosts, fitted, nonnegative
from suffice.plan.stored import Calibration, Model
from suffice.sampling_params import SamplingParams

SAMPLES = (1, 2, 4, 8, 16, 32)
DEPTHS = (32, 512, 2048)
PARTS = (8, 16, 32, 64, 96, 128)  # tokens of prompts
LONG = 2048  # tokens of the prompt whose parts are deep
STEPS = 24  # of a scene in which samples decode
GROUP = 8  # steps whose median counts as one measurement
ROUNDS = 2  # of every prompt
MOST_BYTES = 1 << 30  # of keys and values in a scene
_FAR = 4.0  # times the median error: such a measurement was disturbed
_READ_BYTES = 256 << 20


@dataclass(frozen=True)
class Measured:
    """A call, its seconds, and the seconds from its end to the next call (None: unknown)."""

    call: Call
    seconds: float
    samples: int
    after: float | None = None


@dataclass
class Watched:
    """A runner that notes what calls computes and how long they and memory take."""

    runner: Runner
    calls: list[Measured] = field(default_factory=list)
    mapped: list[tuple[int, float]] = field(default_factory=list)  # bytes, seconds
    copied: list[tuple[int, float]] = field(default_factory=list)
    _ended: float | None = None  # of the call before
    _aside: float = 0.0  # seconds since then that are of memory

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)

    def restart(self) -> None:
        """Forget what was noted; the time until the next call says nothing of the engine."""
        self._ended = None
        for noted in (self.calls, self.mapped, self.copied):
            noted.clear()

    def run(self, batch: Sequence[Rows]) -> list[np.ndarray]:
        """Run a batch, and note it."""
        call = Call.of(batch)
        began = time.perf_counter()
        if self._ended is not None:
            after = max(began - self._ended - self._aside, 0.0)
            self.calls[-1] = replace(self.calls[-1], after=after)
        found = self.runner.run(batch)
        self._ended, self._aside = time.perf_counter(), 0.0
        samples = sum(not rows.prompt for rows in batch)
        self.calls.append(Measured(call, self._ended - began, samples))
        return found

    def begin(self, sequence: Any, rows: int) -> None:
        """Reserve a prompt's memory, which `populate` maps."""
        before = sequence.cache.bytes
        self._timed(lambda: self.runner.begin(sequence, rows))
        self.mapped.append((sequence.cache.bytes - before, 0.0))

    def populate(self, sequence: Any, size: int) -> bool:
        """Map memory, and note the time."""
        found, seconds = self._timed(lambda: self.runner.populate(sequence, size))
        self.mapped.append((0, seconds))
        return bool(found)

    def reserve(self, sequence: Any, rows: int = 1, drafts: int = 0, **rest: float) -> int:
        """Reserve rows; note the time if the cache grew."""
        held, before = sequence.cache.bytes, sequence.cache.capacity
        found, seconds = self._timed(lambda: self.runner.reserve(sequence, rows, drafts, **rest))
        if sequence.cache.capacity > before > 0:
            self.copied.append((held * sequence.cache.length // before, seconds))
        return int(found)

    def fork(self, sequence: Any, rows: int | None = None, spare: int | None = None) -> Any:
        """Copy a sequence, and note the time."""
        found, seconds = self._timed(lambda: self.runner.fork(sequence, rows, spare))
        self.copied.append((found.cache.length * found.cache.row_bytes, seconds))
        return found

    def _timed(self, act: Callable[[], Any]) -> tuple[Any, float]:
        began = time.perf_counter()
        found = act()
        seconds = time.perf_counter() - began
        self._aside += seconds
        return found, seconds


@dataclass(frozen=True)
class Scene:
    """Requests that run together: samples that decode at a depth, and a prompt of `also` tokens."""

    samples: int
    depth: int
    steps: int
    also: int = 0  # tokens of the prompt

    def bytes(self, row: int) -> int:
        """Return about how many bytes its keys and values take."""
        return row * (self.samples * (self.depth + self.steps + 256) + self.also)


def scenes(context: int, row_bytes: int, most_bytes: int = MOST_BYTES) -> list[Scene]:
    """Return what is measured, as far as context and memory allow.

    Raises:
        InputError: They allow too little.
    """
    found = [Scene(samples, depth, STEPS) for depth in DEPTHS for samples in SAMPLES]
    found += [Scene(1, tokens, 1) for tokens in (*PARTS, LONG) for _ in range(ROUNDS)]
    found += [Scene(samples, 256, 4 * STEPS, also=1024) for samples in (1, 4, 16)]
    fit = [
        each
        for each in found
        if max(each.depth + each.steps, each.also) < context and each.bytes(row_bytes) <= most_bytes
    ]
    if not any(each.samples > 1 for each in fit) or not any(each.depth > 96 for each in fit):
        raise InputError(
            f"a context of {context} tokens at {row_bytes} bytes each is too small, or its memory "
            "too large, to measure steps"
        )
    return fit


class Part(msgspec.Struct, frozen=True):
    """What a scene gave: its calls, and bytes and seconds of memory that was mapped or copied."""

    scene: Scene
    calls: list[Measured]
    mapped: list[tuple[int, float]]
    copied: list[tuple[int, float]]


class Measuring:
    """Measures the steps of a model, scene by scene; a context manager.

    `options` is the text under which the calibration is kept, and `kept` the file that holds what
    is measured so far (None: nothing is kept).

    Raises:
        InputError: The model cannot be used, drafts tokens or evicts them.
    """

    def __init__(self, config: Config, options: str, kept: Path | None = None) -> None:
        check(config)
        self._options, self._kept = options, kept
        config, runner, tokenizer = load(replace(config, max_num_seqs=max(SAMPLES)))
        self._watched = Watched(runner)
        self._llm = LLM.from_parts(config, cast("Runner", self._watched), tokenizer)
        self._engine = Engine(self._llm)
        probe = runner.open("", runner.context)
        self._row_bytes = probe.cache.row_bytes
        runner.close(probe)
        self._scenes = scenes(runner.context, self._row_bytes)
        before = [] if kept is None else stored.parts(kept, Part)
        same = [part.scene == own for part, own in zip(before, self._scenes, strict=False)]
        self._parts = before if all(same) and len(before) <= len(self._scenes) else []

    def __enter__(self) -> Measuring:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.close()

    @property
    def total(self) -> int:
        """The number of scenes."""
        return len(self._scenes)

    @property
    def done(self) -> int:
        """How many of them are measured."""
        return len(self._parts)

    def steps(self) -> Iterator[None]:
        """Measure the scenes that are left; yields after each, when it is kept.

        Raises:
            InputError: The file cannot be written.
        """
        watched, left = self._watched, range(self.done, self.total)
        if left:
            self._play(Scene(2, 64, 8), 0)  # the first use of everything
        for number in left:
            watched.restart()
            self._play(self._scenes[number], number + 1)
            self._llm.loop.forget_prefixes()
            part = Part(
                self._scenes[number], [*watched.calls], [*watched.mapped], [*watched.copied]
            )
            self._parts.append(part)
            if self._kept is not None:
                stored.keep_parts(self._kept, self._parts)
            yield

    def result(self) -> Calibration:
        """Return the calibration, once all scenes are measured."""
        return _calibration(self._watched.runner, self._parts, self._options, self._row_bytes)

    def _play(self, scene: Scene, seed: int) -> None:
        _play(self._engine, scene, random.Random(seed), self._watched.runner.vocabulary)


def check(config: Config) -> None:
    """Require options that the simulation knows.

    Raises:
        InputError: Tokens are drafted or evicted.
    """
    if config.speculative_config.num_speculative_tokens:
        raise InputError("--speculate: `suffice plan` does not simulate drafts: leave it out")
    if config.policy.evicts:
        raise InputError("--policy: `suffice plan` simulates no policy that evicts: leave it out")


def _play(engine: Engine, scene: Scene, draw: random.Random, vocabulary: int) -> None:
    """Run a scene to its end.

    Raises:
        InputError: The engine's thread has died, or a request has failed.
    """
    last = min(vocabulary - 1, 9000)

    def prompt(tokens: int) -> tuple[int, ...]:
        return tuple(draw.randrange(last // 2, last) for _ in range(tokens))

    def work(name: str, tokens: tuple[int, ...], steps: int, group: str) -> Work:
        params = SamplingParams(temperature=0, max_tokens=steps, ignore_eos=True)
        return Work(name, tokens, params, reuse=bool(group), group=group)

    left = threading.Semaphore(0)
    errors: list[str | None] = []

    def take(delta: Delta) -> None:
        # The others come before the next step, so that all of them decode together.
        with contextlib.suppress(Closed):  # after Ctrl-C
            while waiting:
                engine.submit(waiting.pop(0), take)
        if delta.final is not None:
            errors.append(delta.final.error)
            left.release()

    def check() -> None:
        why = next(filter(None, errors), None if engine.alive else "its thread has died")
        if why is not None:
            raise InputError(f"the engine failed while it was measured: {one_line(why)}")

    shared = prompt(scene.depth)  # run once: the others copy its keys and values
    group = str(draw.random()) if scene.samples > 1 else ""
    works = [work(str(at), shared, scene.steps, group) for at in range(scene.samples)]
    if scene.also:
        works.append(work("also", prompt(scene.also), 1, ""))
    waiting = works[1:]
    engine.submit(works[0], take)
    for _ in works:
        while not left.acquire(timeout=0.1):  # in slices, so that Ctrl-C is heard
            check()
    check()


def _calibration(
    runner: Runner, parts: Sequence[Part], options: str, row_bytes: int
) -> Calibration:
    noted = [call for part in parts for call in part.calls]
    calls = grouped(noted)
    threads, cores = native.threads(), native.cores()
    hardware = Hardware(threads, native.read_bandwidth(_READ_BYTES, threads))
    linear, head, read, pair, residual = undisturbed(calls)
    step, sample, overhead = _overhead(noted)
    costs = StepCosts(
        linear=linear,
        head=head,
        read=read,
        pair=pair,
        step=step,
        sample=sample,
        mapped=_rate([each for part in parts for each in part.mapped]),
        copied=_rate([each for part in parts for each in part.copied]),
        weight_bytes=runner.weight_bytes,
        row_bytes=row_bytes,
        hardware=hardware,
    )
    model = Model(
        name=runner.config.model,
        context=runner.context,
        tile_rows=runner.tile_rows,
        known_rows=runner.known_rows,
        layers=len(runner.decoder.config.cached),
        growth=GROWTHS.text_of(runner.growth),
        shares_prompts=runner.shares_prompts,
        shares_answers=runner.shares_answers(),
    )
    return Calibration(
        cpu=machine.cpu_name(),
        isa=native.isa(),
        options=options,
        measured=time.strftime("%Y-%m-%d", time.gmtime()),
        cores=cores,
        bandwidth=native.read_bandwidth(_READ_BYTES, cores),
        bandwidth_one=native.read_bandwidth(_READ_BYTES, 1),
        model=model,
        costs=costs,
        residual=residual,
        overhead=overhead,
    )


def grouped(calls: Sequence[Measured]) -> list[Measured]:
    """Return medians of `GROUP` calls of the same kind in a row; parts of prompts stay alone."""
    found = []
    for (_, _, alone), same in groupby(
        calls, lambda each: (each.call.rows, each.call.outputs, each.call.pairs > 0)
    ):
        own = list(same)
        size = 1 if alone else GROUP
        for at in range(0, len(own), size):
            part = own[at : at + size]
            mean = [
                statistics.fmean(getattr(each.call, name) for each in part)
                for name in ("rows", "outputs", "read", "pairs")
            ]
            seconds = statistics.median(each.seconds for each in part)
            found.append(Measured(Call(*mean), seconds, part[0].samples))
    return found


def undisturbed(
    calls: Sequence[Measured],
) -> tuple[tuple[float, ...], tuple[float, float], float, float, Residual]:
    """Fit the costs of calls without those that something else has slowed down.

    A call that takes `_FAR` times the median error longer than the first fit says is left out of
    the second, and of its residual.
    """
    linear, head, read, pair, residual = fitted(
        [each.call for each in calls], [each.seconds for each in calls]
    )
    first = StepCosts(linear, head, read, pair, 0, 0, 0, 0, 0, 0, Hardware(1, 1))
    most = 1 + _FAR * max(residual.median, 0.01)
    kept = [each for each in calls if each.seconds <= most * first.seconds(each.call)]
    return fitted([each.call for each in kept], [each.seconds for each in kept])


def _overhead(calls: Sequence[Measured]) -> tuple[float, float, Residual]:
    """Fit the seconds between calls by the samples of a step: medians of each number."""
    known: dict[int, list[float]] = {}
    for each in calls:
        if each.after is not None and each.samples and not each.call.pairs:
            known.setdefault(each.samples, []).append(each.after)
    counts = sorted(known)
    seconds = np.array([statistics.median(known[count]) for count in counts])
    matrix = np.array([[1.0, count] for count in counts])
    step, sample = nonnegative(matrix / seconds[:, None], np.ones(len(counts))).tolist()
    return step, sample, Residual.of(matrix @ np.array([step, sample]), seconds)


def _rate(parts: Sequence[tuple[int, float]]) -> float:
    """Return seconds a byte, over all parts."""
    total = sum(size for size, _ in parts)
    return sum(seconds for _, seconds in parts) / total if total else 0.0
