"""Embeddings, ranks and scores over HTTP.

Tests embeddings.py, ranking.py, reading.py and posted.py of the server.
"""

from __future__ import annotations

import base64
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

import embedders
import tiny
from serving import Served, real
from suffice import LLM
from suffice.errors import InputError

TEXTS = ["jumps over", "To be, or not to be, that is the question. " * 3, "a b c"]
OPTIONS: dict[str, Any] = {"dtype": "float32", "kv_cache_dtype": "float32"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that embeds, with a prompt for queries, and an end of text after every text."""
    made = tiny.make(
        tmp_path_factory.mktemp("embeds"), "llama", tokenizer=True, max_position_embeddings=128
    )
    embedders.with_eos(made)
    return embedders.write_modules(made, {"pooling_mode": "mean"})


@pytest.fixture(scope="module")
def embeds(folder: Path) -> Iterator[Served]:
    with real(folder, **OPTIONS) as found:
        yield found


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder, threads=1, **OPTIONS)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, LLM]]:
    made = embedders.judge(tmp_path_factory.mktemp("judge"))
    with real(made, **OPTIONS) as found:
        yield found, LLM(made, threads=1, **OPTIONS)


def vectors(llm: LLM, prompts: Any, **options: Any) -> list[list[float]]:
    found = llm.embed(prompts, use_tqdm=False, **options)
    return [each.outputs.embedding for each in found]


def test_the_openai_client(embeds: Served, llm: LLM) -> None:
    """It asks for base64 unless told otherwise."""
    client = openai.OpenAI(base_url=f"{embeds.url}/v1", api_key="none", max_retries=0)
    tokens = llm.tokenizer.encode(TEXTS[0])
    for given in (TEXTS[0], TEXTS, tokens, [tokens, tokens[:2]]):
        wanted = vectors(llm, given)
        for form in ({}, {"encoding_format": "float"}):
            answer = client.embeddings.create(model="tiny", input=given, user="me", **form)
            assert [each.embedding for each in answer.data] == wanted
            assert [each.index for each in answer.data] == list(range(len(wanted)))
            asked = llm.embed(given, use_tqdm=False)
            count = sum(len(each.prompt_token_ids) for each in asked)
            assert answer.usage.prompt_tokens == answer.usage.total_tokens == count
    (short,) = client.embeddings.create(model="tiny", input="a", dimensions=7).data
    assert short.embedding == vectors(llm, "a", dimensions=7)[0] and len(short.embedding) == 7


def test_fields_of_ours(embeds: Served, llm: LLM) -> None:
    def ask(**fields: Any) -> Any:
        answer = embeds.post("/v1/embeddings", {"input": "a", **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()["data"][0]["embedding"]

    assert ask(prompt_name="query") == vectors(llm, "a", prompt_name="query")[0]
    before = embedders.PROMPTS["query"]
    assert ask(instruction=before) == ask(prompt_name="query") != ask()
    assert ask(normalize=False) == vectors(llm, "a", normalize=False)[0] != ask()
    raw = base64.b64decode(ask(encoding_format="base64"))
    assert np.frombuffer(raw, "<f4").tolist() == ask()
    plain = llm.tokenizer.encode("a", special=False)
    assert ask(add_special_tokens=False) == vectors(llm, [plain])[0]
    assert (
        ask(input="b c a", truncate_prompt_tokens=2)
        == vectors(llm, [llm.tokenizer.encode("b c a")[-2:]])[0]
    )


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({}, "input", "input: is required"),
    ({"input": []}, "input", "input: 0 prompts given; 1 to 2048 are allowed"),
    ({"input": ["a"] * 2049}, "input", "input: 2049 prompts given; 1 to 2048 are allowed"),
    ({"input": [[]]}, "input", "input: the prompt is empty"),
    ({"input": "a" * 400}, "input", "the prompt has"),
    ({"input": "a", "dimensions": 65}, "dimensions", "dimensions=65: must be from 1 to 64, the"),
    ({"input": "a", "dimensions": 0}, "dimensions", "greater than or equal to 1"),
    ({"input": "a", "encoding_format": "int8"}, "encoding_format", "'float' or 'base64'"),
    (
        {"input": "a", "prompt_name": "x"},
        "prompt_name",
        "unknown prompt_name 'x'. Known: document, query",
    ),
    ({"input": [3], "prompt_name": "query"}, "prompt_name", "needs an input that is text"),
    ({"input": [3], "instruction": "q"}, "instruction", "needs an input that is text"),
    (
        {"input": "a", "prompt_name": "query", "instruction": "b"},
        "instruction",
        "prompt_name and instruction contradict each other: give one",
    ),
    ({"input": "a", "stream": True}, "stream", "unknown field 'stream'"),
    ({"input": "a", "echo": True}, "echo", "'echo' is not supported here"),
]


@pytest.mark.parametrize(("fields", "param", "message"), REFUSED, ids=str)
def test_what_is_refused(embeds: Served, fields: Any, param: str, message: str) -> None:
    answer = embeds.post("/v1/embeddings", fields)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == param
    assert message in error["message"]


def test_a_token_that_is_none(embeds: Served) -> None:
    answer = embeds.post("/v1/embeddings", {"input": [[3], [100_000]]})
    assert (
        answer.status_code == 400
        and "100000 is not a token id" in answer.json()["error"]["message"]
    )


def test_ollama(embeds: Served, llm: LLM) -> None:
    answer = embeds.post("/api/embed", {"model": "tiny:latest", "input": TEXTS, "keep_alive": "5m"})
    found = answer.json()
    assert found["embeddings"] == vectors(llm, TEXTS) and found["model"] == "tiny"
    asked = llm.embed(TEXTS, use_tqdm=False)
    assert found["prompt_eval_count"] == sum(len(each.prompt_token_ids) for each in asked)
    short = embeds.post("/api/embed", {"model": "tiny", "input": "a", "dimensions": 5}).json()
    assert short["embeddings"] == vectors(llm, "a", dimensions=5)
    assert embeds.post("/api/embed", {"model": "tiny"}).json()["embeddings"] == []
    old = embeds.post("/api/embeddings", {"model": "tiny", "prompt": "a"}).json()
    assert old == {"embedding": vectors(llm, "a")[0]}
    assert embeds.post("/api/embeddings", {"model": "tiny"}).json() == {"embedding": []}
    kept = embeds.post("/api/embed", {"model": "tiny", "input": "a", "keep_alive": "soon"}).json()
    assert "keep_alive='soon': must be seconds, or a time such as 5m" in kept["error"]
    shown = embeds.post("/api/show", {"model": "tiny"}).json()
    assert shown["capabilities"] == ["embedding"]


def test_ollama_keeps_the_beginning_of_a_long_text(embeds: Served, llm: LLM) -> None:
    """With the end of text that the tokenizer puts after it; a wrong option is refused."""
    long = "a b c " * 60
    tokens = llm.tokenizer.encode(long)
    assert len(tokens) > 128 and tokens[-1] == llm.tokenizer.eos_id
    wanted = vectors(llm, [[*tokens[:126], tokens[-1]]])[0]
    for path, field in (("/api/embed", "input"), ("/api/embeddings", "prompt")):
        found = embeds.post(path, {"model": "tiny", field: long}).json()
        assert found.get("embedding", found.get("embeddings", [None])[0]) == wanted
    refused = embeds.post("/api/embed", {"model": "tiny", "input": long, "truncate": False})
    assert refused.status_code == 400 and "the prompt has" in refused.json()["error"]
    refused = embeds.post("/api/embed", {"model": "tiny", "input": "a", "options": {"mirostat": 1}})
    assert "options.mirostat=1 is not supported here" in refused.json()["error"]


def test_llama_cpp(embeds: Served, llm: LLM) -> None:
    found = embeds.post("/embedding", {"content": TEXTS}).json()
    wanted = vectors(llm, TEXTS, normalize=True)
    assert found == [{"index": at, "embedding": [each]} for at, each in enumerate(wanted)]
    (plain,) = embeds.post("/embedding", {"content": "a", "embd_normalize": -1}).json()
    assert plain["embedding"] == vectors(llm, "a", normalize=False)
    error = embeds.post("/embedding", {"content": "a", "embd_normalize": 1}).json()["error"]
    assert error["message"] == "embd_normalize=1: must be -1 (none) or 2 (Euclidean)"
    error = embeds.post("/embedding", {"content": [[]]}).json()["error"]
    assert (error["param"], error["message"]) == ("content", "content: the prompt is empty")


def test_a_killed_engine(embeds: Served, llm: LLM) -> None:
    """Another one reads what it did not."""
    (instance,) = embeds.front.instance.members
    with ThreadPoolExecutor() as pool:
        ask = pool.submit(embeds.post, "/v1/embeddings", {"input": TEXTS * 100})
        os.kill(instance.pid, signal.SIGKILL)
        found = ask.result().json()["data"]
    assert [each["embedding"] for each in found] == vectors(llm, TEXTS) * 100
    assert not embeds.run(lambda: embeds.front.jobs)


def ranks(server: Served, path: str = "/v1/rerank", **fields: Any) -> Any:
    answer = server.post(path, {"query": "fox?", "documents": DOCUMENTS, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


DOCUMENTS = ["the quick brown fox", "lazy dog", "that is the question"]


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_a_rank(judge: tuple[Served, LLM], path: str) -> None:
    server, llm = judge
    scores = llm.rerank("fox?", DOCUMENTS, use_tqdm=False)
    order = sorted(range(3), key=lambda at: -scores[at])
    found = ranks(server, path)
    assert [each["index"] for each in found["results"]] == order
    assert [each["relevance_score"] for each in found["results"]] == [scores[at] for at in order]
    assert [each["document"]["text"] for each in found["results"]] == [
        DOCUMENTS[at] for at in order
    ]
    few = ranks(server, path, top_n=1, return_documents=False)["results"]
    assert few == [{"index": order[0], "relevance_score": scores[order[0]]}]
    told = [{"text": each} for each in DOCUMENTS]
    assert ranks(server, path, documents=told)["results"] == found["results"]
    own = llm.rerank("fox?", DOCUMENTS, use_tqdm=False, instruction="Find dogs")
    best = ranks(server, path, instruction="Find dogs")["results"][0]
    assert best["relevance_score"] == max(own)


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([], "documents: 0 given; 1 to 2048 are allowed"),
        (["a"] * 2049, "documents: 2049 given; 1 to 2048 are allowed"),
        ([{"title": "a"}], "documents: must be texts, or objects with a 'text'"),
        ([{"text": 3}], "documents: must be texts, or objects with a 'text'"),
        (["a", 3], "documents: must be a list of texts or a list of objects, not"),
        (["a" * 9000], "the prompt has 9"),
    ],
)
def test_documents_that_are_none(
    judge: tuple[Served, LLM], documents: list[Any], message: str
) -> None:
    error = judge[0].post("/v1/rerank", {"query": "a", "documents": documents}).json()["error"]
    assert message in error["message"] and error["param"] == "documents"


def test_a_rank_cuts_no_query(judge: tuple[Served, LLM]) -> None:
    server, llm = judge
    least = ranks(server, documents=[" "])["usage"]["prompt_tokens"]
    long = " ".join(9 * DOCUMENTS)
    found = ranks(server, documents=[long, "dog"], truncate_prompt_tokens=least + 9)
    assert found["usage"]["prompt_tokens"] < 2 * least + 18
    scores = {each["index"]: each["relevance_score"] for each in found["results"]}
    begun = [long[:at] for at in range(4, 30)]
    assert scores[0] in llm.rerank("fox?", begun, use_tqdm=False)
    assert scores[1] == llm.rerank("fox?", ["dog"], use_tqdm=False)[0]
    body = {"query": "fox?", "documents": [long], "truncate_prompt_tokens": least - 3}
    error = server.post("/v1/rerank", body).json()["error"]
    assert "the query is never cut" in error["message"], error
    assert error["param"] == "truncate_prompt_tokens"


def test_a_query_to_embeddings_stays_whole(embeds: Served, llm: LLM) -> None:
    query = "b c a " * 5
    cut = ranks(embeds, query=query, documents=["a b c d a b"], truncate_prompt_tokens=3)
    whole = ranks(embeds, query=query, documents=["a b"])
    assert cut["usage"] == whole["usage"], "two letters and the token at the end"
    assert cut["results"][0]["relevance_score"] == whole["results"][0]["relevance_score"]


def test_a_rank_by_embeddings(embeds: Served, llm: LLM) -> None:
    scores = llm.rerank("fox?", DOCUMENTS, use_tqdm=False)
    found = ranks(embeds)
    assert {each["index"]: each["relevance_score"] for each in found["results"]} == dict(
        enumerate(scores)
    )
    queries = llm.embed("fox?", prompt_name="query", use_tqdm=False)
    counted = [*queries, *llm.embed(DOCUMENTS, prompt_name="document", use_tqdm=False)]
    assert found["usage"]["total_tokens"] == sum(len(each.prompt_token_ids) for each in counted)


def test_scores_of_pairs(judge: tuple[Served, LLM]) -> None:
    server, llm = judge

    def scored(one: Any, other: Any) -> list[float]:
        answer = server.post("/v1/score", {"text_1": one, "text_2": other})
        assert answer.status_code == 200, answer.text
        assert [each["index"] for each in answer.json()["data"]] == list(
            range(len(answer.json()["data"]))
        )
        return [each["score"] for each in answer.json()["data"]]

    assert scored("fox?", DOCUMENTS) == llm.rerank("fox?", DOCUMENTS, use_tqdm=False)
    pairs = [llm.rerank(a, [b], use_tqdm=False)[0] for a, b in zip("ab", DOCUMENTS, strict=False)]
    assert scored(["a", "b"], DOCUMENTS[:2]) == pairs and scored(["a"], DOCUMENTS[0]) == pairs[:1]
    for one, other in ((["a", "b"], DOCUMENTS), ([], "a"), ("a", [])):
        error = server.post("/v1/score", {"text_1": one, "text_2": other}).json()["error"]
        assert error["param"] == "text_1" and "text_1 must be one, or as many" in error["message"]


def test_models_that_cannot(words: Path, tmp_path: Path) -> None:
    with real(words, **OPTIONS) as server:
        error = server.post("/v1/rerank", {"query": "a", "documents": ["b"]}).json()["error"]
        assert error["message"] == "the model cannot rank: 'yes' and 'no' are no tokens of it"
        assert error["code"] == "invalid_value"
        plain = server.post("/v1/embeddings", {"input": "a"}).json()
        assert plain["data"][0]["embedding"] == vectors(LLM(words, threads=1, **OPTIONS), "a")[0]
    folder = tiny.make(tmp_path, "mistral", tokenizer=True)
    with real(embedders.without_head(folder, "MistralModel"), **OPTIONS) as server:
        assert server.post("/v1/embeddings", {"input": "a"}).status_code == 200
        error = server.chat("a").json()["error"]
        assert error["message"] == "the model has no head: it embeds texts, and generates none"
    with pytest.raises(InputError, match=r"unknown prompt_name 'a'\. There are none"):
        LLM(words, threads=1).embed("a", prompt_name="a")
