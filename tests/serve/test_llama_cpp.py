"""llama.cpp's own API: llama_cpp.py, and `suffix`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import speaking
from serving import Served, events, served
from suffice.serve.http.front import Job
from suffice.serve.interfaces import llama_cpp


def test_a_completion(server: Served) -> None:
    body = {"prompt": "hello", "n_predict": 4, "seed": 3, "return_tokens": True}
    whole = server.post("/completion", body).json()
    plain = server.post("/v1/completions", {"prompt": "hello", "max_tokens": 4, "seed": 3}).json()
    assert whole["content"] == plain["choices"][0]["text"] and whole["stop"] is True
    assert (whole["stop_type"], whole["tokens_predicted"]) == ("limit", 4)
    assert whole["tokens_evaluated"] == plain["usage"]["prompt_tokens"]
    assert len(whole["tokens"]) == 4 and whole["timings"]["predicted_n"] == 4
    found = events(server.post("/completion", {**body, "stream": True}))
    assert "".join(each["content"] for each in found) == whole["content"]
    assert [each["stop"] for each in found] == [False] * (len(found) - 1) + [True]
    assert found[-1]["tokens"] == whole["tokens"] and found[-1]["stop_type"] == "limit"
    tokens = server.post("/tokenize", {"content": "hello", "add_special": True}).json()["tokens"]
    again = server.post("/completion", {**body, "prompt": tokens}).json()
    assert again["content"] == whole["content"]


def test_without_a_limit_it_fills_the_context(server: Served) -> None:
    endless = server.post("/completion", {"prompt": "a", "n_predict": -1, "seed": -1}).json()
    assert endless["stop_type"] in ("limit", "eos") and endless["tokens_predicted"] > 16


@pytest.mark.parametrize(
    ("end", "kind", "word"),
    [(("length", None), "limit", ""), (("stop", "ab"), "word", "ab"), (("stop", 7), "eos", "")],
)
def test_why_it_ended(end: Any, kind: str, word: str, server: Served) -> None:
    reply: Any = SimpleNamespace(only=SimpleNamespace(end=end), model="m", job=Job("x", ""))
    found = llama_cpp._end(reply)
    assert (found["stop_type"], found["stopping_word"]) == (kind, word)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"repeat_penalty": 1.2, "repeat_last_n": 64}, "repeat_last_n"),
        ({"logit_bias": [["a", 1]]}, "logit_bias"),
        ({"mirostat": 2}, "mirostat"),
        ({"temprature": 1}, "temprature"),
        ({"temperature": -1}, "temperature"),
        ({"n_predict": "x"}, "n_predict"),
    ],
)
def test_what_is_refused(server: Served, fields: dict[str, Any], param: str) -> None:
    answer = server.post("/completion", {"prompt": "a", **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_names_that_mean_the_same(server: Served) -> None:
    body = {"prompt": "a", "n_predict": 3, "seed": 1}
    plain = server.post("/completion", body).json()["content"]
    same = {"repeat_penalty": 1.1, "repeat_last_n": -1, "logit_bias": [[5, 1.0], [6, False]]}
    same |= {"mirostat": 0, "cache_prompt": False, "id_slot": -1, "n_probs": 0}
    assert server.post("/completion", {**body, **same}).json()["content"] == plain


@pytest.fixture(scope="module")
def coder(
    tmp_path_factory: pytest.TempPathFactory, engine_path: None
) -> Iterator[tuple[Served, Path]]:
    folder = speaking.make(tmp_path_factory.mktemp("coder"), "coder")
    log = tmp_path_factory.mktemp("log") / "prompts"
    with served(folder, options={"log": str(log), "context": 1024}) as found:
        yield found, log


def test_infill(coder: tuple[Served, Path]) -> None:
    server, log = coder
    tokens = server.front.text.tokenizer.whole()
    marks = [tokens[f"<|fim_{part}|>"] for part in ("prefix", "suffix", "middle")]
    body = {"input_prefix": "def f(", "prompt": "a", "input_suffix": "): pass", "n_predict": 2}
    assert server.post("/infill", body).status_code == 200
    fields = {"prompt": "def f(a", "suffix": "): pass", "max_tokens": 2}
    assert server.post("/v1/completions", fields).status_code == 200
    last = log.read_text().splitlines()[-2:]
    one, other = (list(map(int, re.findall(r"\d+", line))) for line in last)
    assert one == other
    at = [one.index(mark) for mark in marks]
    assert at == sorted(at) and at[-1] == len(one) - 1
    decode = server.front.text.tokenizer.decode
    assert decode(one[at[0] + 1 : at[1]]) == "def f(a"
    assert decode(one[at[1] + 1 : at[2]]) == "): pass"
    bad = server.post("/v1/completions", {**fields, "echo": True})
    assert bad.status_code == 400 and bad.json()["error"]["param"] == "suffix"
    extra = server.post("/infill", {**body, "input_extra": [{"text": "x"}]})
    assert extra.json()["error"]["param"] == "input_extra"


def test_a_model_that_fills_nothing_in(server: Served) -> None:
    answer = server.post("/infill", {"input_prefix": "a", "input_suffix": "b"})
    assert answer.status_code == 400 and "no tokens for it" in answer.json()["error"]["message"]


def test_what_clients_ask_before_they_begin(coder: tuple[Served, Path]) -> None:
    server, _ = coder
    found = server.client.get("/props").json()
    assert found["default_generation_settings"]["n_ctx"] == 1024
    assert found["total_slots"] == server.front.places and "<|end|>" in found["chat_template"]
    slots = server.client.get("/slots").json()
    assert len(slots) == found["total_slots"] and not any(each["is_processing"] for each in slots)
    talk = {"messages": [{"role": "user", "content": "hi"}]}
    shown = server.post("/apply-template", {**talk, "chat_template_kwargs": {"extra": "!"}}).json()
    assert shown == {"prompt": "<|user|>hi<|end|>!<|assistant|>"}
    text = server.post("/detokenize", {"tokens": [20, 21]}).json()
    assert text["content"] == text["prompt"]
