"""One engine with all cores, or several with fewer: measured here, and simulated on 96 cores.

    python -m benchmarks.serve.division            (about 10 minutes)
    python -m benchmarks.serve.division --quick

The BMC paper's Fig. 14 has one instance (BMC) and several on the same cores (BMC_MI), at batch 128.
Here a server with one engine of all cores and a server with an engine for each core take turns;
`suffice bench serve`'s client keeps as many requests under way as there are places. The simulator
gets the same requests, and then the paper's machine: cores like ours, the paper's memory. Results
go to benchmarks/serve/results/division.json and division.md.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from typing import Any

from benchmarks.harness import script
from benchmarks.harness.tables import markdown
from benchmarks.peers.report import spread
from benchmarks.serve.servers import Kind, Place, Server, suffice
from benchmarks.serve.simulated import MODEL, Sizes, calibrated, sent, simulated
from suffice import native, pull
from suffice.eval.serving_load import Load
from suffice.plan.setting import FrontCosts, setting
from suffice.plan.stored import Calibration

ROUNDS = 3
TOGETHER = (8, 32)  # requests under way
TURNS = 3  # requests for each of them
PAPER_CORES, PAPER_BANDWIDTH = 96, 460.8e9  # of a socket of EPYC 9654
PAPER_DIVISIONS = (96, 48, 24, 12, 8)  # cores of an engine
PAPER_TOGETHER = 128
PAPER = 1.36 / 1.23  # BMC_MI over BMC, by the speed-ups over vLLM


def load(sizes: Sizes, together: int) -> Load:
    """Return requests, `together` of them at a time."""
    sizes = dataclasses.replace(sizes, requests=TURNS * together)
    return dataclasses.replace(sizes.load(None, seed=11), concurrency=together)


def measured(place: Place, engines: int, loads: dict[int, Load]) -> dict[int, float]:
    """Return the new tokens per second of a server with some engines, by requests under way."""
    places = -(-max(loads) // engines)
    flags = ("--instances", str(engines), "-np", str(places))
    own = dataclasses.replace(place, threads=place.threads // engines)
    server = Server("division", own, Kind("division", suffice, flags))
    found = {}
    try:
        for together, each in loads.items():
            exchanges = asyncio.run(sent(server, each))
            began = min(one.sent for one in exchanges)
            ended = max(one.ended for one in exchanges)
            found[together] = sum(one.tokens for one in exchanges) / (ended - began)
    finally:
        server.close()
    return found


def expected(
    calibration: Calibration, engines: int, cores: int, each: Load, **machine: Any
) -> float:
    """Return the new tokens per second of the simulator."""
    places = -(-(each.concurrency or 1) // engines)
    own = setting(
        calibration, engines, cores, places=places, front=FrontCosts(), front_apart=True, **machine
    )
    run = simulated(each, own, calibration, most=each.concurrency)
    return float(sum(one.arrival.output_tokens for one in run.outcomes) / run.seconds)


def run(place: Place, sizes: Sizes, rounds: int, quick: bool) -> dict[str, Any]:
    """Measure and simulate both divisions, then simulate the paper's machine."""
    divisions = (1, place.threads)
    loads = {together: load(sizes, together) for together in TOGETHER}
    real: dict[str, dict[str, list[float]]] = {
        str(together): {str(engines): [] for engines in divisions} for together in TOGETHER
    }
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
        for engines in divisions:
            for together, speed in measured(place, engines, loads).items():
                real[str(together)][str(engines)].append(speed)
    steps = {engines: calibrated(place.threads // engines) for engines in divisions}
    native.set_threads(1)
    alike = {
        str(together): {
            str(engines): expected(steps[engines], engines, place.threads // engines, each)
            for engines in divisions
        }
        for together, each in loads.items()
    }
    paper = {
        str(cores): expected(
            steps[1],
            PAPER_CORES // cores,
            cores,
            load(sizes, 8 if quick else PAPER_TOGETHER),
            node_cores=PAPER_CORES,
            bandwidth=PAPER_BANDWIDTH,
        )
        for cores in PAPER_DIVISIONS
    }
    return {"threads": place.threads, "real": real, "simulated": alike, "paper": paper}


def table(data: dict[str, Any]) -> str:
    """Return the tables of a result."""
    found, rows = data["found"], []
    for together, own in found["real"].items():
        one, *_ = own.values()
        for engines, speeds in own.items():
            over = [mine / alone for mine, alone in zip(speeds, one, strict=True)]
            alike = found["simulated"][together]
            rows.append(
                [
                    together,
                    f"{engines} x {found['threads'] // int(engines)} threads",
                    spread(speeds),
                    spread(over),
                    f"{alike[engines]:.0f}",
                    f"{alike[engines] / alike['1']:.2f}",
                ]
            )
    head = ["requests under way", "engines", "new tokens/s", "over one engine"]
    head += ["simulated", "over one engine, simulated"]
    whole = found["paper"][str(PAPER_CORES)]
    paper = [
        [f"{PAPER_CORES // int(cores)} x {cores} cores", f"{speed:.0f}", f"{speed / whole:.2f}"]
        for cores, speed in found["paper"].items()
    ]
    note = (
        f"{PAPER_CORES} cores like this machine's, {PAPER_BANDWIDTH / 1e9:.0f} GB/s, "
        f"{PAPER_TOGETHER} requests under way. The simulator's calls scale with the cores without "
        f"loss; the paper, whose calls do not, has {PAPER:.2f} for its division."
    )
    return "\n\n".join(
        [
            "## One engine or several on the same cores (Fig. 14)",
            markdown(head, rows),
            markdown(["simulated", "new tokens/s", "over one engine"], paper),
            note,
        ]
    )


def main() -> int:
    options = script.quick_or_whole(__doc__)
    gguf = pull.pull(MODEL)
    sizes = Sizes(0, 32, 8) if options.quick else Sizes(0, 128, 256)
    place = Place(gguf, gguf.parent, native.cores())
    found = run(place, sizes, 1 if options.quick else ROUNDS, options.quick)
    script.store(options, __file__, {"model": MODEL, "found": found}, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
