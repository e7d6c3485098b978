"""`/v1/chat/completions`: chat.py, answer.py, stream.py, logprobs.py, requests.py, text.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from serving import Served, events
from suffice.serve.errors import Problem
from suffice.serve.interfaces.chat import Chat
from suffice.serve.interfaces.names import settle


def texts(found: list[Any]) -> dict[int, str]:
    parts: dict[int, str] = {}
    for each in found:
        for choice in [] if each == "[DONE]" else each["choices"]:
            text = choice["delta"].get("content") or ""
            parts[choice["index"]] = parts.get(choice["index"], "") + text
    return parts


def test_a_whole_answer(server: Served) -> None:
    answer = server.chat(max_tokens=5, seed=3)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["object"] == "chat.completion" and body["model"] == "scripted"
    (choice,) = body["choices"]
    assert choice["message"]["role"] == "assistant" and choice["finish_reason"] == "length"
    assert choice["message"]["content"].count("é") == 5
    prompt = body["usage"]["prompt_tokens"]
    assert body["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 5,
        "total_tokens": prompt + 5,
        "prompt_tokens_details": {"cached_tokens": prompt // 2},
    }
    assert body["suffice"]["kv_rows_read"] == 50 and body["suffice"]["kv_rows_held"] == 100
    assert body["timings"]["predicted_n"] == 5
    assert body["system_fingerprint"] == "fp_scripted"
    assert answer.headers["x-request-id"] == body["id"]


def test_of_two_lengths_the_newer_fields_counts(server: Served) -> None:
    body = server.chat(max_tokens=9, max_completion_tokens=2).json()
    assert body["usage"]["completion_tokens"] == 2


def test_a_stream_has_the_whole_answers_text(server: Served) -> None:
    fields = {"max_tokens": 6, "seed": 9, "n": 2, "temperature": 1.0}
    whole = [each["message"]["content"] for each in server.chat(**fields).json()["choices"]]
    answer = server.chat(stream=True, stream_options={"include_usage": True}, **fields)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-accel-buffering"] == "no"
    found = events(answer)
    assert found[-1] == "[DONE]" and texts(found) == dict(enumerate(whole))
    assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert found[-2]["choices"] == [] and found[-2]["usage"]["completion_tokens"] == 12
    ends = [each for each in found[:-2] if each["choices"][0]["finish_reason"]]
    assert [each["choices"][0]["finish_reason"] for each in ends] == ["length"] * 2
    assert {each["object"] for each in found[:-1]} == {"chat.completion.chunk"}
    assert len({each["id"] for each in found[:-1]}) == 1


def test_greedy_samples_are_copied(server: Served) -> None:
    fields = {"max_tokens": 3, "temperature": 0, "n": 3, "seed": 1}
    body = server.chat(**fields).json()
    assert [each["index"] for each in body["choices"]] == [0, 1, 2]
    assert len({each["message"]["content"] for each in body["choices"]}) == 1
    assert body["usage"]["completion_tokens"] == 9
    assert len(texts(events(server.chat(stream=True, **fields)))) == 3


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities(server: Served, stream: bool) -> None:
    answer = server.chat(max_tokens=2, seed=4, logprobs=True, top_logprobs=2, stream=stream)
    choices = (
        [each["choices"][0] for each in events(answer)[:-1]] if stream else answer.json()["choices"]
    )
    entries = [e for each in choices if each["logprobs"] for e in each["logprobs"]["content"]]
    assert len(entries) == 2
    for each in entries:
        assert each["logprob"] == -1.0 and len(each["top_logprobs"]) == 2
        assert isinstance(each["bytes"], list)


def test_usage_in_every_chunk(server: Served) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    found = events(server.chat(max_tokens=3, stream=True, stream_options=options))
    # How many tokens a chunk has depends on how fast the server is.
    counts = [each["usage"]["completion_tokens"] for each in found[:-1]]
    assert counts == sorted(counts) and counts[-1] == 3 and len(counts) >= 2


def test_token_ids(server: Served) -> None:
    body = server.chat(max_tokens=3, return_token_ids=True).json()
    assert len(body["choices"][0]["token_ids"]) == 3


def test_the_answer_may_be_begun(server: Served) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    body = {"messages": messages, "max_tokens": 1}
    closed = server.post("/v1/chat/completions", body).json()["usage"]["prompt_tokens"]
    body["continue_final_message"] = True
    answer = server.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["prompt_tokens"] < closed


def test_ignored_fields_change_nothing(server: Served) -> None:
    plain = server.chat(max_tokens=4, seed=5).json()["choices"]
    more = {"user": "me", "store": True, "metadata": {"a": "b"}, "modalities": ["text"]}
    assert server.chat(max_tokens=4, seed=5, **more).json()["choices"] == plain


def test_a_null_is_as_if_it_were_not_given(server: Served) -> None:
    plain = server.chat(max_tokens=4, seed=5).json()["choices"]
    names = ("suffice", "priority", "cache_prompt", "add_generation_prompt", "top_p", "tools")
    nulls = server.chat(max_tokens=4, seed=5, **dict.fromkeys(names))
    assert nulls.status_code == 200, nulls.text
    assert nulls.json()["choices"] == plain
    assert server.post("/v1/chat/completions", {"messages": None}).status_code == 400


@pytest.mark.parametrize(
    ("fields", "status", "code", "param", "part"),
    [
        ({"temprature": 1}, 400, "unknown_field", "temprature", "Did you mean 'temperature'?"),
        ({"temperature": "hot"}, 400, "invalid_value", "temperature", "not 'hot'"),
        ({"temperature": -1}, 400, "invalid_value", "temperature", "at least 0"),
        ({"top_p": -0.1}, 400, "invalid_value", "top_p", "[0, 1]"),
        ({"n": 0}, 400, "invalid_value", "n", "greater than or equal to 1"),
        ({"max_tokens": 0}, 400, "invalid_value", "max_tokens", "at least 1"),
        ({"messages": []}, 400, "invalid_value", "messages", "at least 1 item"),
        ({"messages": [{"role": "user"}]}, 400, "invalid_value", "messages", "content"),
        ({"audio": {"voice": "x"}}, 400, "unsupported", "audio", "not supported"),
        ({"model": "gpt"}, 404, "model_not_found", "model", "Served: scripted"),
        ({"top_logprobs": 3}, 400, "invalid_value", "top_logprobs", "logprobs=true"),
        ({"stream_options": {}}, 400, "invalid_value", "stream_options", "stream=true"),
        ({"min_tokens": 600}, 400, "invalid_value", "min_tokens", ""),
        ({"logit_bias": {"x": 1}}, 400, "invalid_value", "logit_bias", "'x' is not a token id"),
        ({"suffice": {"attention": "aet"}}, 400, "invalid_value", "suffice.attention", "exact"),
        ({"seed": -1}, 400, "invalid_value", "seed", "whole number"),
    ],
)
def test_bad_fields(
    server: Served, fields: dict[str, Any], status: int, code: str, param: str, part: str
) -> None:
    answer = server.chat(**{"max_tokens": 2, **fields})
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    if param != "min_tokens":
        assert (error["code"], error["param"]) == (code, param), error
    assert part in error["message"] and "\n" not in error["message"]


def test_a_prompt_beyond_the_context(server: Served) -> None:
    answer = server.chat("word " * 600)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert server.chat("word " * 600, truncate_prompt_tokens=20, max_tokens=1).status_code == 200


def test_unknown_fields_may_be_allowed(serving: Callable[..., Any]) -> None:
    with serving(allow_unknown_fields=True, served_names=("small",)) as server:
        answer = server.chat(max_tokens=1, temprature=1, model="small")
        assert answer.status_code == 200 and answer.json()["model"] == "small"
        for name, value in OTHERS.items():  # names that somebody knows are never dropped
            answer = server.chat(max_tokens=1, **{name: value})
            assert answer.status_code == 400 and answer.json()["error"]["param"] == name


OTHERS: dict[str, Any] = {
    "repeat_penalty": 1.1,
    "typical_p": 0.9,
    "mirostat": 2,
    "reasoning_format": "none",
}


def test_names_of_other_servers_are_refused_unless_they_ask_for_nothing(server: Served) -> None:
    for name, value, more in (
        ("repeat_penalty", 1.2, "Use 'repetition_penalty'."),
        ("typical_p", 0.5, "'typical_p' is not supported here"),
    ):
        answer = server.chat(max_tokens=1, **{name: value})
        assert answer.status_code == 400 and more in answer.json()["error"]["message"]
    assert server.chat(max_tokens=1, typical_p=1.0, mirostat=0, n_probs=0).status_code == 200


def test_names_of_other_servers_with_the_same_meaning_are_honoured() -> None:
    for name, value, field, same in (
        ("n_predict", 3, "max_tokens", 3),
        ("n_predict", -1, "max_tokens", None),
        ("grammar", 'root ::= "a"', "structured_outputs", {"grammar": 'root ::= "a"'}),
        ("guided_regex", "a+", "structured_outputs", {"regex": "a+"}),
        ("json_schema", {"type": "object"}, "structured_outputs", {"json": {"type": "object"}}),
        ("thinking_budget_tokens", 5, "thinking_token_budget", 5),
    ):
        given = {"messages": [], name: value}
        settle(given, Chat.model_fields, allow_unknown=False)
        assert given.get(field) == same and name not in given
    with pytest.raises(Problem, match="n_predict and max_tokens are the same"):
        settle({"n_predict": 3, "max_tokens": 4}, Chat.model_fields, allow_unknown=True)


# Fields of published schemas that change nothing in an answer's text, and why.
NOTHING = {
    **dict.fromkeys(("user", "safety_identifier", "metadata"), "says who asks"),
    **dict.fromkeys(("store", "service_tier"), "OpenAI's business"),
    **dict.fromkeys(("prompt_cache_key", "prompt_cache_retention"), "prefixes are kept anyway"),
    "prompt_cache_options": "prefixes are kept anyway",
    **dict.fromkeys(
        (
            *("dry_allowed_length", "dry_base", "dry_penalty_last_n", "dry_sequence_breakers"),
            *("dynatemp_exponent", "mirostat_eta", "mirostat_tau", "xtc_threshold"),
        ),
        "of a sampler that other fields switch on, which are refused",
    ),
    "prediction": "a hint that makes OpenAI's answers faster",
    "obfuscation": "padding against readers of the line",
    "timings_per_token": "the last chunk has the times",
}
OF_LLAMA_CPP = (
    "temperature dynatemp_range dynatemp_exponent top_k top_p min_p n_predict n_indent "
    "n_keep stream stop typical_p repeat_penalty repeat_last_n presence_penalty "
    "frequency_penalty dry_multiplier dry_base dry_allowed_length dry_penalty_last_n "
    "dry_sequence_breakers xtc_probability xtc_threshold mirostat mirostat_tau "
    "mirostat_eta grammar json_schema seed ignore_eos logit_bias n_probs min_keep "
    "t_max_predict_ms id_slot cache_prompt return_tokens samplers timings_per_token "
    "return_progress post_sampling_probs response_fields lora top_n_sigma reasoning_format "
    "chat_template_kwargs parse_tool_calls add_generation_prompt reasoning_budget "
)
OF_VLLM = (
    "best_of use_beam_search top_k min_p repetition_penalty length_penalty stop_token_ids "
    "include_stop_str_in_output ignore_eos min_tokens skip_special_tokens "
    "spaces_between_special_tokens truncate_prompt_tokens prompt_logprobs "
    "allowed_token_ids bad_words echo add_generation_prompt continue_final_message "
    "add_special_tokens documents chat_template chat_template_kwargs mm_processor_kwargs "
    "structured_outputs guided_json guided_regex guided_choice guided_grammar priority "
    "request_id logits_processors return_tokens_as_token_ids return_token_ids cache_salt "
    "kv_transfer_params vllm_xargs include_reasoning thinking_token_budget "
)


def test_no_field_of_a_published_schema_is_dropped() -> None:
    openai = pytest.importorskip("openai")
    from openai.types.chat import completion_create_params as params

    assert openai
    published = set(params.CompletionCreateParamsBase.__annotations__)
    assert len(published) > 25
    for name in {*published, *OF_LLAMA_CPP.split(), *OF_VLLM.split()} - set(Chat.model_fields):
        for allow in (False, True):
            given: dict[str, Any] = {name: object()}
            try:
                settle(given, Chat.model_fields, allow_unknown=allow)
            except Problem as problem:
                assert problem.param == name
            else:
                assert given or name in NOTHING, f"{name} is dropped (allow_unknown={allow})"


def test_a_server_may_answer_to_any_name(serving: Callable[..., Any]) -> None:
    with serving(any_model=True, served_names=("small",)) as server:
        answer = server.chat(max_tokens=1, model="gpt-4o")
        assert answer.status_code == 200 and answer.json()["model"] == "small"


@pytest.mark.parametrize(
    ("path", "other"),
    [
        ("/v1/models", "/models"),
        ("/v1/models/scripted", "/models/scripted"),
        ("/health", "/v1/health"),
        ("/version", "/v1/version"),
    ],
)
def test_paths_are_known_with_and_without_v1(path: str, other: str, server: Served) -> None:
    found, same = (httpx2.get(server.url + each) for each in (path, other))
    assert same.status_code == found.status_code and same.json() == found.json()


def test_requests_are_taken_with_and_without_v1(server: Served) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "seed": 1}
    texts = {
        httpx2.post(server.url + path, json=body).json()["choices"][0]["message"]["content"]
        for path in ("/v1/chat/completions", "/chat/completions")
    }
    assert len(texts) == 1
    assert httpx2.post(server.url + "/v1/tokenize", json={"prompt": "a"}).status_code == 200
    assert httpx2.post(server.url + "/moderations", json={}).status_code == 501
    assert httpx2.get(server.url + "/v1/v1/models").status_code == 404
