"""Engines that share weights and are replaced: life.py, and that of instances.py and fleet.py."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
import uvicorn
from test_fleet import generated, text, under_way

from serving import Served, real, until
from suffice import native
from suffice.decoder import shelf
from suffice.errors import InputError
from suffice.serve import run
from suffice.serve.processes import instances, life
from suffice.serve.processes.life import sharing
from suffice.serve.processes.local_fleet import LocalFleet

two_cores = pytest.mark.skipif(native.cores() < 2, reason="two engines need two cores")
sharing_only = pytest.mark.skipif(not shelf.can_share(), reason="memory is shared on Linux")


def fleet(server: Served) -> LocalFleet:
    return server.front.instance


def pids(server: Served) -> list[int | None]:
    return [member.pid for member in fleet(server).members]


def renew(server: Served) -> None:
    server.run(fleet(server).renew)


def renewed(server: Served) -> bool:
    task = fleet(server)._renewing
    return task is not None and task.done()


def kill(server: Served, at: int) -> None:
    pid = pids(server)[at]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


@sharing_only
@two_cores
def test_one_engine_packs_and_others_attach(serving: Callable[..., Any], tmp_path: Path) -> None:
    log = tmp_path / "packed"
    with serving(instances=2, options={"packed": str(log)}) as server:
        before = pids(server)
        for at in (0, 1):
            kill(server, at)
            until(lambda at=at: pids(server)[at] not in (None, before[at]))
        assert text(server, 1)
        assert len(log.read_text().splitlines()) == 1, "also those that were started again"
    with serving(instances=2, options={"packed": str(log)}, share_weights=False) as server:
        assert len(log.read_text().splitlines()) == 3, "each for itself"


@sharing_only
@two_cores
def test_who_dies_while_it_packs_is_followed_by_another(
    serving: Callable[..., Any], tmp_path: Path
) -> None:
    """The second engine waits for its turn, and packs."""
    log, dies = tmp_path / "packed", tmp_path / "dies"
    with serving(instances=2, options={"packed": str(log), "dies": str(dies)}) as server:
        for member in fleet(server).members:
            member.weights = server.run(life.Weights)
        dies.touch()
        for at in (0, 1):
            kill(server, at)
        until(lambda: fleet(server).restarts >= 4)
        assert not fleet(server).members[0].weights.packed  # type: ignore[union-attr]
        dies.unlink()
        until(lambda: None not in pids(server))
        assert text(server, 3)


def test_who_shares_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "can_share", lambda: True)
    monkeypatch.setattr(shelf, "has_huge_pages", lambda: False)
    assert not sharing(None, 1), "one engine would read small pages"
    assert sharing(None, 2) and sharing(True, 1) and not sharing(False, 2)
    monkeypatch.setattr(shelf, "has_huge_pages", lambda: True)
    assert sharing(None, 1)
    monkeypatch.setattr(shelf, "can_share", lambda: False)
    assert not sharing(None, 2)
    with pytest.raises(InputError, match="--share-weights: this system has no memory to share"):
        sharing(True, 2)


@two_cores
def test_requests_outlive_the_replacement_of_all_engines(
    serving: Callable[..., Any], tmp_path: Path
) -> None:
    log, hold = tmp_path / "packed", tmp_path / "hold"
    options = {"packed": str(log), "hold": str(hold)}
    with serving(instances=2, options=options) as server, ThreadPoolExecutor() as pool:
        alone = [*pool.map(lambda seed: text(server, seed), range(6))]
        before = pids(server)
        hold.write_text("20")
        asks = [pool.submit(text, server, seed) for seed in range(6)]
        until(lambda: under_way(server) == [3, 3] and min(generated(server)) > 2)
        renew(server)
        until(lambda: renewed(server))
        assert set(pids(server)).isdisjoint(before) and None not in pids(server)
        assert sum(under_way(server)) == 6
        hold.unlink()
        assert [ask.result() for ask in asks] == alone
        assert (fleet(server).restarts, fleet(server).failovers) == (0, 0), "none died"
        assert len(log.read_text().splitlines()) == 1, "new engines attached"
        for pid in before:
            with pytest.raises(ProcessLookupError):
                os.kill(pid or 0, 0)


def test_one_engine_is_replaced_by_one_beside_it(
    serving: Callable[..., Any], tmp_path: Path
) -> None:
    late, hold = tmp_path / "late", tmp_path / "hold"
    options = {"late": str(late), "hold": str(hold)}
    with serving(options=options) as server, ThreadPoolExecutor() as pool:
        alone = text(server, 4)
        hold.write_text("20")
        ask = pool.submit(text, server, 4)
        until(lambda: sum(generated(server)) == 20)
        late.touch()
        (before,) = pids(server)
        renew(server)
        until(lambda: fleet(server).members[0]._heir is not None)
        hold.write_text("40")
        until(lambda: sum(generated(server)) == 40)
        assert pids(server) == [before], "it works while the new one loads"
        total = fleet(server).members[0]
        until(lambda: total.stats.get("generated_tokens", 0) == 190)
        late.unlink()
        until(lambda: renewed(server))
        hold.unlink()
        assert ask.result() == alone and pids(server) not in ([before], [None])
        until(lambda: total.stats.get("generated_tokens", 0) > 0)
        assert total.past["generated_tokens"] == 190, "counts go on"


def test_a_second_wish_is_granted_once_after_the_first(
    serving: Callable[..., Any], tmp_path: Path
) -> None:
    late = tmp_path / "late"
    with serving(options={"late": str(late)}) as server:
        begun = 0
        launched = instances.launched

        async def counted(*given: Any, **more: Any) -> Any:
            nonlocal begun
            begun += 1
            return await launched(*given, **more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(instances, "launched", counted)
            late.touch()
            for _ in range(4):
                renew(server)
            late.unlink()
            until(lambda: renewed(server))
        assert begun == 2
        assert text(server, 1)


@pytest.mark.parametrize("why", ["dies", "prints"])
def test_an_engine_that_cannot_go_on_replaces_nobody(
    serving: Callable[..., Any], tmp_path: Path, why: str
) -> None:
    """It dies as it starts, or has another model."""
    file, hold = tmp_path / why, tmp_path / "hold"
    if why == "prints":
        file.write_text("fp_one")
    options = {"hold": str(hold), why: str(file)}
    with serving(options=options) as server, ThreadPoolExecutor() as pool:
        alone = text(server, 4)
        hold.write_text("20")
        ask = pool.submit(text, server, 4)
        until(lambda: sum(generated(server)) > 2)
        before = pids(server)
        file.write_text("fp_other")
        renew(server)
        until(lambda: renewed(server))
        assert pids(server) == before
        hold.unlink()
        assert ask.result() == alone
        assert fleet(server).restarts == 0


@pytest.mark.parametrize("seen", ["at once", "once the next is ready"])
def test_an_engine_that_dies_while_the_next_loads_is_replaced_by_that(
    serving: Callable[..., Any], tmp_path: Path, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may get ready before the end of the old one's process has been seen."""
    late, hold, end = tmp_path / "late", tmp_path / "hold", life.Life.end

    async def slowly(ended: life.Life) -> None:
        heir = fleet(server).members[0]._heir
        if heir is not None and seen != "at once":
            await heir.welcomed
        await end(ended)

    monkeypatch.setattr(life.Life, "end", slowly)
    options = {"late": str(late), "hold": str(hold)}
    with serving(options=options) as server, ThreadPoolExecutor() as pool:
        alone = text(server, 4)
        hold.write_text("20")
        ask = pool.submit(text, server, 4)
        until(lambda: sum(generated(server)) > 2)
        late.touch()
        renew(server)
        member = fleet(server).members[0]
        until(lambda: member._heir is not None)
        heir = member._heir
        kill(server, 0)
        until(lambda: not member.ready)
        late.unlink()
        hold.unlink()
        assert ask.result() == alone and member.restarts == 1
        assert heir is not None and pids(server) == [heir.process.pid]


def test_without_memory_for_two_the_old_one_ends_first(
    serving: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instances, "room_for", lambda weights: False)
    hold = tmp_path / "hold"
    with (
        serving(options={"hold": str(hold)}, share_weights=False) as server,
        ThreadPoolExecutor() as pool,
    ):
        alone = text(server, 4)
        hold.write_text("20")
        ask = pool.submit(text, server, 4)
        until(lambda: sum(generated(server)) > 2)
        before = pids(server)
        renew(server)
        until(lambda: renewed(server))
        assert pids(server) != before
        hold.unlink()
        assert ask.result() == alone and fleet(server).restarts == 0


def tokens(server: Served, **fields: Any) -> list[int]:
    body = {"prompt": "hello there", "max_tokens": 24, "return_token_ids": True, "temperature": 0}
    answer = server.post("/v1/completions", body | fields)
    assert answer.status_code == 200, answer.text
    found: list[int] = answer.json()["choices"][0]["token_ids"]
    return found


@pytest.fixture
def model(words: Path, tmp_path: Path) -> Iterator[Path]:
    yield Path(shutil.copytree(words, tmp_path / "model"))


@sharing_only
@two_cores
def test_a_real_model_is_shared_and_kept_when_its_files_change(
    model: Path, engine_path: None, logged: list[str]
) -> None:
    (weights,) = model.glob("*.safetensors")
    with real(model, instances=2) as server:
        found, before = tokens(server), pids(server)
        memory = fleet(server).members[0].weights
        assert memory is not None and memory is fleet(server).members[1].weights
        renew(server)
        until(lambda: renewed(server))
        assert tokens(server) == found and set(pids(server)).isdisjoint(before)
        assert fleet(server).members[0].weights is memory, "the files have not changed"
        os.utime(weights, ns=(1, 1))
        renew(server)
        until(lambda: renewed(server))
        fresh = fleet(server).members[0].weights
        assert fresh is not memory and fresh is fleet(server).members[1].weights
        assert tokens(server) == found, "the same model, from the files"
        with weights.open("r+b") as file:
            file.seek(-400, os.SEEK_END)
            file.write(bytes(400))
        before = pids(server)
        renew(server)
        until(lambda: renewed(server))
        assert any("not the model that is served any more" in each for each in logged)
        assert set(pids(server)).isdisjoint(before)
        assert fleet(server).members[0].weights is fresh and tokens(server) == found
        for file in model.iterdir():
            file.unlink()
        kill(server, 0)
        until(lambda: fleet(server).restarts == 1 and None not in pids(server))
        assert [tokens(server) for _ in range(4)] == [found] * 4, "no file is needed"


@pytest.mark.parametrize("left", [True, False])
def test_a_terminal_that_hangs_up_stops_its_server(
    monkeypatch: pytest.MonkeyPatch, left: bool
) -> None:
    told: list[str] = []

    async def drain() -> None:
        told.append("drain")

    def start() -> None:
        told.append("renew")

    models = SimpleNamespace(draining=False, drain=drain, renew=start)
    monkeypatch.setattr(run, "has_terminal", lambda: True)

    async def hang_up() -> run.Server:
        server = run.Server(uvicorn.Config("x"), models)  # type: ignore[arg-type]
        monkeypatch.setattr(run, "has_terminal", lambda: left)
        server.renew()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return server

    server = asyncio.run(hang_up())
    assert told == (["renew"] if left else ["drain"])
    assert server.should_exit is not left and models.draining is not left


@sharing_only
def test_a_signal_replaces_the_engine_of_a_server(model: Path, tmp_path: Path) -> None:
    with signalled(model, tmp_path) as (process, client):
        ask = {"prompt": "hello there", "max_tokens": 16, "temperature": 0}
        first = client.post("/v1/completions", json=ask).json()["choices"]
        (before,) = children(process.pid)
        process.send_signal(signal.SIGHUP)
        until(lambda: children(process.pid) not in ([before], []) and before not in
              children(process.pid))  # fmt: skip
        assert client.post("/v1/completions", json=ask).json()["choices"] == first
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@sharing_only
def test_a_signal_to_a_server_that_loads_does_not_end_it(model: Path, tmp_path: Path) -> None:
    with signalled(model, tmp_path, while_loading=signal.SIGHUP) as (process, client):
        ask = {"prompt": "hello there", "max_tokens": 4}
        assert client.post("/v1/completions", json=ask).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    threads = Path(f"/proc/{pid}/task").iterdir()
    all_ = [each for thread in threads for each in (thread / "children").read_text().split()]
    return sorted({*map(int, found), *map(int, all_)})


@contextlib.contextmanager
def signalled(
    model: Path, folder: Path, while_loading: int = 0
) -> Iterator[tuple[Any, httpx2.Client]]:
    """A server of the command line on a socket, in a session of its own: without a terminal."""
    uds = folder / "uds"
    # Tests that run under `nohup` hand down that the signal is ignored, and the server heeds it.
    listens = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)"
    command = [
        *(sys.executable, "-c", f"{listens}; from suffice.cli import main; main()"),
        *("serve", "-m", str(model), "--uds", str(uds), "--threads-per-instance", "1"),
    ]
    env = {**os.environ, "SUFFICE_CACHE": str(folder)}
    with subprocess.Popen(command, env=env, start_new_session=True) as process:
        try:
            until(lambda: uds.exists(), 60)
            process.send_signal(while_loading)
            transport = httpx2.HTTPTransport(uds=str(uds))
            with httpx2.Client(transport=transport, base_url="http://x", timeout=60) as client:
                until(lambda: ready(client), 60)
                yield process, client
        finally:
            process.kill()


def ready(client: httpx2.Client) -> bool:
    try:
        return bool(client.get("/ready").status_code == 200)
    except httpx2.TransportError:
        return False
