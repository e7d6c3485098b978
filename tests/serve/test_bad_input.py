"""Input that no client should send: schemathesis on the API's description, and mutated bodies."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import embedders
from json_mutations import mutated
from serving import Served, served
from suffice.serve.app import _CHANGES
from suffice.serve.posted import POSTED

PLANNED = (501, 503, 504)  # what the server may answer, and is no error of its own
EACH = int(os.environ.get("SUFFICE_TEST_BODIES", "40"))  # mutated bodies for each path
TALK = [{"role": "user", "content": "hi"}]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object"}, "strict": False},
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "max_tokens": 3,
        "stop": ["a"],
        "logit_bias": {"1": 2.0},
        "response_format": {"type": "text"},
        "tools": [TOOL],
        "tool_choice": "none",
        "parallel_tool_calls": False,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": True,
        "top_logprobs": 2,
        "suffice": {"attention": None},
        "chat_template_kwargs": {"a": 1},
    },
    "/v1/completions": {"prompt": ["a", "b"], "max_tokens": 2, "echo": False, "logprobs": 1},
    "/v1/responses": {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        "max_output_tokens": 3,
        "text": {"format": {"type": "text"}},
        "tools": [{"type": "function", **TOOL["function"]}],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]},
        "seed": 1,
        "stop": ["a"],
        "stream": True,
        "stream_options": {"include_obfuscation": False},
    },
    "/v1/messages": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "system": [{"type": "text", "text": "hi"}],
        "max_tokens": 3,
        "stop_sequences": ["a"],
        "tools": [],
        "output_config": {"effort": "low"},
    },
    "/v1/messages/count_tokens": {"messages": TALK},
    "/tokenize": {"messages": TALK, "return_token_strs": True},
    "/detokenize": {"tokens": [1, 2]},
    "/v1/chat/completions/input_tokens": {"messages": [{"role": "user", "content": "a"}]},
    "/v1/responses/input_tokens": {"input": "a", "tools": [{"type": "web_search"}]},
    "/api/chat": {
        "model": "scripted",
        "messages": [{"role": "user", "content": "a"}],
        "stream": False,
        "think": False,
        "logprobs": True,
        "top_logprobs": 1,
        "options": {"num_predict": 2, "temperature": 0.5},
    },
    "/api/generate": {"model": "scripted", "prompt": "a", "options": {"num_predict": 2}},
    "/api/show": {"model": "scripted"},
    "/completion": {"prompt": "a", "n_predict": 2, "logit_bias": [[1, 2.0]], "stream": True},
    "/infill": {"input_prefix": "a", "input_suffix": "b", "n_predict": 2},
    "/apply-template": {"messages": [{"role": "user", "content": "a"}]},
    "/api/pull": {"model": "scripted"},
    "/v1/embeddings": {"input": ["a", "b"], "dimensions": 3, "encoding_format": "base64"},
    "/v1/rerank": {"query": "a", "documents": [{"text": "b"}, {"text": "c"}], "top_n": 1},
    "/v2/rerank": {"query": "a", "documents": ["b"], "return_documents": False},
    "/v1/score": {"text_1": "a", "text_2": ["b", "c"]},
    "/v1/decisions": {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}],
        "questions": [
            {"type": "predicate", "instructions": "b", "name": "c"},
            {"type": "choice", "instructions": "b", "choices": [{"value": True}, {"value": "d"}]},
        ],
    },
    "/v1/systemone": {
        "state": {"a": 1},
        "questions": {
            "q": {"type": "score", "instructions": "b", "criteria": ["low", "high"]},
            "r": {"type": "noul", "criteria": {"true": "c"}},
        },
    },
    "/api/embed": {"model": "scripted", "input": ["a"], "truncate": True},
    "/api/embeddings": {"model": "scripted", "prompt": "a", "options": {}},
    "/embedding": {"content": ["a", "b"], "embd_normalize": -1},
    "/models/load": {"model": "scripted"},
    "/models/unload": {"model": "scripted"},
}
NEVER = ("/infill", "/models/unload")  # which this server cannot


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, engine_path: None) -> Iterator[Served]:
    """A server whose model has tokens for yes and no, and a context of a few lines."""
    folder = embedders.judge(tmp_path_factory.mktemp("judge"), chatml=False)
    with served(folder, options={"step_seconds": 0, "context": 320}) as found:
        yield found


def check(status: int, content: bytes) -> None:
    assert status < 500 or status in PLANNED, content[:500]
    if status >= 400:
        assert len(content) <= 4096
        error = json.loads(content)["error"]
        if isinstance(error, str):  # Ollama's form
            error = {"message": error, "code": "-"}
        assert error["message"] and "\n" not in error["message"] and error["code"]


def test_every_body_has_mutations() -> None:
    assert set(BODIES) == {path for path, *_ in (*POSTED, *_CHANGES)}


@pytest.mark.parametrize("path", BODIES)
def test_mutated_bodies(server: Served, path: str) -> None:
    refused = 0
    for seed in range(EACH):
        data = mutated(BODIES[path], seed).encode(errors="surrogatepass")
        headers = {"content-type": "application/json"}
        answer = server.client.post(path, content=data, headers=headers)
        check(answer.status_code, answer.content)
        refused += answer.status_code >= 400
    assert EACH / 8 < refused < EACH + (path in NEVER), "some are bad and some are not"
    assert server.client.get("/health").status_code == 200


@pytest.mark.skipif(sys.version_info < (3, 11), reason="schemathesis needs Python 3.11")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_requests_by_the_description(server: Served) -> None:
    import schemathesis

    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [each.ok() for each in schema.get_all_operations()]
    assert len(operations) > len(BODIES)
    for operation in operations:
        ask_all(operation.path, operation.as_strategy())


def ask_all(path: str, cases: st.SearchStrategy[Any]) -> None:
    @settings(
        max_examples=2,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def ask(case: Any) -> None:
        answer = case.call()
        if path in ("/health", "/ready", "/metrics"):
            assert answer.status_code == 200
        else:
            check(answer.status_code, answer.content)

    ask()
