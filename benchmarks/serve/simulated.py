"""The simulator against real runs: times of 1 and 2 engines under the same arrivals.

    python -m benchmarks.serve.simulated            (about 20 minutes)
    python -m benchmarks.serve.simulated --quick

Steps are calibrated first, for the threads that an engine of each number has. Then a server of our
own gets requests at random times, at shares of the rate that the simulator says it can answer, by
`suffice bench serve`'s client; the simulator gets the same lengths at the same times. The client
runs on the server's cores: its CPU time a token is measured and given to the simulator. Results go
to benchmarks/serve/results/simulated.json and simulated.md.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.harness import script
from benchmarks.harness.tables import markdown
from benchmarks.serve.servers import Kind, Place, Server, suffice
from suffice import native, pull
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
FIGURES = [f"p{at}_{name}_ms" for name in ("ttft", "tpot") for at in (50, 95)]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Requests of a load, and their tokens, which vary by half."""

    requests: int = 160
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


def calibrated(threads: int) -> Calibration:
    """Measure the steps of an engine with some threads."""
    with Measuring(Config.create(MODEL, threads=threads), "") as measuring:
        for _ in measuring.steps():
            pass
        return measuring.result()


def simulated(load: Load, own: Setting, found: Calibration, most: int | None = None) -> Run:
    """Simulate a load, at most `most` requests at a time."""
    return Cluster(own, found).run(arrivals(load), concurrency=most)


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


def measured(server: Server, load: Load) -> tuple[dict[str, float], float]:
    """Return the figures of a real run, and the client's CPU seconds a token."""
    before = time.process_time()
    exchanges = asyncio.run(sent(server, load))
    cpu = time.process_time() - before
    tokens = sum(each.tokens for each in exchanges)
    own = [serving_report.times(each) for each in exchanges]
    found = {}
    for name in ("ttft", "tpot"):
        values = [each[name] for each in own]
        found |= {f"p{at}_{name}_ms": float(np.percentile(values, at)) for at in (50, 95)}
    return found, cpu / tokens


def compared(engines: int, place: Place, shares: Sequence[float], sizes: Sizes) -> dict[str, Any]:
    """Return real and simulated figures of some engines, load by load."""
    threads = max(native.cores() // engines, 1)
    native.set_threads(threads)
    found = calibrated(threads)
    own = setting(found, engines, threads, native.cores(), places=PARALLEL)
    native.set_threads(1)
    most = answerable(own, found, sizes)
    flags = ("--instances", str(engines), "-np", str(PARALLEL))
    place = dataclasses.replace(place, threads=threads)
    server = Server("simulated", place, Kind("simulated", suffice, flags))
    loads = []
    try:
        for at, share in enumerate(shares):
            load = sizes.load(share * most, seed=100 + at)
            real, client = measured(server, load)
            costs = FrontCosts(client=client)
            run = simulated(load, dataclasses.replace(own, front=costs), found)
            summary = figures.summary(run, {})
            expected = {name: summary[name] for name in FIGURES}
            loads.append(
                {
                    "share": share,
                    "rate": load.rate,
                    "client_us": 1e6 * client,
                    "utilisation": summary["utilisation"],
                    "real": real,
                    "simulated": expected,
                }
            )
    finally:
        server.close()
    residual = dataclasses.asdict(found.residual)
    return {"threads": threads, "residual": residual, "answerable": most, "loads": loads}


def beyond(found: dict[str, Any]) -> list[str]:
    """Return what differs by more than the bar: engines, load and figure."""
    return [
        f"{engines} engines at {load['rate']:.1f}/s: {name}"
        for engines, own in found.items()
        for load in own["loads"]
        for name in FIGURES
        if abs(load["simulated"][name] / load["real"][name] - 1) > BAR
    ]


def table(data: dict[str, Any]) -> str:
    """Return the table of a result."""
    found = data["found"]
    rows = []
    for engines, own in found.items():
        for load in own["loads"]:
            cells = []
            for name in FIGURES:
                real, expected = load["real"][name], load["simulated"][name]
                cells.append(f"{real:.3g} / {expected:.3g} / {expected / real:.2f}")
            rows.append([engines, f"{load['rate']:.1f}", f"{load['utilisation']:.0%}", *cells])
    shown = ["TTFT p50, ms: real / simulated / ratio", "TTFT p95", "TPOT p50", "TPOT p95"]
    head = ["engines", "requests/s", "engines at work", *shown]
    late = beyond(found)
    count = sum(len(own["loads"]) for own in found.values()) * len(FIGURES)
    verdict = f"{count - len(late)} of {count} figures are within {BAR:.0%}"
    missed = f"; beyond: {', '.join(late)}" if late else ""
    fits = ", ".join(
        f"{own['threads']} threads {own['residual']['median']:.1%}" for own in found.values()
    )
    note = f"{verdict}{missed}. Median error of a call's fitted seconds: {fits}."
    return f"## Simulated and real\n\n{markdown(head, rows)}\n\n{note}"


def main() -> int:
    options = script.quick_or_whole(__doc__)
    gguf = pull.pull(MODEL)
    sizes = Sizes(16, 32, 8) if options.quick else Sizes()
    shares = SHARES[1:2] if options.quick else SHARES
    place = Place(gguf, gguf.parent, native.cores())
    engines = [each for each in ENGINES if each <= native.cores()]
    found = {str(each): compared(each, place, shares, sizes) for each in engines}
    script.store(options, __file__, {"model": MODEL, "bar": BAR, "found": found}, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
