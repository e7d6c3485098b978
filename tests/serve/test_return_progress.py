"""How far prompts are, in streams that ask for it: answer.py, pending.py, instances.py."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from test_faults import CHAT, HELLO, kill

from scripted_engine import FATAL
from serving import Served, events, served
from suffice.cli.options import ModelFlags
from suffice.cli.serve import engine_options
from suffice.engine.options import EngineOptions
from suffice.engine.work import Delta, Progress
from suffice.serve.processes import instances, wire
from suffice.serve.processes.pending import Mailbox, Ticket, merged
from suffice.serve.settings import ENGINE

Serving = Callable[..., AbstractContextManager[Served]]
PROMPT = list(range(1, 41))
TELLS = {"prompt": PROMPT, "stream": True, "max_tokens": 3, "seed": 1}


def progress_of(found: list[Any]) -> list[dict[str, int]]:
    """Return what a stream's chunks say of the prompt; all of it comes before the first token."""
    told = [at for at, each in enumerate(found) if "prompt_progress" in each]
    texts = [at for at, each in enumerate(found) if "prompt_progress" not in each and said(each)]
    assert not told or max(told) < min(texts)
    assert not any(said(found[at]) for at in told), "they have no text"
    return [found[at]["prompt_progress"] for at in told]


def streamed(
    server: Served, path: str, ask: Any, *, first: Callable[[], None] | None = None, most: int = 999
) -> list[Any]:
    """Return the first chunks of a stream; call `first` after the first of them."""
    found: list[Any] = []
    with server.client.stream("POST", path, json=ask) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {") and len(found) < most:
                found.append(json.loads(line.removeprefix("data: ")))
                if first is not None and len(found) == 1:
                    first()
            elif len(found) >= most:
                break
    return found


def said(chunk: Any) -> str:
    if chunk == "[DONE]":
        return ""
    parts = [each.get("delta", {}).get("content") or each.get("text") for each in chunk["choices"]]
    return "".join(part or "" for part in parts)


def test_chunks_say_how_far_the_prompt_is(serving: Serving) -> None:
    with serving(options={"reads": 8}) as server:
        plain = events(server.post("/v1/completions", TELLS))
        told = events(server.post("/v1/completions", {**TELLS, "return_progress": True}))
    found = progress_of(told)
    assert found[-1] == {"total": 40, "cache": 20, "processed": 40, "time_ms": 40}
    assert {each["total"] for each in found} == {40}
    done = [each["processed"] for each in found]
    assert set(done) <= {28, 36, 40} and done == sorted(done), "a slow reader gets the last alone"
    assert progress_of(plain) == []
    shape = {"text": "", "index": 0, "logprobs": None, "finish_reason": None}
    assert next(each for each in told if "prompt_progress" in each)["choices"] == [shape]
    rest = [each for each in told if "prompt_progress" not in each]
    assert "".join(map(said, rest)) == "".join(map(said, plain))


@pytest.mark.parametrize("more", [{}, {"n": 2}, {"n": 2, "temperature": 0}, {"logprobs": True}])
def test_a_chat_begins_before_its_prompt_is_read(serving: Serving, more: Any) -> None:
    ask = {"stream": True, "max_tokens": 2, "return_progress": True, "return_token_ids": True}
    with serving(options={"reads": 8}) as server:
        found = events(server.chat(**ask, **more))
    assert found[0]["choices"][0]["delta"]["role"] == "assistant"
    told = progress_of(found)
    assert told[-1]["processed"] == told[-1]["total"]
    chunks = [each for each in found if "prompt_progress" in each]
    for each in chunks:
        (choice,) = each["choices"]
        assert (choice["index"], choice["delta"], "token_ids" in choice) == (0, {}, False)


def test_each_prompt_of_a_request_is_told_of(serving: Serving) -> None:
    ask = {**TELLS, "prompt": [PROMPT, PROMPT[:20]], "n": 2, "return_progress": True}
    with serving(options={"reads": 100}) as server:
        found = events(server.post("/v1/completions", ask))
    told = [each for each in found if "prompt_progress" in each]
    totals = {each["choices"][0]["index"]: each["prompt_progress"]["total"] for each in told}
    assert totals == {0: 40, 2: 20}


@pytest.mark.parametrize("tokens", [0, 2])
def test_an_echo_waits_for_its_scores(serving: Serving, tokens: int) -> None:
    ask = {**TELLS, "echo": True, "logprobs": 1, "max_tokens": tokens, "n": 2}
    with serving(options={"reads": 8, "step_seconds": 0.03}) as server:
        plain = events(server.post("/v1/completions", ask))
        found = events(server.post("/v1/completions", {**ask, "return_progress": True}))
    assert any("prompt_progress" in each for each in found)
    rest = [each for each in found if "prompt_progress" not in each]
    assert choices(rest) == choices(plain)


def choices(chunks: list[Any]) -> list[Any]:
    """Return what each choice says, with its log probabilities, however it was cut."""
    texts, numbers = ["", ""], list[list[Any]]([[], []])
    for each in chunks[:-1]:
        for choice in each["choices"]:
            texts[choice["index"]] += choice["text"]
            numbers[choice["index"]] += (choice["logprobs"] or {}).get("token_logprobs") or []
    return [texts, numbers]


def test_other_endpoints_and_whole_answers_take_the_field_and_tell_nothing(
    serving: Serving,
) -> None:
    messages = {"max_tokens": 3, "messages": HELLO}
    with serving(options={"reads": 8}) as server:
        whole = server.chat(max_tokens=3, return_progress=True)
        assert whole.status_code == 200 and "prompt_progress" not in whole.text
        for path, body in (("/v1/messages", messages), ("/v1/responses", {"input": "a"})):
            for stream in (False, True):
                ask = {**body, "return_progress": True, "stream": stream}
                answer = server.post(path, ask)
                assert answer.status_code == 200, answer.text
                assert "processed" not in answer.text


def test_a_prompt_goes_on_in_another_engine(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instances, "FIRST_PAUSE", 0.01)
    ask = {**TELLS, "return_progress": True}
    with serving(options={"reads": 8, "step_seconds": 0.3}) as server:
        plain = events(server.post("/v1/completions", TELLS))
        found = streamed(server, "/v1/completions", ask, first=lambda: kill(server))
    done = [each["processed"] for each in progress_of(found)]
    assert done[0] == 28 and done[-1] == 40 and done.count(28) == 2, "it was begun again"
    assert "".join(map(said, found)) == "".join(map(said, plain))


def test_progress_does_not_save_a_request_that_kills_engines(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instances, "FIRST_PAUSE", 0.01)
    ask = {"messages": HELLO, "stream": True, "seed": FATAL, "return_progress": True}
    with serving(options={"reads": 4, "step_seconds": 0.02}) as server:
        found = streamed(server, CHAT, ask, most=50)
    assert found[-1]["error"]["code"] == "engine_lost", found
    assert any("prompt_progress" in each for each in found)


def test_progress_is_no_token() -> None:
    now = Progress(3, 9, 1, 0.5)
    first = Delta("a", 0, "", (), progress=Progress(2, 9, 1, 0.4))
    told = Delta("a", 0, "", (), progress=now)
    token = Delta("a", 0, "x", (5,))
    assert first.is_progress and not token.is_progress
    assert merged(first, told) == told and merged(told, token).progress == now
    assert not merged(told, token).is_progress
    work = wire.Submit("a", [1], {}, progress=True)
    assert wire.read_down(wire.frame(work)[wire.LENGTH.size :]) == work
    step = wire.Step([told, token])
    assert wire.read_up(wire.frame(step)[wire.LENGTH.size :]) == step

    async def take() -> tuple[int, int]:
        ticket = Ticket(work, 1, 0, Mailbox(), tries=2, blamed=1)
        ticket.take(told)
        return ticket.tries, ticket.blamed

    assert asyncio.run(take()) == (2, 1), "the engine may still die of it"


def test_a_real_engine_tells(words: Path) -> None:
    given = EngineOptions(model=str(words), threads=1)
    options = engine_options(ModelFlags(options=given), 8)
    ask = {**TELLS, "prompt": [5] * 600, "return_progress": True}
    with served(words, engine=ENGINE, options=options, model="tiny") as server:
        first, again = [progress_of(events(server.post("/v1/completions", ask))) for _ in range(2)]
    assert first[-1] == {**first[-1], "total": 600, "cache": 0, "processed": 600}
    assert again[-1] == {**again[-1], "total": 600, "cache": 599, "processed": 600}
