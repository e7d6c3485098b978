"""A real engine: techniques by request, what answers say they read, and who shares prefixes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from serving import Served, events, served
from suffice.cli.options import ModelFlags
from suffice.cli.serve import engine_options
from suffice.engine.options import EngineOptions
from suffice.serve.settings import ENGINE

ALLOWED = ["aet:keys=0.6,values=0.2", "certified:eps=0.7", "certified:eps=0.7,bounded=false"]
PROMPT = "To be, or not to be, that is the question. " * 12
FIELDS: dict[str, Any] = {"max_tokens": 40, "seed": 5, "ignore_eos": True}
Make = Callable[..., AbstractContextManager[Served]]


@pytest.fixture(scope="module")
def make(words: Path) -> Make:
    """Serve the tiny model with an attention technique and other settings."""

    def made(
        attention: str = "exact", allowed: list[str] | None = None, **more: Any
    ) -> AbstractContextManager[Served]:
        engine = {name: more.pop(name) for name in ("speculative_config", "audit") if name in more}
        given = EngineOptions(
            model=str(words), threads=1, kv_cache_dtype="float32", attention=attention, **engine
        )
        return served(
            words,
            engine=ENGINE,
            options=engine_options(ModelFlags(options=given), 8),
            limits={"attentions": allowed or []},
            model="tiny",
            max_num_seqs=8,
            **more,
        )

    return made


@pytest.fixture(scope="module")
def mixed(make: Make) -> Iterator[Served]:
    with make(allowed=ALLOWED) as found:
        yield found


def asked(text: str | None) -> dict[str, Any]:
    return {} if text is None else {"suffice": {"attention": text}}


def logprobs(server: Served, text: str | None) -> Any:
    answer = server.chat(PROMPT, logprobs=True, **FIELDS, **asked(text))
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    return choice["logprobs"]


def test_a_technique_asked_for_gives_what_a_server_of_it_gives(make: Make, mixed: Served) -> None:
    wanted = {}
    for text in ("exact", *ALLOWED):
        with make(text) as own:
            wanted[text] = logprobs(own, None)
    assert len({str(each) for each in wanted.values()}) == len(wanted)
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda text: logprobs(mixed, text), [*wanted] * 2))
    assert found == [*wanted.values()] * 2


def test_a_technique_is_known_however_it_is_spelled(mixed: Served) -> None:
    assert logprobs(mixed, "certified:values=0,eps=0.70") == logprobs(mixed, ALLOWED[1])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("certified:eps=0.8", "suffice.attention='certified:eps=0.8': this server allows exact, "),
        ("certifed", "Did you mean 'certified'?"),
        ("aet:keys=9", "keys"),
    ],
)
def test_other_techniques_are_refused_with_those_allowed(
    mixed: Served, text: str, why: str
) -> None:
    answer = mixed.chat(**asked(text))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert why in error["message"] and all(each in error["message"] for each in ALLOWED)
    assert (error["code"], error["param"]) == ("invalid_value", "suffice.attention")


def cached(server: Served, key: str, **more: Any) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    body = {"prompt": PROMPT, "max_tokens": 1, **more}
    answer = server.post("/v1/completions", body, headers=headers)
    assert answer.status_code == 200, answer.text
    found: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def test_a_key_does_not_learn_what_another_asked(make: Make) -> None:
    with make(api_keys=("one", "two")) as server:
        assert cached(server, "one") == 0
        whole = cached(server, "one")
        assert whole > 60
        assert cached(server, "two") == 0
        assert cached(server, "two") == whole
        assert cached(server, "two", cache_salt="x") == 0
        assert cached(server, "two", cache_salt="x") == whole


def test_keys_share_prefixes_if_told_to(make: Make) -> None:
    with make(api_keys=("one", "two"), share_prefixes=True) as server:
        assert cached(server, "one") == 0
        assert cached(server, "two") > 60
        assert cached(server, "two", cache_salt="x") == 0


PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")


def body_of(path: str, **more: Any) -> dict[str, Any]:
    """A greedy request, as long each time: of random ones, one in twenty ends early."""
    talk = [{"role": "user", "content": PROMPT}]
    given = {
        "/v1/completions": {"prompt": PROMPT, "max_tokens": 9},
        "/v1/responses": {"input": PROMPT, "max_output_tokens": 9},
    }.get(path, {"messages": talk, "max_tokens": 9})
    return {**given, "temperature": 0, **more}


def told(server: Served, path: str, text: str, *, stream: bool) -> dict[str, Any]:
    """What an answer says of its reads; of a stream, its last event that says anything."""
    answer = server.post(path, body_of(path, stream=stream, **asked(text)))
    assert answer.status_code == 200, answer.text
    if not stream:
        return answer.json()["suffice"]  # type: ignore[no-any-return]
    parts = [each.get("response", each) for each in events(answer) if isinstance(each, dict)]
    *_, found = [each["suffice"] for each in parts if each.get("suffice")]
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_every_answer_says_what_it_read_and_what_is_guaranteed(
    mixed: Served, path: str, stream: bool
) -> None:
    found = {text: told(mixed, path, text, stream=stream) for text in ("exact", *ALLOWED)}
    assert [each["attention"] for each in found.values()] == [*found]
    exact, none, bound, estimate = found.values()
    assert (exact["guarantee"], exact["missing"]) == ("exact", 0.0)
    assert exact["kv_rows_read"] == exact["value_rows_read"] == exact["kv_rows_held"] > 0
    assert (none["guarantee"], none["missing"]) == ("none", None)
    assert none["kv_rows_read"] < none["kv_rows_held"]
    assert bound["guarantee"] == "bound" and 0 < bound["missing"] <= 0.7
    assert estimate["guarantee"] == "estimate" and 0 < estimate["missing"] <= 0.7
    assert all(each["audit"] is None for each in found.values())


def test_what_answers_say_adds_up_to_the_engines_count(make: Make) -> None:
    """With drafts, hits and techniques mixed."""
    with make(allowed=ALLOWED, speculative_config="ngram:adaptive=false") as server:
        asks = [(path, text) for path in PATHS for text in ("exact", *ALLOWED)] * 2
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda ask: told(server, *ask, stream=len(ask[0]) > 14), asks))
        names = {
            "kv_rows_read": "key_rows_read",
            "value_rows_read": "value_rows_read",
            "kv_rows_held": "rows_held",
            "kv_bytes_read": "kv_bytes_read",
            "kv_bytes_held": "kv_bytes_held",
        }
        wanted = {name: sum(each[name] for each in found) for name in names}
        end = time.monotonic() + 10  # the engine tells its counts every half second
        counts: dict[str, Any] = {}
        while counts != wanted and time.monotonic() < end:
            time.sleep(0.05)
            stats = server.run(lambda: dict(server.front.instance.stats))
            counts = {name: stats.get(field) for name, field in names.items()}
        assert counts == wanted and stats["prefix_hits"] > 0


def test_an_audit_is_told_of_each_answer(make: Make) -> None:
    with make(ALLOWED[1], allowed=["exact"], audit=2) as server:
        certified, exact = (
            told(server, PATHS[0], text, stream=False)["audit"] for text in (ALLOWED[1], "exact")
        )
        assert certified["tokens"] == 4, "of eight steps after the first token"
        assert 0 < certified["missing"] <= 0.7 and certified["error"] > 0
        assert exact["missing"] == 0 and exact["error"] < 1e-5
