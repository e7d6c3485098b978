"""Up to a thousand engines behind one front, simulated: where the front or the router is the limit.

    python -m benchmarks.serve.nodes            (about 10 minutes, of one core)
    python -m benchmarks.serve.nodes --quick

Every engine is a node like this machine and gets the same load, a share of what one can answer, so
that without a front nothing would change with their number. The costs of the front and the router
are those that `benchmarks.serve.front` stored; without a result, the simulator's own. Results go to
benchmarks/serve/results/nodes.json and nodes.md.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import record, script
from benchmarks.harness.tables import markdown
from benchmarks.serve.simulated import calibrated
from suffice import native
from suffice.plan import figures
from suffice.plan.cluster import Cluster
from suffice.plan.setting import FrontCosts, setting
from suffice.plan.stored import Calibration
from suffice.plan.trace import Lengths, made

NODES = (1, 16, 64, 256, 1024)
SHARE = 0.5  # of what an engine can answer
LOADS = {"chat": Lengths(256, 128, 0.5), "short": Lengths(32, 4, 0.5)}
EACH = 12  # requests of an engine, at least
LEAST = 400  # requests of a load
NO_LIMIT = 1 << 30


def front_costs(path: Path) -> FrontCosts:
    """Return the costs that `benchmarks.serve.front` stored, or the simulator's own."""
    if not path.is_file():
        return FrontCosts()
    found = json.loads(path.read_text())["found"]
    router = {name: found["router"][name] for name in ("instance", "ticket", "block")}
    request = found["cases"]["short_stream"]["cpu"] - found["token"]
    return FrontCosts(request=request, token=found["token"], **router)


def answerable(calibration: Calibration, lengths: Lengths) -> float:
    """Return the requests a second that one engine answers whose places are always taken."""
    own = setting(calibration, 1, front=FrontCosts(0, 0, 0, 0, 0, 0))
    load = made("bursts", 1.0, 256, lengths, burst=256)
    run = Cluster(own, calibration).run(load, concurrency=own.places)
    return len(run.outcomes) / run.seconds


def simulated(
    calibration: Calibration, nodes: int, lengths: Lengths, rate: float, costs: FrontCosts
) -> dict[str, Any]:
    """Return the figures of some nodes with a load of their own each."""
    own = setting(
        calibration,
        nodes,
        calibration.cores,
        front=costs,
        front_apart=True,
        max_queue=NO_LIMIT,
    )
    load = made("poisson", rate * nodes, max(EACH * nodes, LEAST), lengths)
    found = figures.summary(Cluster(own, calibration).run(load), {})
    wanted = ("request_throughput", "utilisation", "front_utilisation", "p50_ttft_ms")
    return {"offered": rate * nodes, **{name: found[name] for name in (*wanted, "p95_ttft_ms")}}


def run(calibration: Calibration, costs: FrontCosts, nodes: tuple[int, ...]) -> dict[str, Any]:
    """Simulate every load on every number of nodes."""
    found: dict[str, Any] = {}
    for name, lengths in LOADS.items():
        rate, found[name] = SHARE * answerable(calibration, lengths), {}
        for count in nodes:
            print(f"{name}: {count} nodes", file=sys.stderr)
            found[name][str(count)] = simulated(calibration, count, lengths, rate, costs)
    return found


def table(data: dict[str, Any]) -> str:
    """Return the table of a result."""
    costs = FrontCosts(**data["costs"])
    rows: list[list[object]] = []
    for name, own in data["found"].items():
        lengths = LOADS[name]
        for count, each in own.items():
            router = costs.routed(int(count), 4 * int(count), lengths.input_len)
            whole = costs.request + router + costs.token * lengths.output_len
            rows.append(
                [
                    f"{name}, {lengths.input_len} + {lengths.output_len} tokens",
                    count,
                    f"{each['offered']:.0f}",
                    f"{each['request_throughput']:.0f}",
                    f"{each['p50_ttft_ms']:.0f} / {each['p95_ttft_ms']:.0f}",
                    f"{each['utilisation']:.0%}",
                    f"{each['front_utilisation']:.0%}",
                    f"{1e6 * whole:.0f} ({router / whole:.0%})",
                ]
            )
    head = ["load", "nodes", "requests/s offered", "answered", "TTFT, ms (p50 / p95)"]
    head += ["engines at work", "front at work", "front's us a request (router's share)"]
    us = ", ".join(f"{name} {1e6 * value:.1f}" for name, value in data["costs"].items())
    note = (
        "Answered: requests over the time until the last answer, so less than what is offered "
        f"where answers go on after the last request. Costs of the front in us: {us}."
    )
    return f"## A thousand nodes\n\n{markdown(head, rows)}\n\n{note}"


def main() -> int:
    options = script.quick_or_whole(__doc__)
    print("measuring steps", file=sys.stderr)
    calibration = calibrated(native.cores())
    native.set_threads(1)
    costs = front_costs(record.results(__file__) / "front.json")
    found = run(calibration, costs, NODES[:2] if options.quick else NODES)
    script.store(options, __file__, {"costs": dataclasses.asdict(costs), "found": found}, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
