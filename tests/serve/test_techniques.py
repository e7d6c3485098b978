"""A real engine: techniques by request, what answers say of their reads, and who shares prefixes."""

from __future__ import annotations

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
    assert logprobs(mixed, "certified:v=0,eps=0.70") == logprobs(mixed, ALLOWED[1])


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
