"""Several models at one address: models.py, served.py, loading.py, cards.py."""

from __future__ import annotations

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from serving import Served, events, killing, until
from several import CHAT, Several, ask, content, said, states
from suffice.serve.http import models as models_module


def pid(server: Served, at: int) -> int | None:
    found: int | None = server.models.served[at].front.instance.members[0].pid
    return found


def test_models_are_loaded_when_asked_for_and_leave_for_others(several: Several) -> None:
    with several("aa", "bb", "cc", max_loaded=1) as server:
        assert states(server) == {"aa": "unloaded", "bb": "unloaded", "cc": "unloaded"}
        for name in ("bb", "aa", "aa", "cc"):
            answer = ask(server, name)
            assert said(answer) == name and answer.json()["model"] == name
            others = dict.fromkeys(("aa", "bb", "cc"), "unloaded")
            assert states(server) == {**others, name: "loaded"}
        assert said(ask(server, None)) == "aa", "a request that names no model gets the first"


def test_as_many_are_loaded_as_fit(several: Several, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    with several("aa", "bb", "cc") as server:

        def room_for(size: int) -> bool:
            sizes.append(size)
            return sum(each.state == "loaded" for each in server.models.served) < 2

        monkeypatch.setattr(models_module, "room_for", room_for)
        for name in ("aa", "bb", "aa"):
            assert said(ask(server, name)) == name
        assert states(server) == {"aa": "loaded", "bb": "loaded", "cc": "unloaded"}
        assert said(ask(server, "cc")) == "cc"
        assert states(server) == {"aa": "loaded", "bb": "unloaded", "cc": "loaded"}
        assert min(sizes) > 0, "the bytes of the model's files"


def test_an_unknown_model_is_named(several: Several) -> None:
    with several("first", "second") as server:
        answer = ask(server, "secnd")
        assert answer.status_code == 404
        message = answer.json()["error"]["message"]
        assert "Did you mean 'second'?" in message and "Served: first, second" in message
        assert ask(server, "x").status_code == 404
        assert set(states(server).values()) == {"unloaded"}, "nothing was loaded for it"
        assert server.post(CHAT, {"model": 5}).status_code == 400
        body = server.client.post(CHAT, content=b"{", headers={"content-type": "application/json"})
        assert body.json()["error"]["code"] == "invalid_json"
    with several("first", "second", any_model=True) as server:
        assert said(ask(server, "gpt-4o")) == "first"
        assert said(ask(server, "second")) == "second"


def test_an_idle_model_is_unloaded(several: Several) -> None:
    with several("aa", "bb", keep_alive=0.2) as server:
        assert said(ask(server, "aa")) == "aa"
        engine = pid(server, 0)
        assert engine is not None
        until(lambda: states(server)["aa"] == "unloaded")
        assert not Path(f"/proc/{engine}").exists()
        assert said(ask(server, "aa")) == "aa"


def test_the_only_model_may_come_and_go(several: Several) -> None:
    with several("aa", keep_alive=0.1) as server:
        assert states(server) == {"aa": "unloaded"}
        assert said(ask(server, None)) == "aa"
        until(lambda: states(server) == {"aa": "unloaded"})
        assert server.client.get("/ready").status_code == 200
        assert ask(server, "other").status_code == 404


def test_a_model_that_leaves_ends_its_requests_first(several: Several, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.write_text("")
    own = {"aa": {"hold": str(hold), "hold_after": 2}}
    with several("aa", "bb", own=own, max_loaded=1) as server, ThreadPoolExecutor(3) as pool:
        held = pool.submit(ask, server, "aa")
        until(lambda: server.front.jobs)
        other = pool.submit(ask, server, "bb")
        until(lambda: server.models.served[0].state == "leaving")
        late = pool.submit(ask, server, "aa")
        until(lambda: server.models.served[0].waiting)
        assert not other.done(), "the place is not free yet"
        hold.unlink()
        assert said(held.result(30)) == "aa"
        assert said(other.result(30)) == "bb"
        assert said(late.result(30)) == "aa"


def test_a_load_that_fails_is_told_and_tried_again(several: Several, tmp_path: Path) -> None:
    own = {"bb": {"fail": "no such weights"}}
    with several("aa", "bb", own=own) as server:
        for _ in range(2):
            answer = ask(server, "bb")
            assert answer.status_code == 500
            error = answer.json()["error"]
            assert error["code"] == "load_failed" and "no such weights" in error["message"]
        (card,) = [each for each in server.client.get("/v1/models").json()["data"]
                   if each["id"] == "bb"]  # fmt: skip
        assert card["status"]["value"] == "unloaded" and card["status"]["failed"]
        assert "no such weights" in card["status"]["error"]
        assert said(ask(server, "aa")) == "aa"


def test_an_engine_that_dies_while_it_loads_is_started_again(
    several: Several, tmp_path: Path
) -> None:
    late = tmp_path / "late"
    late.write_text("")
    with (
        several("aa", "bb", own={"bb": {"late": str(late)}}) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        answer = pool.submit(ask, server, "bb")
        member = server.models.served[1].front.instance.members[0]
        killed: list[Any] = []

        def loads() -> Any:
            life = member._current
            return None if life is None or life in killed or not life.loads else life

        while len(killed) < 4:
            killed.append(until(loads))
            os.kill(killed[-1].process.pid, signal.SIGKILL)
        late.unlink()
        assert said(answer.result(30)) == "bb"


def test_an_engine_that_never_gets_ready_is_given_up(several: Several, tmp_path: Path) -> None:
    dies = tmp_path / "dies"
    dies.write_text("")
    with several("aa", "bb", own={"bb": {"dies": str(dies)}}) as server:
        answer = ask(server, "bb")
        error = answer.json()["error"]
        assert answer.status_code == 500 and error["code"] == "engine_lost"
        assert error["message"] == "the engine of bb died at each of 10 starts"
        dies.unlink()
        assert said(ask(server, "bb")) == "bb"


def test_loads_and_unloads_are_asked_for_by_llama_cpps_paths(several: Several) -> None:
    with several("aa", "bb") as server:
        for path in ("/models/load", "/v1/models/load"):
            assert server.post(path, {"model": "bb"}).json() == {"success": True}
            until(lambda: states(server)["bb"] == "loaded")
        assert server.post("/models/unload", {"model": "bb"}).json() == {"success": True}
        until(lambda: states(server)["bb"] == "unloaded")
        assert server.post("/models/load", {"model": "cc"}).status_code == 404
        assert server.post("/models/load", {}).status_code == 400
    with several("aa") as server:
        answer = server.post("/models/unload", {"model": "aa"})
        assert answer.status_code == 400 and "only model" in answer.json()["error"]["message"]
        assert server.post("/models/load", {"model": "aa"}).json() == {"success": True}
        assert server.post("/models/load", {"model": "b"}).status_code == 404


def test_ollamas_api_knows_what_is_loaded(several: Several) -> None:
    def ps() -> dict[str, str]:
        found = server.client.get("/api/ps").json()["models"]
        return {each["name"]: each["expires_at"] for each in found}

    with several("aa", "bb") as server:
        tags = server.client.get("/api/tags").json()["models"]
        assert [each["name"] for each in tags] == ["aa", "bb"] and ps() == {}
        shown = server.post("/api/show", {"model": "bb:latest"}).json()
        assert "completion" in shown["capabilities"] and ps() == {}, "it is not loaded for that"
        body = {"model": "bb:latest", "messages": [{"role": "user", "content": "hello"}]}
        body |= {"stream": False, "options": {"num_predict": 4}}
        answer = server.post("/api/chat", body).json()
        assert answer["message"]["content"].startswith("bb") and ps()["bb"].startswith("9999")
        server.post("/api/chat", {**body, "keep_alive": "1h30m"})
        assert not ps()["bb"].startswith("9999")
        assert server.post("/api/generate", {"model": "bb", "keep_alive": "5x"}).status_code == 400
        loaded = server.post("/api/generate", {"model": "aa", "keep_alive": -1}).json()
        assert loaded["done_reason"] == "load" and ps()["aa"].startswith("9999")
        left = server.post("/api/generate", {"model": "bb", "keep_alive": 0}).json()
        assert left["done_reason"] == "unload"
        until(lambda: set(ps()) == {"aa"})
        left = server.post("/api/generate", {"model": "bb", "keep_alive": 0}).json()
        assert left["done_reason"] == "unload" and set(ps()) == {"aa"}, "none is loaded for that"
        assert said(ask(server, "bb")) == "bb" and ps()["bb"].startswith("9999")
        server.models.served[1].front.keep_seconds = 0.0  # of a request whose model is still there
        assert server.post("/api/generate", {"model": "bb"}).json()["done_reason"] == "load"
        assert ps()["bb"].startswith("9999")


def test_what_needs_no_engine_loads_none(several: Several) -> None:
    with several("aa", "bb") as server:
        props = server.client.get("/props", params={"model": "bb"}).json()
        assert (
            props["model_alias"] == "bb" and props["default_generation_settings"]["n_ctx"] is None
        )
        assert server.post("/api/show", {"name": "bb"}).status_code == 200
        for path in (CHAT, "/models/load"):
            answer = server.post(path, {"model": "bb:latest", "messages": []})
            assert answer.status_code in (400, 404), "Ollama's paths alone know such names"
        assert set(states(server).values()) == {"unloaded"}
        forever = server.post("/api/generate", {"model": "bb", "keep_alive": "87600000h"})
        assert forever.status_code == 200
        (loaded,) = server.client.get("/api/ps").json()["models"]
        assert loaded["expires_at"].startswith("9999")
        body = {"model": "bb", "messages": [{"role": "user", "content": "hello"}]}
        assert server.post("/apply-template", body).status_code == 200
    with several("aa", keep_alive=60) as server:
        assert ask(server, "other").status_code == 404 and states(server) == {"aa": "unloaded"}


def test_lists_have_each_model_once(several: Several, tmp_path: Path) -> None:
    (tmp_path / "org").mkdir()
    with several(str(tmp_path / "org/aa"), "bb") as server:
        assert states(server) == {"aa": "unloaded", "bb": "unloaded"}
        tags = server.client.get("/api/tags").json()["models"]
        assert [each["name"] for each in tags] == ["aa", "bb"]
        assert all(each["modified_at"] > "2000" and each["size"] for each in tags)
        for name in ("aa", str(tmp_path / "org/aa")):
            answer = ask(server, name).json()
            assert answer["model"] == name


def test_ollama_is_told_how_long_a_load_took(several: Several) -> None:
    with several("aa", "bb") as server:
        body = {"model": "aa", "messages": [{"role": "user", "content": "a"}], "stream": False}
        first, second = (server.post("/api/chat", body).json() for _ in range(2))
        assert first["load_duration"] > 0 == second["load_duration"]
        assert first["total_duration"] >= first["load_duration"] + first["eval_duration"]


def test_each_model_has_its_numbers(several: Several) -> None:
    with several("aa", "bb") as server:
        ask(server, "aa"), ask(server, "bb"), ask(server, "bb")
        page = server.client.get("/metrics").text
        for name, count in (("aa", 8), ("bb", 16)):
            tokens = f'suffice:generation_tokens_total{{engine="0",model_name="{name}"}}'
            (line,) = [each for each in page.splitlines() if each.startswith(tokens)]
            assert float(line.split()[-1]) == count
        types = [each for each in page.splitlines() if each.startswith("# TYPE")]
        assert len(types) == len(set(types)), "each name once"
        about = server.client.get("/page/server", params={"model": "bb"}).json()
        assert about["model"] == "bb" and about["max_model_len"] == 512
        assert server.client.get("/props", params={"model": "bb"}).json()["model_alias"] == "bb"
        assert server.client.get("/page/server", params={"model": "x"}).status_code == 404


def test_a_model_whose_engine_cannot_be_kept_alive_leaves_alone(
    several: Several, tmp_path: Path
) -> None:
    dies = tmp_path / "dies"
    with several("aa", "bb", own={"bb": {"dies": str(dies)}}) as server:
        assert said(ask(server, "aa")) == "aa" and said(ask(server, "bb")) == "bb"
        dies.write_text("")
        os.kill(pid(server, 1) or 0, signal.SIGKILL)
        until(lambda: states(server)["bb"] == "unloaded")
        assert said(ask(server, "aa")) == "aa"
        dies.unlink()
        assert said(ask(server, "bb")) == "bb", "it is loaded again when it is asked for"


@pytest.mark.parametrize("kills", [False, True])
def test_no_request_is_lost_or_wrong(
    several: Several, kills: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A kill may hit each start of a load; here none is given up for it.
    monkeypatch.setattr(models_module, "MOST_STARTS", 1000)
    with several("aa", "bb", max_loaded=1) as server:
        fields = [{"stream": at % 3 == 0, "seed": at} for at in range(200)]
        chance = random.Random(1)
        names = [chance.choice(("aa", "bb")) for _ in fields]

        def one(at: int) -> str:
            time.sleep(0.01 * chance.random())
            answer = ask(server, names[at], **fields[at])
            assert answer.status_code == 200, answer.text
            if not fields[at]["stream"]:
                return str(answer.json()["choices"][0]["message"]["content"])
            return content(events(answer)[:-1])

        with ThreadPoolExecutor(6) as pool, killing(server, 0.3 if kills else 1e9) as killed:
            found = list(pool.map(one, range(len(fields))))
        assert found == [(60 * f"{name} ")[:80] for name in names]
        assert len(killed) > 3 or not kills
