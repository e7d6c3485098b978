"""Several engines behind one server: fleet.py, and instances.py with several."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_metrics import Page

from serving import ENGINE as SCRIPTED
from serving import Served, until
from suffice import native
from suffice.engine.work import EngineStats, Look
from suffice.errors import InputError
from suffice.serve.processes import instances
from suffice.serve.processes.fleet import load_of, rates_of, summed, together
from suffice.serve.processes.pending import Mailbox, Ticket, Tickets
from suffice.serve.processes.router import Load, Rates
from suffice.serve.processes.wire import Submit
from suffice.serve.settings import Settings

pytestmark = pytest.mark.skipif(native.cores() < 2, reason="two engines need two cores")
LONG = "hello " * 400


def kill(server: Served, at: int) -> None:
    pid = server.front.instance.members[at].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def under_way(server: Served) -> list[int]:
    return [len(member.tickets) for member in server.front.instance.members]


def generated(server: Served) -> list[int]:
    members = server.front.instance.members
    return [sum(each.generated for each in [*member.tickets.values()]) for member in members]


def text(server: Served, seed: int, **fields: Any) -> str:
    answer = server.chat(seed=seed, **{"max_tokens": 150, **fields})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def test_requests_of_an_engine_that_died_go_on_in_the_other(
    serving: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instances, "FIRST_PAUSE", 3600)  # none is started again
    monkeypatch.setattr(instances, "LONGEST_PAUSE", 3600)
    hold = tmp_path / "hold"
    options = {"hold": str(hold)}
    with serving(instances=2, options=options) as server, ThreadPoolExecutor() as pool:
        alone = [*pool.map(lambda seed: text(server, seed), range(6))]
        hold.write_text("20")
        asks = [pool.submit(text, server, seed) for seed in range(6)]
        until(lambda: under_way(server) == [3, 3] and min(generated(server)) > 2)
        kill(server, 0)
        hold.unlink()
        assert [ask.result() for ask in asks] == alone
        fleet = server.front.instance
        assert (fleet.restarts, fleet.failovers) == (1, 3)
        assert [member.ready for member in fleet.members] == [False, True]
        assert server.client.get("/ready").status_code == 200
        page = server.client.get("/metrics").text
        assert 'suffice:instance_restarts_total{engine="0",model_name="scripted"} 1.0' in page
        assert 'suffice:failovers_total{engine="1",model_name="scripted"} 3.0' in page
        assert 'suffice:num_requests_running{engine="1",model_name="scripted"}' in page
        assert text(server, 1) == alone[1], "new requests go to the other, too"


def test_metrics_are_those_of_the_engine_that_ran_a_request(
    serving: Callable[..., Any], tmp_path: Path
) -> None:
    """Of a request that moved: tokens count where they came from, the request where it ended."""
    hold = tmp_path / "hold"
    hold.write_text("20")
    with (
        serving(instances=2, options={"hold": str(hold)}) as server,
        ThreadPoolExecutor() as pool,
    ):
        asks = [pool.submit(text, server, seed, max_tokens=60) for seed in range(4)]
        until(lambda: under_way(server) == [2, 2] and min(generated(server)) > 4)
        kill(server, 0)
        until(lambda: under_way(server) == [0, 4])
        hold.unlink()
        for ask in asks:
            ask.result()
        page = Page(server.client.get("/metrics").text)
        assert page("request_success_total", engine="0") == 0
        assert page("request_success_total", engine="1") == 4
        assert page("time_to_first_token_seconds_count", engine="0") == 2
        assert page("e2e_request_latency_seconds_count", engine="1") == 4
        tokens = [page("generation_tokens_total", engine=at) for at in "01"]
        assert sum(tokens) == 240 and 4 < tokens[0] < 120


def test_what_waits_for_an_engine_goes_to_the_first_that_comes(
    serving: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instances, "FIRST_PAUSE", 0.01)
    launch, allowed = instances.Instance._launch, list[Any]()

    async def launched(instance: instances.Instance) -> Any:
        while instance not in allowed:
            await asyncio.sleep(0.01)
        return await launch(instance)

    with serving(instances=2) as server, ThreadPoolExecutor() as pool:
        alone = text(server, 5)
        monkeypatch.setattr(instances.Instance, "_launch", launched)
        for at in (0, 1):
            kill(server, at)
        until(lambda: not server.front.instance.ready)
        asks = [pool.submit(text, server, 5) for _ in range(4)]
        until(lambda: len(server.front.instance.tickets) == 4)
        allowed.append(server.front.instance.members[1])
        assert [ask.result() for ask in asks] == [alone] * 4
        assert [member.ready for member in server.front.instance.members] == [False, True]


def test_a_beginning_draws_requests_to_one_engine(serving: Callable[..., Any]) -> None:
    def steps_of(at: int) -> int:
        return int(server.front.instance.members[at].stats.get("generated_tokens", 0))

    with serving(instances=2, options={"context": 4096}) as server:
        text(server, 0, max_tokens=1)  # the other begins the next, of all that are alike
        for seed in range(5):
            asked = [{"role": "user", "content": LONG + "hello " * seed}]
            body = {"messages": asked, "max_tokens": 20, "seed": seed}
            answer = server.post("/v1/chat/completions", body)
            assert answer.status_code == 200, answer.text
        until(lambda: steps_of(1) == 100)
        assert steps_of(0) == 1


def test_an_engine_that_is_stopped_gets_no_requests(serving: Callable[..., Any]) -> None:
    with serving(instances=2, heartbeat_seconds=1.2) as server:
        pid = server.front.instance.members[0].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: server.client.get("/health").status_code == 503)
            assert server.client.get("/health").json()["reason"].startswith("engine 0: the engine")
            assert server.client.get("/ready").status_code == 200
            for seed in range(4):
                text(server, seed, max_tokens=3)
        finally:
            os.kill(pid, signal.SIGCONT)
        until(lambda: server.client.get("/health").status_code == 200)


def test_a_cancelled_request_ends_wherever_it_runs(
    serving: Callable[..., Any], tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    with serving(instances=2, options={"hold": str(hold)}) as server, ThreadPoolExecutor() as pool:
        asks = [pool.submit(server.chat, request_id=f"r{at}") for at in range(4)]
        until(lambda: under_way(server) == [2, 2])
        for at in range(4):
            assert server.client.delete(f"/v1/requests/r{at}").status_code == 200
        assert [ask.result().status_code for ask in asks] == [499] * 4
        assert under_way(server) == [0, 0]


def test_there_are_no_more_engines_than_cores() -> None:
    from suffice.serve.http.models import Models

    with pytest.raises(InputError, match="instances=9999: must be at most"):
        Models([Settings("m", engine=SCRIPTED, instances=9999)])
    with pytest.raises(InputError, match="instances=0: must be a whole number of at least 1"):
        Settings("m", instances=0)


def test_sums() -> None:
    assert summed([{"a": 1, "last_step_at": 5.0}, {"a": 2, "b": 3, "last_step_at": 4.0}]) == {
        "a": 3,
        "b": 3,
        "last_step_at": 5.0,
    }
    first = Look(EngineStats(steps=2), [[1, 2]], [[3, 4]], [[5, 6]], "bound", 0.1, {"tokens": 3})
    other = Look(EngineStats(steps=3), [[1, 1]], [[1, 1]], [[1, 1]], "exact", 0.0, {"tokens": 9})
    found = together([first, other])
    assert (found.stats.steps, found.key_rows, found.value_rows) == (5, [[2, 3]], [[4, 5]])
    assert (found.rows_held, found.guarantee, found.missing) == ([[6, 7]], "bound", 0.1)
    assert found.audit == {"tokens": 9} and together([first]) is first


def test_sums_of_tickets_follow_them() -> None:
    """Whatever comes, begins and goes, in any order: the sums are those of what is there."""
    draw, held = random.Random(0), Tickets()
    for number in range(2000):
        done = draw.random()
        if done < 0.4 or not held:
            name, tokens = str(draw.randrange(40)), draw.randrange(5)
            work = Submit(name, [1] * tokens, {}, draw.randrange(2), key=draw.choice("ab"))
            held[name] = Ticket(work, draw.randrange(1, 4), 0, Mailbox())
        else:
            name = draw.choice(sorted(held))
            if done < 0.7 and held[name].first_at is None:
                held.began(held[name], float(number))
            elif done < 0.85:
                del held[name]
            else:
                assert held.take(name) is not None and held.take(name) is None
        gone = Ticket(Submit("gone", [1], {}), 1, 0, Mailbox())
        held.began(gone, 1.0)
        assert held.samples == sum(each.samples for each in held.values())
        expected: Counter[tuple[int, str]] = Counter()
        for each in held.values():
            if each.first_at is None and each.work.prompt:
                expected[each.work.priority, each.work.key] += len(each.work.prompt)
        assert held.waiting == expected and set(held.waiting) == set(expected)


def queue(*tickets: Ticket) -> Tickets:
    found = Tickets()
    for at, each in enumerate(tickets):
        each.work = msgspec.structs.replace(each.work, id=str(at))
        found[str(at)] = each
    return found


def test_the_load_of_an_engine() -> None:
    waiting = Ticket(Submit("a", [1] * 7, {}), 1, 0, Mailbox())
    runs = Ticket(Submit("b", [1] * 5, {}), 3, 0, Mailbox())
    runs.first_at = 1.0
    assert load_of(queue(waiting, runs), Submit("c", [1], {})) == Load(7, 4)


def test_what_comes_before_a_request() -> None:
    """The engine's order: priority, then the keys in turn, then arrival."""

    def waiting(key: str, tokens: int, priority: int = 0) -> Ticket:
        work = Submit("a", [1] * tokens, {}, key=key, priority=priority)
        return Ticket(work, 1, 0, Mailbox())

    flood = queue(*(waiting("a", 50) for _ in range(20)))
    assert load_of(flood, Submit("x", [1] * 10, {}, key="a")).prompts == 1000
    assert load_of(flood, Submit("x", [1] * 10, {}, key="b")).prompts == 10, "one turn of a's"
    both = queue(*flood.values(), waiting("b", 30), waiting("c", 5))
    assert load_of(both, Submit("x", [1] * 10, {}, key="b")).prompts == 30 + 40 + 5
    assert load_of(both, Submit("x", [1] * 10, {}, key="b", priority=-1)).prompts == 0
    late = queue(waiting("a", 50, priority=3))
    assert load_of(late, Submit("x", [1] * 10, {}, key="a")).prompts == 0


def test_rates_are_known_once_prompts_and_steps_were_timed() -> None:
    assert rates_of({}) is None and rates_of({"token_seconds": 1e-3}) is None
    found = rates_of({"token_seconds": 1e-3, "step_seconds": 0.0, "row_seconds": 2e-3})
    assert found == Rates(1e-3, 0.0, 2e-3)
