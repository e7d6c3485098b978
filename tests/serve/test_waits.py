"""Requests that wait until their model is loaded: early.py, turns.py, loading.py."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import httpx2
import pytest

from serving import events, until
from several import CHAT, Several, ask, content, said, states
from suffice.serve.http import loading


def test_a_stream_is_told_that_its_model_is_loaded(
    several: Several, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "PATIENCE", 0.01)
    late = tmp_path / "late"
    own = {"bb": {"late": str(late)}}
    with several("aa", "bb", own=own, keep_alive_seconds=0.05, max_loaded=1) as server:
        plain = content(events(ask(server, "bb", stream=True))[:-1])
        for path, fault in product((CHAT, "/v1/messages", "/v1/responses"), (False, True)):
            assert said(ask(server, "aa")) == "aa"
            late.write_text("")
            body: dict[str, Any] = {"model": "bb", "stream": True}
            text = 9000 * "hello " if fault else "hello"  # too long for a model that is there
            messages = [{"role": "user", "content": text}]
            own = {"messages": messages, "max_tokens": 8}
            body |= {"input": text} if "responses" in path else own
            with server.client.stream("POST", path, json=body) as answer:
                lines = answer.iter_lines()
                assert answer.status_code == 200
                ident = answer.headers["x-request-id"]
                assert next(lines) == ": bb is being loaded"
                next(lines)
                assert next(lines) == ": bb is being loaded", "again, as often as was asked"
                late.unlink()
                rest = [line for line in lines if line and not line.startswith(":")]
            if path == CHAT:
                assert rest.pop() == "data: [DONE]"
            if fault:
                assert "tokens" in rest[-1] and len(rest) == 1 + (path != CHAT)
            else:
                assert ident in rest[1], "the answer's id is what its client was told"
            if path == CHAT and not fault:
                assert content([json.loads(line[6:]) for line in rest]) == plain


def test_what_is_bad_by_itself_loads_nothing(several: Several) -> None:
    messages = [{"role": "user", "content": "hello"}]
    talk: dict[str, Any] = {"messages": messages, "max_tokens": 8}
    bad: list[tuple[str, dict[str, Any]]] = [
        (CHAT, {**talk, "n": -1}),
        (CHAT, {**talk, "top_p": 7}),
        (CHAT, {**talk, "tool_choice": "required"}),
        (CHAT, {**talk, "top_logprobs": 1}),
        ("/v1/completions", {"prompt": "a", "top_p": 7}),
        ("/v1/completions", {"prompt": []}),
        ("/v1/messages", {**talk, "top_k": "x"}),
        ("/v1/messages", {**talk, "thinking": {"type": "x"}}),
        ("/v1/messages/count_tokens", {"messages": messages, "tool_choice": {"type": "any"}}),
        ("/v1/responses", {"input": "a", "top_p": 7}),
        ("/v1/responses", {"input": [{"type": "message", "role": "user", "content": 5}]}),
        ("/api/chat", {"messages": messages, "options": {"top_p": 7}}),
        ("/api/generate", {"keep_alive": "5x"}),
        ("/api/embed", {"input": "a", "options": {"heat": 1}}),
        ("/completion", {"prompt": "a", "repeat_penalty": 2, "repeat_last_n": 64}),
        ("/infill", {"input_prefix": 5}),
        ("/v1/rerank", {"query": "", "documents": ["a"]}),
        ("/v1/embeddings", {"input": "a", "dimensions": 0}),
    ]
    with several("aa", "bb") as server:
        for path, body in bad:
            for stream in ({}, {"stream": True}) if "messages" in body else ({},):
                if "count" not in path:
                    body = body | stream
                answer = server.post(path, {"model": "bb", **body})
                assert answer.status_code == 400, (path, body, answer.text)
                assert set(states(server).values()) == {"unloaded"}, (path, body)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_waits_is_ended_by_its_id(
    several: Several, tmp_path: Path, stream: bool
) -> None:
    late = tmp_path / "late"
    late.write_text("")
    keys = {key: {"authorization": f"Bearer {key}"} for key in ("one", "two")}
    with (
        several("aa", "bb", own={"bb": {"late": str(late)}}, api_keys=tuple(keys)) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        messages = [{"role": "user", "content": "a"}]
        body: dict[str, Any] = {"model": "bb", "messages": messages, "stream": stream}
        body |= {"request_id": "mine"}
        answer = pool.submit(server.post, CHAT, body, headers=keys["one"])
        until(lambda: server.models.served[1].waiting)
        for key, status in (("two", 404), ("one", 200), ("one", 404)):
            gone = server.client.delete("/v1/requests/mine", headers=keys[key])
            assert gone.status_code == status
        found = answer.result(30)
        assert found.status_code == 499 and found.json()["error"]["code"] == "cancelled"


def test_a_client_that_left_needs_no_model(several: Several, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.write_text("")
    own = {"aa": {"hold": str(hold), "hold_after": 2}}
    with several("aa", "bb", own=own, max_loaded=1) as server, ThreadPoolExecutor(2) as pool:
        held = pool.submit(ask, server, "aa")
        until(lambda: server.front.jobs)
        for stream in (False, True):
            messages = [{"role": "user", "content": "hello"}]
            with pytest.raises(httpx2.ReadTimeout):
                body = {"model": "bb", "messages": messages, "stream": stream}
                server.post(CHAT, body, timeout=0.2)
            until(lambda: not server.models.served[1].waiting)
            until(lambda: states(server) == {"aa": "loaded", "bb": "unloaded"})
        late = pool.submit(ask, server, "aa")
        until(lambda: len(server.front.jobs) == 2)
        hold.unlink()
        assert said(held.result(30)) == said(late.result(30)) == "aa"
        assert states(server) == {"aa": "loaded", "bb": "unloaded"}


def test_what_has_no_streams_waits_for_its_status(
    several: Several, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "PATIENCE", 0.01)
    late = tmp_path / "late"
    late.write_text("")
    with several("aa", "bb", own={"bb": {"late": str(late)}}) as server:
        with ThreadPoolExecutor(1) as pool:
            body = {"model": "bb", "input": 9000 * "hello "}
            answer = pool.submit(server.post, "/v1/embeddings", body)
            until(lambda: server.models.served[1].waiting)
            late.unlink()
        assert answer.result(30).status_code == 400


def test_a_short_load_keeps_the_status_of_a_stream(several: Several) -> None:
    with several("aa", "bb") as server:
        assert ask(server, "bb", stream=True, text=9000 * "hello ").status_code == 400
        assert events(ask(server, "bb", stream=True))[-1] == "[DONE]"


def test_waits_have_an_end(several: Several, tmp_path: Path) -> None:
    late = tmp_path / "late"
    late.write_text("")
    own = {"bb": {"late": str(late)}}
    with several("aa", "bb", own=own, request_seconds=0.3, max_queue=1) as server:
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(ask, server, "bb")
            until(lambda: server.models.served[1].waiting)
            full = ask(server, "bb")
            assert full.status_code == 503 and full.json()["error"]["code"] == "queue_full"
            assert first.result(30).json()["error"]["code"] == "deadline"
        until(lambda: not server.models.served[1].waiting)
        late.unlink()
        until(lambda: states(server)["bb"] == "loaded")
        assert server.models.served[1].idle, "nobody uses it"


def test_a_server_that_stops_refuses_those_that_wait(several: Several, tmp_path: Path) -> None:
    late = tmp_path / "late"
    late.write_text("")
    with several("aa", "bb", own={"bb": {"late": str(late)}}) as server:
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(ask, server, "bb")
            until(lambda: server.models.served[1].waiting)
            server.run(lambda: server.models._run(server.models.drain()))
            answer = waits.result(30)
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "draining"
        assert ask(server, "aa").json()["error"]["code"] == "draining"
