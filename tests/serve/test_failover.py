"""A real engine that is killed: requests go on with the same text, drafts, samples and grammars."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from golden import model_file
from serving import Served, events, served
from suffice.cli.options import ModelFlags
from suffice.cli.serve import engine_options
from suffice.engine.options import EngineOptions
from suffice.serve.processes import instances
from suffice.serve.settings import ENGINE

ASKED: list[dict[str, Any]] = [
    {"seed": 1, "max_tokens": 250, "ignore_eos": True},
    {"seed": 2, "max_tokens": 250, "n": 3},
    {"seed": 3, "max_tokens": 250, "temperature": 0, "ignore_eos": True, "logprobs": True},
    {"seed": 4, "max_tokens": 300, "structured_outputs": {"regex": "([a-z]{3} ){60}"}},
    {"seed": 5, "max_tokens": 250, "presence_penalty": 1.0, "ignore_eos": True, "stop": ["q"]},
]


@pytest.fixture(scope="module", params=[None, "ngram"])
def real(
    words: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    given = EngineOptions(model=str(words), threads=1, speculative_config=request.param)
    options = engine_options(ModelFlags(options=given), 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(instances, "FIRST_PAUSE", 0.05)
        with served(words, engine=ENGINE, options=options, model="tiny", max_num_seqs=8) as found:
            yield found


def texts(server: Served, fields: dict[str, Any], stream: bool) -> list[tuple[str, Any]]:
    answer = server.chat("hello there", stream=stream, **fields)
    assert answer.status_code == 200, answer.text
    if not stream:
        choices = answer.json()["choices"]
        return [(each["message"]["content"], each["finish_reason"]) for each in choices]
    parts = [""] * fields.get("n", 1)
    ends: list[Any] = [None] * len(parts)
    for each in events(answer)[:-1]:
        for choice in each["choices"]:
            parts[choice["index"]] += choice["delta"].get("content") or ""
            assert not (ends[choice["index"]] and choice["finish_reason"]), "ended twice"
            ends[choice["index"]] = ends[choice["index"]] or choice["finish_reason"]
    return list(zip(parts, ends, strict=True))


def test_a_killed_engine_changes_no_text(real: Served) -> None:
    alone = [texts(real, fields, stream=False) for fields in ASKED]
    assert re.fullmatch("([a-z]{3} ){60}", alone[3][0][0])
    (instance,) = real.front.instance.members
    for kills in (1, 2):
        with ThreadPoolExecutor() as pool:
            before = instance.restarts
            asks = [
                pool.submit(texts, real, fields, (at + kills) % 2 == 0)
                for at, fields in enumerate(ASKED)
            ]
            end = time.monotonic() + 30
            while time.monotonic() < end and not any(
                ticket.generated > 20 * kills for ticket in list(instance.tickets.values())
            ):
                time.sleep(0.001)
            assert instance.pid is not None
            os.kill(instance.pid, signal.SIGKILL)
            assert [ask.result() for ask in asks] == alone
            assert instance.restarts == before + 1
    assert instance.failovers > 0


def test_what_clients_leave_behind_is_freed(real: Served) -> None:
    for _ in range(10):
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 900}
        ask = {"json": {**body, "stream": True, "ignore_eos": True}}
        with (
            httpx2.Client(base_url=real.url) as client,
            client.stream("POST", "/v1/chat/completions", **ask) as answer,
        ):
            next(answer.iter_bytes())
    end = time.monotonic() + 20
    stats = real.front.instance.stats
    while stats.get("running") or stats.get("waiting") or real.front.jobs:
        assert time.monotonic() < end, stats
        time.sleep(0.01)
        stats = real.front.instance.stats
    assert stats["kv_bytes_used"] <= stats["prefix_bytes"], "only kept prefixes are left"


@pytest.mark.model
def test_a_real_model_in_two_engines_changes_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    path = model_file("smollm2-135m")
    if path is None:
        pytest.skip("no smollm2-135m: run `suffice pull smollm2-135m`")
    given = EngineOptions(model=str(path), threads=1, speculative_config="ngram")
    options = engine_options(ModelFlags(options=given), 8)
    shorter = [
        fields | {"max_tokens": 20} for fields in ASKED if "structured_outputs" not in fields
    ]
    monkeypatch.setattr(instances, "FIRST_PAUSE", 0.05)
    with served(path, engine=ENGINE, options=options, model="smollm2", instances=2) as server:
        server.client.timeout = 300
        alone = [texts(server, fields, stream=False) for fields in shorter]
        with ThreadPoolExecutor() as pool:
            asks = [
                pool.submit(texts, server, fields, at % 2 == 0) for at, fields in enumerate(shorter)
            ]
            victim = server.front.instance.members[1]
            end = time.monotonic() + 120
            while not any(each.generated > 5 for each in list(victim.tickets.values())):
                assert time.monotonic() < end, "the engine gets requests"
                time.sleep(0.001)
            assert victim.pid is not None
            os.kill(victim.pid, signal.SIGKILL)
            assert [ask.result() for ask in asks] == alone
        assert server.front.instance.restarts == 1 and server.front.instance.failovers > 0
