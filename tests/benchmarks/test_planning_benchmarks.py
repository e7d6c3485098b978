"""The scripts about `suffice plan`: the client's own arrivals, bars that bite, trial runs."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.serve import division, front, nodes, servers, sharing, simulated
from benchmarks.serve.engines.instant import Paced
from benchmarks.serve.servers import Place
from planning import FREE, calibration, costs, engines
from suffice import SamplingParams, native
from suffice.engine.work import Delta, Work
from suffice.errors import InputError
from suffice.eval import serving_load
from suffice.eval.serving_client import Exchange, Target
from suffice.plan.setting import FrontCosts

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_simulator_gets_what_the_client_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[float, int, int]] = []

    async def exchange(target: Any, path: str, body: Any, seconds: float) -> Exchange:
        sent.append((time.perf_counter(), len(body["prompt"]), body["max_tokens"]))
        return Exchange(0.0, [0.0])

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    slept: list[float] = []
    monkeypatch.setattr(serving_load, "exchange", exchange)
    monkeypatch.setattr(serving_load.time, "perf_counter", lambda: sum(slept))
    monkeypatch.setattr(serving_load.asyncio, "sleep", sleep)
    load = simulated.Sizes(20, 50, 10).load(3.0, seed=5)
    asyncio.run(serving_load.run(Target.of("http://x"), "m", load, 1.0))
    expected = simulated.arrivals(load)
    assert [(prompt, output) for _, prompt, output in sent] == [
        (each.prompt_tokens, each.output_tokens) for each in expected
    ]
    gaps = [after.arrival - before.arrival for before, after in pairwise(expected)]
    assert slept[1:] == pytest.approx(gaps)


def compared(factor: float) -> dict[str, Any]:
    """Return figures as `compared` does, of a machine whose steps take `factor` times as long."""
    load = simulated.Sizes(40, 50, 20).load(8.0, seed=1)
    own = engines(1, front=FREE)
    real = simulated.figures.summary(simulated.simulated(load, own, calibration()), {})
    model = costs()
    slow = {
        name: tuple(factor * each for each in value) if isinstance(value, tuple) else factor * value
        for name in ("linear", "head", "read", "pair", "step")
        for value in [getattr(model, name)]
    }
    run = simulated.simulated(load, own, calibration(**slow))
    summary = simulated.figures.summary(run, {})
    figures = {
        "real": {name: real[name] for name in simulated.FIGURES},
        "simulated": {name: summary[name] for name in simulated.FIGURES},
    }
    loads = [{"rate": 8.0, "utilisation": 0.5, "paces": [1.0], **figures}]
    residual = {"median": 0.01, "p95": 0.02, "measured": 3}
    return {"1": {"threads": 1, "residual": residual, "loads": loads}}


def test_costs_that_are_wrong_are_caught() -> None:
    assert simulated.beyond(compared(1.0)) == []
    slow = compared(1.3)
    assert len(simulated.beyond(slow)) == 4
    assert len(simulated.beyond(compared(0.7))) == 4
    table = simulated.table({"found": slow})
    assert "0 of 4 figures are within 15%" in table


def test_a_machine_at_another_pace_is_one_whose_clock_differs() -> None:
    """Twice as slow: requests come twice as often by its clock, and steps are as long."""
    sizes, own = simulated.Sizes(30, 50, 20), engines(1, front=FREE)
    slow = simulated.simulated(sizes.load(4.0, 3), own, calibration(), pace=2.0)
    own = dataclasses.replace(own, step_seconds=own.step_seconds / 2)
    fast = simulated.simulated(sizes.load(8.0, 3), own, calibration())
    assert [each.chunks for each in slow.outcomes] == [
        pytest.approx(each.chunks) for each in fast.outcomes
    ]
    rounds = simulated.Compared(4.0)
    rounds.add(slow, 2.0)
    first = simulated.figures.times(fast.outcomes[0])["ttft"]
    assert rounds.simulated[0]["ttft"][0] == pytest.approx(2e3 * first)


def test_a_probe_takes_time_and_leaves_the_threads(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulated, "MODEL", str(checkpoint))
    monkeypatch.setattr(simulated, "PROBE_FIRST", 10)
    monkeypatch.setattr(simulated, "PROBE_LAST", 200)
    probe, before = simulated.Probe(), native.threads()
    native.set_threads(1)
    try:
        assert probe.seconds() > 0
        assert native.threads() == 1
    finally:
        native.set_threads(before)


def test_engines_that_are_always_busy_answer_the_most() -> None:
    sizes = simulated.Sizes(60, 50, 20)
    most = simulated.answerable(engines(1), calibration(), sizes)

    def answered(rate: float) -> float:
        run = simulated.simulated(sizes.load(rate, 3), engines(1), calibration())
        return len(run.outcomes) / run.seconds

    assert answered(most / 2) < 0.7 * most
    assert 0.8 * most < answered(10 * most) < 1.2 * most


def test_one_engine_or_several_are_measured_and_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(place: Place, engines: int, loads: dict[int, Any]) -> dict[int, float]:
        asked.append(engines)
        return dict.fromkeys(loads, 100.0 * engines)

    asked: list[int] = []
    monkeypatch.setattr(division, "measured", measured)
    monkeypatch.setattr(division, "calibrated", lambda threads: calibration())
    monkeypatch.setattr(division, "PAPER_TOGETHER", 12)
    place = Place(tmp_path, tmp_path, 2)
    found = division.run(place, simulated.Sizes(0, 50, 20), rounds=2, quick=False)
    assert asked == [1, 2, 1, 2]
    assert found["real"]["8"] == {"1": [100.0, 100.0], "2": [200.0, 200.0]}
    assert all(speed > 0 for own in found["simulated"].values() for speed in own.values())
    # More tokens a second come of 96 cores than of two.
    assert min(found["paper"].values()) > 4 * max(found["simulated"]["8"].values())
    table = division.table({"found": found})
    assert "| 8 | 2 x 1 threads | 200 (200 to 200) | 2 (2 to 2) |" in table
    assert "| 1 x 96 cores |" in table


def test_nodes_behind_a_slow_front_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "LOADS", {"short": nodes.LOADS["short"]})
    monkeypatch.setattr(nodes, "LEAST", 100)
    rate = nodes.SHARE * nodes.answerable(calibration(), nodes.LOADS["short"])
    slow = FrontCosts(request=0.4 / rate, token=0, instance=0, ticket=0, block=0)
    found = nodes.run(calibration(), slow, (1, 8))
    one, many = found["short"].values()
    assert one["front_utilisation"] < 0.6 and many["front_utilisation"] > 0.95
    assert one["request_throughput"] > 0.8 * one["offered"]
    assert many["request_throughput"] < 0.4 * many["offered"]
    assert many["p95_ttft_ms"] > 2 * one["p95_ttft_ms"]
    table = nodes.table({"costs": dataclasses.asdict(slow), "found": found})
    assert "| short, 32 + 4 tokens |" in table


def test_the_costs_of_the_front_are_those_that_were_stored(tmp_path: Path) -> None:
    path = tmp_path / "front.json"
    assert nodes.front_costs(path) == FrontCosts()
    router = {"instance": 1e-6, "ticket": 2e-6, "block": 3e-6, "choose_64": 1.0}
    found = {"cases": {"short_stream": {"cpu": 5e-4}}, "token": 4e-5, "router": router}
    path.write_text(json.dumps({"found": found}))
    assert nodes.front_costs(path) == FrontCosts(4.6e-4, 4e-5, 1e-6, 2e-6, 3e-6)


def test_more_engines_and_longer_prompts_cost_the_router_more() -> None:
    found = front.router_costs(repeats=20)
    assert found["choose_1024"] > 4 * found["choose_64"] > 0
    assert found["instance"] > 0 and found["block"] > 0


def test_the_front_is_measured(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "LOG", tmp_path)
    monkeypatch.setattr(front, "ROUNDS", 1)
    found = front.run(Place(checkpoint, checkpoint, 0), count=32, repeats=3)
    assert all(each["cpu"] > 0 and each["reached"] > 0 for each in found["cases"].values())
    table = front.table({"found": found})
    assert "requests/s of one front" in table and "64 engines with 4 requests each" in table


def test_a_second_engine_shares_its_weights(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"model": str(checkpoint)}
    once = asyncio.run(sharing.measured(options))
    monkeypatch.setattr(sharing, "measured", lambda given: asyncio.sleep(0, once))
    found = sharing.run({"tiny": options}, rounds=1)["tiny"]
    assert found["both"] > found["one"] > found["weights"] > 0
    assert found["second"] > 0 and found["slowest"] == found["second"]
    table = sharing.table({"found": {"tiny": found}})
    assert "| tiny |" in table and "at most 150 MB" in table


def test_an_engine_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing"):
        asyncio.run(sharing.measured({"model": str(tmp_path / "nothing")}))


def test_a_paced_engine_gives_all_tokens_of_each_request() -> None:
    engine = Paced(pause=0.001, first=0.01)
    given: dict[str, list[Delta]] = {"a": [], "b": []}
    ended = threading.Semaphore(0)

    def take(delta: Delta) -> None:
        given[delta.id].append(delta)
        if delta.final is not None:
            ended.release()

    for name, count in (("a", 30), ("b", 5)):
        engine.submit(Work(name, (1, 2), SamplingParams(max_tokens=count)), take)
    assert ended.acquire(timeout=30) and ended.acquire(timeout=30)
    assert [len(each) for each in given.values()] == [30, 5]
    assert all(each[-1].finish_reason == "length" for each in given.values())
    assert not any(delta.finish_reason for each in given.values() for delta in each[:-1])
