"""Other people's clients, and a real model end to end; also tests model.py and engine_options."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from serving import Served, events, served
from suffice import LLM, SamplingParams
from suffice.cli.options import ModelFlags
from suffice.cli.serve import engine_options
from suffice.engine.options import EngineOptions
from suffice.serve.settings import ENGINE

if TYPE_CHECKING:  # they take seconds to load
    import openai

MESSAGES: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[openai.OpenAI]:
    import openai

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


@pytest.fixture(scope="module")
def real(words: Path) -> Iterator[Served]:
    """A server of the tiny model itself."""
    options = engine_options(ModelFlags(options=EngineOptions(model=str(words), threads=1)), 4)
    with served(words, engine=ENGINE, options=options, model=str(words), max_num_seqs=4) as found:
        yield found


def test_openais_client(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model="scripted", messages=MESSAGES, max_tokens=5, seed=1, logprobs=True, top_logprobs=2
    )
    assert whole.usage is not None and whole.usage.completion_tokens == 5
    assert whole.choices[0].logprobs is not None
    stream = client.chat.completions.create(
        model="scripted", messages=MESSAGES, max_tokens=5, seed=1, stream=True
    )
    text = "".join(each.choices[0].delta.content or "" for each in stream)
    assert text == whole.choices[0].message.content
    assert client.completions.create(model="scripted", prompt="a", max_tokens=2).choices[0].text
    assert [each.id for each in client.models.list()] == ["scripted"]


def test_openais_client_knows_the_errors(client: openai.OpenAI) -> None:
    import openai

    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="other", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="scripted", messages=MESSAGES, temperature=-1)
    assert bad.value.param == "temperature"


def test_a_real_model_answers_as_generate_does(real: Served, words: Path) -> None:
    params = {"temperature": 1.0, "seed": 3, "max_tokens": 12}
    prompt = [3, 1, 4, 1, 5]
    llm = LLM(str(words), threads=1)
    (alone,) = llm.generate([prompt], SamplingParams(**params, logprobs=2))
    body = {"prompt": prompt, **params, "logprobs": 2, "return_token_ids": True}
    (choice,) = real.post("/v1/completions", body).json()["choices"]
    assert choice["token_ids"] == list(alone.outputs[0].token_ids)
    assert choice["text"] == alone.outputs[0].text
    chosen = [
        entry[token].logprob
        for entry, token in zip(
            alone.outputs[0].logprobs or (), alone.outputs[0].token_ids, strict=True
        )
    ]
    assert choice["logprobs"]["token_logprobs"] == chosen
    (talk,) = llm.chat([{"role": "user", "content": "to be"}], SamplingParams(**params))
    assert real.chat("to be", **params).json()["choices"][0]["message"]["content"] == (
        talk.outputs[0].text
    )


def test_a_real_model_streams_several_samples(real: Served) -> None:
    fields = {"n": 3, "seed": 4, "max_tokens": 9}
    whole = [each["message"]["content"] for each in real.chat(**fields).json()["choices"]]
    parts = [""] * 3
    for each in events(real.chat(stream=True, **fields))[:-1]:
        for choice in each["choices"]:
            parts[choice["index"]] += choice["delta"].get("content") or ""
    assert parts == whole
    assert real.client.get("/v1/models").json()["data"][0]["max_model_len"] == 1024


def test_a_real_model_refuses_what_it_lacks(real: Served) -> None:
    answer = real.post("/v1/completions", {"prompt": [10**6]})
    assert answer.status_code == 400 and "is not a token id" in answer.json()["error"]["message"]
    answer = real.chat(n=5)
    assert answer.status_code == 400 and "max_num_seqs" in answer.json()["error"]["message"]
