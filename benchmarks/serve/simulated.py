"""The simulator against real runs: times of 1 and 2 engines under the same arrivals.

    python -m benchmarks.serve.simulated            (about 25 minutes)
    python -m benchmarks.serve.simulated --quick

Steps are calibrated first, for the threads that an engine of each number has. Then a server of our
own gets requests at random times, at shares of the rate that the simulator says it can answer, by
`suffice bench serve`'s client; the simulator gets the same lengths at the same times. The client
runs on the server's cores: its CPU time a token is measured and given to the simulator.

A machine that others share may be half as fast a minute later, which no simulator can know. So a
prompt is timed on all cores during the calibration, and before and after each load. The simulated
machine takes as much longer for a load as that prompt did then. Results go to
benchmarks/serve/results/simulated.json and simulated.md.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from benchmarks.harness import script
from benchmarks.harness.tables import markdown
from benchmarks.serve.servers import Kind, Place, Server, suffice
from suffice import LLM, SamplingParams, native, pull
from suffice.engine.config import Config
from suffice.eval import serving_load, serving_report
from suffice.eval.serving_client import Exchange
from suffice.eval.serving_load import Load
from suffice.plan import figures
from suffice.plan.calibrate import Measuring
from suffice.plan.cluster import Cluster, Run
from suffice.plan.setting import FrontCosts, Setting, setting
from suffice.plan.stored import Calibration
from suffice.plan.trace import Arrival

MODEL = "smollm2-135m"
PARALLEL = 16
ENGINES = (1, 2)
SHARES = (0.3, 0.6, 0.8)  # of the rate that can be answered
BAR = 0.15
SECONDS = 600.0  # longest time of a request
ROUNDS = 4
PROBE_TOKENS, PROBES = 128, 5
PROBE_FIRST, PROBE_LAST = 1000, 41000  # ids of a probe's tokens
NAMES = ("ttft", "tpot")
FIGURES = [f"p{at}_{name}_ms" for name in NAMES for at in (50, 95)]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Requests of a load in a round, and their tokens, which vary by half."""

    requests: int = 40
    prompt: int = 128
    output: int = 64

    def load(self, rate: float | None, seed: int) -> Load:
        """Return a load; without a rate, of as many requests at a time as there are places."""
        return Load(
            requests=self.requests,
            input_len=self.prompt,
            output_len=self.output,
            range_ratio=0.5,
            rate=rate,
            concurrency=None,
            seed=seed,
        )


def arrivals(load: Load) -> list[Arrival]:
    """Return what `serving_load.run` sends, and when."""
    draw, now, found = random.Random(load.seed + 1), 0.0, []
    for talk in serving_load.conversations(load):
        found.append(Arrival(now, len(talk.turns[0]), talk.lengths[0]))
        now += draw.expovariate(load.rate) if load.rate is not None else 0.0
    return found


class Probe:
    """Says how long a prompt takes on all cores now, while nothing else runs."""

    def __init__(self) -> None:
        self._llm = LLM(MODEL, threads=native.cores())
        self._one = SamplingParams(max_tokens=1, temperature=0)
        self._next = 0

    def seconds(self) -> float:
        """Return the median seconds of some prompts."""
        before = native.threads()
        native.set_threads(native.cores())
        found = [self._once() for _ in range(PROBES)]
        native.set_threads(before)
        return statistics.median(found)

    def _once(self) -> float:
        self._next += 1
        ids, start = PROBE_LAST - PROBE_FIRST, self._next * 7919
        prompt = [PROBE_FIRST + (start + at) % ids for at in range(PROBE_TOKENS)]
        began = time.perf_counter()
        self._llm.generate([prompt], self._one)
        return time.perf_counter() - began


def calibrated(threads: int, tell: Callable[[], None] = lambda: None) -> Calibration:
    """Measure the steps of an engine with some threads; `tell` is called now and then."""
    with Measuring(Config.create(MODEL, threads=threads), "") as measuring:
        for _ in measuring.steps():
            tell()
        return measuring.result()


def simulated(
    load: Load, own: Setting, found: Calibration, most: int | None = None, pace: float = 1.0
) -> Run:
    """Simulate a load, at most `most` requests at a time.

    The machine takes `pace` times as long as in its calibration; times of the run are in units of
    as many seconds.
    """
    own = dataclasses.replace(
        own,
        step_seconds=own.step_seconds / pace,
        front=dataclasses.replace(own.front, client=own.front.client / pace),
    )
    sent = [msgspec.structs.replace(each, arrival=each.arrival / pace) for each in arrivals(load)]
    return Cluster(own, found).run(sent, concurrency=most)


def answerable(own: Setting, found: Calibration, sizes: Sizes) -> float:
    """Return the requests a second that engines answer whose places are always taken."""
    load = sizes.load(None, seed=7)
    run = simulated(load, own, found, most=own.places * own.instances)
    return len(run.outcomes) / run.seconds


async def sent(server: Server, load: Load) -> list[Exchange]:
    warm = serving_load.warm_up(load, 2)
    await serving_load.run(server.target, server.model, warm, SECONDS)
    found = await serving_load.run(server.target, server.model, load, SECONDS)
    failed = next((each.error for each in found if each.error is not None), None)
    if failed is not None:
        raise RuntimeError(f"a request failed: {failed}")
    return found


Times = dict[str, list[float]]  # milliseconds of requests, by figure


def measured(server: Server, load: Load) -> tuple[Times, float]:
    """Return the times of a real run, and the client's CPU seconds a token."""
    before = time.process_time()
    exchanges = asyncio.run(sent(server, load))
    cpu = time.process_time() - before
    tokens = sum(each.tokens for each in exchanges)
    own = [serving_report.times(each) for each in exchanges]
    return {name: [each[name] for each in own] for name in NAMES}, cpu / tokens


def percentiles(rounds: Sequence[Times]) -> dict[str, float]:
    """Return the figures of all requests of some rounds."""
    return {
        f"p{at}_{name}_ms": float(
            np.percentile(np.concatenate([each[name] for each in rounds]), at)
        )
        for name in NAMES
        for at in (50, 95)
    }


@dataclasses.dataclass
class Compared:
    """Real and simulated rounds of one load."""

    rate: float
    real: list[Times] = dataclasses.field(default_factory=list)
    simulated: list[Times] = dataclasses.field(default_factory=list)
    clients: list[float] = dataclasses.field(default_factory=list)
    paces: list[float] = dataclasses.field(default_factory=list)
    busy: list[float] = dataclasses.field(default_factory=list)

    def add(self, run: Run, pace: float) -> None:
        """Add a simulated round."""
        own = [figures.times(each) for each in run.outcomes]
        self.simulated.append({name: [1e3 * pace * each[name] for each in own] for name in NAMES})
        self.paces.append(pace)
        self.busy.append(float(np.mean(run.busy)) / run.seconds)

    def figures(self) -> dict[str, Any]:
        """Return what is stored."""
        return {
            "rate": self.rate,
            "client_us": 1e6 * statistics.fmean(self.clients),
            "paces": self.paces,
            "utilisation": statistics.fmean(self.busy),
            "real": percentiles(self.real),
            "simulated": percentiles(self.simulated),
        }


def compared(
    engines: int, place: Place, shares: Sequence[float], sizes: Sizes, rounds: int, probe: Probe
) -> dict[str, Any]:
    """Return real and simulated figures of some engines, load by load."""
    threads = max(native.cores() // engines, 1)
    native.set_threads(threads)
    print(f"{engines} x {threads} threads: measuring steps", file=sys.stderr)
    probed: list[float] = []
    found = calibrated(threads, lambda: probed.append(probe.seconds()))
    usual = statistics.fmean(probed)
    own = setting(found, engines, threads, native.cores(), places=PARALLEL)
    native.set_threads(1)
    most = answerable(own, found, sizes)
    flags = ("--instances", str(engines), "-np", str(PARALLEL))
    place = dataclasses.replace(place, threads=threads)
    server = Server("simulated", place, Kind("simulated", suffice, flags))
    loads = [Compared(share * most) for share in shares]
    try:
        before = probe.seconds()
        for number, load in itertools.product(range(rounds), loads):
            print(f"round {number + 1} of {rounds}: {load.rate:.1f} requests/s", file=sys.stderr)
            asked = sizes.load(load.rate, seed=100 * number + loads.index(load))
            real, client = measured(server, asked)
            after = probe.seconds()
            pace, before = (before + after) / 2 / usual, after
            load.real.append(real)
            load.clients.append(client)
            costs = dataclasses.replace(own, front=FrontCosts(client=client))
            load.add(simulated(asked, costs, found, pace=pace), pace)
    finally:
        server.close()
    residual = dataclasses.asdict(found.residual)
    return {
        "threads": threads,
        "residual": residual,
        "answerable": most,
        "loads": [load.figures() for load in loads],
    }


def beyond(found: dict[str, Any]) -> list[str]:
    """Return what differs by more than the bar: engines, load and figure."""
    return [
        f"{_of(engines, 'engine')} at {load['rate']:.1f}/s: {name}"
        for engines, own in found.items()
        for load in own["loads"]
        for name in FIGURES
        if abs(load["simulated"][name] / load["real"][name] - 1) > BAR
    ]


def _of(count: int | str, what: str) -> str:
    return f"{count} {what}" if int(count) == 1 else f"{count} {what}s"


def _ms(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def table(data: dict[str, Any]) -> str:
    """Return the table of a result."""
    found = data["found"]
    rows = []
    for engines, own in found.items():
        for load in own["loads"]:
            cells = []
            for name in FIGURES:
                real, expected = load["real"][name], load["simulated"][name]
                cells.append(f"{_ms(real)} / {_ms(expected)} / {expected / real:.2f}")
            paces = f"{min(load['paces']):.2f} to {max(load['paces']):.2f}"
            at_work = f"{load['utilisation']:.0%}"
            rows.append([engines, f"{load['rate']:.1f}", at_work, paces, *cells])
    shown = ["TTFT p50, ms: real / simulated / ratio", "TTFT p95", "TPOT p50", "TPOT p95"]
    head = ["engines", "requests/s", "engines at work", "pace", *shown]
    late = beyond(found)
    count = sum(len(own["loads"]) for own in found.values()) * len(FIGURES)
    verdict = f"{count - len(late)} of {count} figures are within {BAR:.0%}"
    missed = f"; beyond: {', '.join(late)}" if late else ""
    fits = ", ".join(
        f"{_of(own['threads'], 'thread')} {own['residual']['median']:.1%}" for own in found.values()
    )
    note = (
        f"{verdict}{missed}. Pace: how long a prompt on all cores took at the time of the load, "
        f"over its time during the calibration. Median error of a call's fitted seconds: {fits}."
    )
    return f"## Simulated and real\n\n{markdown(head, rows)}\n\n{note}"


def main() -> int:
    options = script.quick_or_whole(__doc__)
    gguf = pull.pull(MODEL)
    sizes = Sizes(16, 32, 8) if options.quick else Sizes()
    shares = SHARES[1:2] if options.quick else SHARES
    place = Place(gguf, gguf.parent, native.cores())
    engines = [each for each in ENGINES if each <= native.cores()]
    rounds, probe = 1 if options.quick else ROUNDS, Probe()
    found = {str(each): compared(each, place, shares, sizes, rounds, probe) for each in engines}
    script.store(options, __file__, {"model": MODEL, "bar": BAR, "found": found}, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
