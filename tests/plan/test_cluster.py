"""Laws of a simulated load, which the real loop, scheduler, memory and router run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from planning import FREE, calibration, costs, engines
from suffice.engine.loop import Loop
from suffice.engine.memory import Memory
from suffice.engine.scheduler import Scheduler
from suffice.plan.cluster import Cluster, Run
from suffice.plan.costs import Call, StepCosts
from suffice.plan.figures import summary
from suffice.plan.instance import SimulatedInstance
from suffice.plan.setting import FrontCosts, Setting
from suffice.plan.trace import Arrival, Lengths, made
from suffice.serve.processes import wire
from suffice.serve.processes.router import Router

pytestmark = pytest.mark.usefixtures("one_thread")


def run(arrivals: list[Arrival], setting: Setting | None = None, **more: Any) -> Run:
    """Simulate a load with the costs of `planning`; every token reaches its request."""
    found = Cluster(setting or engines(), calibration()).run(arrivals, **more)
    for each in found.outcomes:
        assert each.ended
        if each.error is None:
            assert len(each.chunks) == each.arrival.output_tokens
            assert each.chunks == sorted(each.chunks) and each.chunks[0] > each.sent
    return found


def load(rate: float, requests: int = 150, **lengths: Any) -> list[Arrival]:
    return made(
        "poisson", rate, requests, Lengths(**{"input_len": 100, "output_len": 20, **lengths})
    )


def test_an_engine_sees_what_came_during_a_step_before_the_next() -> None:
    setting = engines()
    engine = SimulatedInstance(calibration(), setting, lambda: setting.hardware(1))
    params = {"temperature": 0, "max_tokens": 2, "ignore_eos": True}
    engine.deliver(0.5, wire.Submit("a", [1] * 5, params))
    assert [(each.id, each.tokens) for each in engine.step(1.0)] == [("a", 1)]
    first = engine.clock.now
    assert first > 1.0 and not engine.idle
    engine.deliver(1.001, wire.Submit("b", [2] * 5, params))
    news = {each.id: each for each in engine.step(first, taken=0.25)}
    assert news["a"].ended and news["b"].tokens == 1 and not news["b"].ended
    assert news["a"].queued == pytest.approx(0.5)
    assert news["b"].queued == pytest.approx(first - 1.001)
    assert engine.clock.now > first + 0.25
    engine.step(engine.clock.now)
    assert engine.idle


@pytest.mark.parametrize("pattern", ["poisson", "bursts"])
@pytest.mark.parametrize("count", [1, 3])
def test_every_request_ends_once(pattern: str, count: int) -> None:
    arrivals = made(pattern, 20, 80, Lengths(100, 20, 0.5, prefix_len=64, prefixes=3))
    ended = []
    found = run(arrivals, engines(count), tell=lambda: ended.append(1))
    assert len(ended) == len(found.outcomes) == 80
    assert all(each.error is None for each in found.outcomes)


def alone(prompt: int, output: int, model: StepCosts) -> tuple[float, float]:
    """Return what a request's first token takes alone, and its whole time, by the costs of steps.

    A call takes a whole tile of the prompt while nobody decodes; the first has no other.
    """
    first, held = 0.0, 0
    while held < prompt:
        part = min(128, prompt - held)
        last = held + part == prompt
        pairs = part * held + part * (part + 1) // 2
        first += model.seconds(Call(part, int(last), 0, pairs)) + model.overhead(0)
        held += part
    whole = first + sum(
        model.seconds(Call(1, 1, prompt + at + 1)) + model.overhead(1) for at in range(output - 1)
    )
    return first, whole


@pytest.mark.parametrize(("prompt", "output"), [(1, 1), (50, 9), (128, 2), (500, 40)])
def test_a_request_alone_takes_the_sum_of_its_steps(prompt: int, output: int) -> None:
    (outcome,) = run([Arrival(1.0, prompt, output)]).outcomes
    first, whole = alone(prompt, output, costs())
    assert outcome.chunks[0] == pytest.approx(1.0 + first)
    assert outcome.chunks[-1] == pytest.approx(1.0 + whole)


def test_that_law_bites(monkeypatch: pytest.MonkeyPatch) -> None:
    right = alone(500, 40, costs())
    seconds = StepCosts.seconds

    def broken(self: StepCosts, call: Call, *hardware: Any) -> float:
        return seconds(self, dataclasses.replace(call, pairs=0), *hardware)

    monkeypatch.setattr(StepCosts, "seconds", broken)
    (outcome,) = run([Arrival(0.0, 500, 40)]).outcomes
    assert outcome.chunks[0] < right[0] and outcome.chunks[-1] < right[1]


def test_memory_that_is_mapped_and_copied_takes_time() -> None:
    free = Cluster(engines(), calibration()).run([Arrival(0.0, 200, 100)])
    paid = Cluster(engines(), calibration(mapped=1e-7, copied=1e-6)).run([Arrival(0.0, 200, 100)])
    # 256 rows are mapped for the prompt; 256 are copied when row 257 comes.
    more = paid.outcomes[0].chunks[-1] - free.outcomes[0].chunks[-1]
    assert more == pytest.approx(256 * 1000 * 1e-7 + 256 * 1000 * 1e-6)


def test_the_same_load_gives_the_same_bytes() -> None:
    def outcomes(seed: int) -> bytes:
        arrivals = made("bursts", 15, 60, Lengths(100, 20, 0.5), seed)
        return msgspec.json.encode(run(arrivals, engines(2)).outcomes)

    assert outcomes(3) == outcomes(3)
    assert outcomes(3) != outcomes(4)


def test_more_engines_make_nobody_wait_longer() -> None:
    arrivals = load(30, 80)
    waits = [summary(run(arrivals, engines(count)), {})["p95_ttft_ms"] for count in (1, 2, 4, 8)]
    assert all(more <= 1.05 * fewer for fewer, more in pairwise(waits))
    assert waits[-1] < waits[0] / 4


def test_an_engine_is_never_busier_than_time_passes() -> None:
    found = run(load(60), engines(2))
    figures = summary(found, {})
    assert 0.9 < figures["utilisation"] <= figures["utilisation_most"] <= 1 + 1e-9


def test_a_full_queue_refuses() -> None:
    found = run(load(1000), engines(1, places=2, max_queue=5))
    errors = [each.error for each in found.outcomes]
    assert errors.count(None) >= 7 and set(errors) == {None, "the queue is full"}
    assert summary(found, {})["failed"] == len(errors) - errors.count(None)


def test_the_queue_comes_after_the_places_of_all_engines() -> None:
    found = run([Arrival(0.0, 10, 3)] * 9, engines(2, places=2, max_queue=3))
    assert [each.error for each in found.outcomes].count("the queue is full") == 9 - (2 * 2 + 3)


def test_a_prompt_beyond_the_context_is_refused_and_the_others_run() -> None:
    found = run([Arrival(0.0, 5000, 1), Arrival(0.0, 10, 3)])
    first, second = found.outcomes
    assert first.error is not None and "at most 4095" in first.error
    assert second.error is None


def test_the_limit_of_bytes_holds_and_requests_are_parked_not_lost() -> None:
    limit = 12 * 256 * 1000  # twelve allocations
    setting = engines(1, kv_cache_bytes=limit, prefix_bytes=0)
    cluster = Cluster(setting, calibration())
    found = cluster.run([Arrival(0.0, 200, 200) for _ in range(16)])
    assert all(each.error is None for each in found.outcomes)
    assert limit / 2 < found.most_bytes[0] <= limit
    assert cluster.instances[0].loop.stats().preemptions > 0


def test_what_prompts_share_runs_once() -> None:
    arrivals = [Arrival(float(at), 1000, 5, "same", 900) for at in range(8)]
    cluster = Cluster(engines(), calibration())
    cluster.run(arrivals)
    stats = cluster.instances[0].loop.stats()
    assert stats.prefix_hits == 7 * 900
    assert stats.prompt_tokens == 1000 + 7 * 100


def test_the_router_sends_a_beginning_to_who_has_kept_it() -> None:
    arrivals = [Arrival(5.0 * at, 1000, 5, at % 2, 960) for at in range(10)]
    found = run(arrivals, engines(2))
    assert [each.instance for each in found.outcomes] == [0, 1] * 5


def test_requests_beyond_the_concurrency_wait_for_an_end() -> None:
    found = run([Arrival(0.0, 10, 5) for _ in range(6)], concurrency=2)
    ends = sorted(each.chunks[-1] for each in found.outcomes)
    sent = sorted(each.sent for each in found.outcomes)
    assert sent[:2] == [0.0, 0.0] and sent[2:] == ends[:4]


def test_the_front_is_one_thread() -> None:
    arrivals = [Arrival(0.0, 1, 1) for _ in range(4)]
    setting = engines(4, front=FrontCosts(0.5, 0.25, 0, 0, 0, 0), front_apart=True)
    found = run(arrivals, setting)
    assert found.front_busy == pytest.approx(4 * 0.5 + 4 * 0.25)
    assert max(each.chunks[-1] for each in found.outcomes) >= found.front_busy
    assert found.most_behind == pytest.approx(1.5)


def test_a_front_on_the_engines_cores_makes_their_steps_longer() -> None:
    arrivals = load(10, 60)
    ttft = {}
    for apart in (True, False):
        front = FrontCosts(**{**vars(FREE), "token": 0.001})
        found = run(arrivals, engines(1, front=front, front_apart=apart))
        ttft[apart] = summary(found, {})["p95_ttft_ms"]
    assert ttft[False] > ttft[True]


def test_engines_of_a_node_share_its_bandwidth() -> None:
    arrivals = [Arrival(0.0, 10, 50), Arrival(0.0, 10, 50)]
    apart = run(arrivals, engines(2, cores=1, node_cores=1, bandwidth=1e10))
    together = run(arrivals, engines(2, cores=1, node_cores=2, bandwidth=1e10))
    assert together.seconds > 1.2 * apart.seconds


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Loop, "step"), (Scheduler, "admit"), (Memory, "fits"), (Router, "choose")],
)
def test_the_code_that_decides_is_the_real_one(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    calls = []
    real: Callable[..., Any] = getattr(owner, name)

    def counted(self: Any, *arguments: Any) -> Any:
        calls.append(name)
        return real(self, *arguments)

    monkeypatch.setattr(owner, name, counted)
    run(load(10, 10), engines(2))
    assert len(calls) >= 10
