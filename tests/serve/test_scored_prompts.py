"""Log probabilities of prompts in answers.

Tests completion.py, chat.py, answer.py, sample.py and logprobs.py.
"""

from __future__ import annotations

import dataclasses
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from scripted_engine import text_of
from serving import Served, events, until
from serving import real as serving_real
from suffice import LLM, SamplingParams
from suffice.engine.work import Delta, TokenLogprob
from suffice.eval.likelihood import LikelihoodPlan, Pair, score
from suffice.serve.interfaces.logprobs import Echo, of_completion
from suffice.serve.processes import instances
from suffice.serve.processes.pending import merged
from suffice.text.tokenizer import load_tokenizer

PATH = "/v1/completions"
TEXT = "To be, or not to be, that is the question."


@pytest.fixture(scope="module")
def real(words: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(instances, "FIRST_PAUSE", 0.05)
        with serving_real(words, dtype="float32", kv_cache_dtype="float32") as found:
            yield found


@pytest.fixture(scope="module")
def llm(words: Path) -> LLM:
    return LLM(words, threads=1, dtype="float32", kv_cache_dtype="float32")


def choices(server: Served, fields: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the choices of an answer, of a stream as well: text, and log probabilities."""
    answer = server.post(PATH, fields)
    assert answer.status_code == 200, answer.text
    if not fields.get("stream"):
        return list(answer.json()["choices"])
    found: dict[int, dict[str, Any]] = {}
    for each in events(answer)[:-1]:
        for choice in each["choices"]:
            own = found.setdefault(choice["index"], {"text": "", "logprobs": {}})
            own["text"] += choice["text"]
            own["finish_reason"] = choice["finish_reason"]
            for name, values in (choice["logprobs"] or {}).items():
                own["logprobs"].setdefault(name, []).extend(values)
    return [found[at] for at in sorted(found)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_an_echo_has_the_log_probabilities_of_its_prompt(
    server: Served, stream: bool, temperature: float
) -> None:
    """Of several prompts with several samples, which are copies at temperature 0."""
    prompts = [[3, 5, 7], [9], [11, 13]]
    fields = {"prompt": prompts, "n": 2, "echo": True, "logprobs": 1, "max_tokens": 2, "seed": 1}
    found = choices(server, fields | {"stream": stream, "temperature": temperature})
    assert len(found) == 6
    for choice, prompt in zip(found, [each for each in prompts for _ in range(2)], strict=True):
        logs = choice["logprobs"]
        count = len(prompt)
        assert logs["token_logprobs"] == [*[None, -1.0, -2.0][:count], -1.0, -1.0]
        assert logs["top_logprobs"][0] is None and None not in logs["top_logprobs"][1:]
        scripted = [{text_of(token): -1.0 - at} for at, token in enumerate(prompt[1:])]
        assert logs["top_logprobs"][1:count] == scripted
        texts = server.front.text.tokenizer
        assert logs["tokens"][:count] == [texts.decode([token]) for token in prompt]
        assert {len(values) for values in logs.values()} == {count + 2}
        begins = logs["text_offset"]
        for at, text in zip(begins, logs["tokens"], strict=True):
            assert choice["text"][at:].startswith(text)


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_but_the_prompt(server: Served, stream: bool) -> None:
    fields = {"prompt": "ab cd", "echo": True, "logprobs": 0, "max_tokens": 0, "stream": stream}
    (choice,) = choices(server, fields)
    tokens = server.front.text.encode("ab cd", _room(server), special=True)
    assert (choice["text"], choice["finish_reason"]) == ("ab cd", "length")
    assert len(choice["logprobs"]["tokens"]) == len(tokens)
    answer = server.post(PATH, {"prompt": "ab", "max_tokens": 0})
    message = answer.json()["error"]["message"]
    assert answer.status_code == 400 and "must be a whole number of at least 1" in message


def _room(server: Served) -> Any:
    from suffice.serve.http.text import Room

    return Room(server.front.facts.max_model_len, "prompt")


def test_where_tokens_begin(words: Path) -> None:
    """Special tokens in front have no text there; a cut prompt begins within the text."""
    tokenizer = load_tokenizer(words)
    text = "be or é 😀 not"
    tokens = tokenizer.encode(text)
    whole = Echo.of(tokenizer, text, tokens)
    assert whole.text == text and list(whole.offsets) == sorted(whole.offsets)
    for at, own in zip(whole.offsets, whole.tokens, strict=True):
        assert "\ufffd" in own or own in tokenizer.special.values() or text[at:].startswith(own)
    plain = tokenizer.encode(text, special=False)
    assert Echo.of(tokenizer, text, plain).offsets == whole.offsets[len(tokens) - len(plain) :]
    bos = tokenizer.bos_id
    assert bos is not None and plain[0] != bos
    begun = Echo.of(tokenizer, text, [bos, *plain])
    assert begun.offsets == (0, *Echo.of(tokenizer, text, plain).offsets)
    as_tokens = Echo.of(tokenizer, [bos, *plain], [bos, *plain])
    assert as_tokens.text == tokenizer.decode([bos, *plain])
    assert as_tokens.offsets[1] == len(tokenizer.decode([bos]))
    assert Echo.of(tokenizer, text, plain[-2:]).offsets == whole.offsets[-2:]


def test_halves_of_characters_have_one_text() -> None:
    """The most likely of them is the one that is told."""
    entry = tuple(
        TokenLogprob(at, log, rank, text)
        for at, (log, rank, text) in enumerate([(-9.0, 7, "?"), (-1.0, 1, "?"), (-2.0, 2, "a")])
    )
    found = of_completion([entry], 2, 0)
    assert found["top_logprobs"] == [{"?": -1.0, "a": -2.0}]
    assert found["token_logprobs"] == [-9.0]


@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_prompt_logprobs_are_vllms(real: Served, llm: LLM, kind: str) -> None:
    fields = {"max_tokens": 2, "temperature": 0, "prompt_logprobs": 2}
    if kind == "chat":
        tokens = llm.chat_tokens([{"role": "user", "content": TEXT}])
        answer = real.chat(TEXT, **fields).json()
        found = answer["prompt_logprobs"]
        assert "prompt_logprobs" not in real.chat(TEXT, max_tokens=1).json()
    else:
        tokens = llm.tokenizer.encode(TEXT)
        answer = real.post(PATH, {"prompt": TEXT, "n": 2, **fields}).json()
        found, copied = (choice["prompt_logprobs"] for choice in answer["choices"])
        assert found == copied and "prompt_logprobs" not in answer
        one = real.post(PATH, {"prompt": TEXT, "max_tokens": 1}).json()
        assert "prompt_logprobs" not in one["choices"][0]
    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=2)
    (output,) = llm.generate([tokens], params)
    wanted = [
        None if each is None else {str(t): dataclasses.asdict(e) for t, e in each.items()}
        for each in output.prompt_logprobs or ()
    ]
    assert found == wanted and found[0] is None
    assert [next(iter(each)) for each in found[1:]] == [str(token) for token in tokens[1:]]


@pytest.mark.parametrize("path", [PATH, "/v1/chat/completions"])
@pytest.mark.parametrize("value", [0, 3])
def test_a_stream_has_no_place_for_them(server: Served, path: str, value: int) -> None:
    asked = {"prompt": "ab"} if path == PATH else {"messages": [{"role": "user", "content": "a"}]}
    answer = server.post(path, {**asked, "stream": True, "prompt_logprobs": value})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "invalid_value")
    assert error["param"] == "prompt_logprobs"
    assert error["message"] == "prompt_logprobs needs stream=false"
    assert server.post(path, {**asked, "prompt_logprobs": 21}).status_code == 400
    short = server.post(PATH, {"prompt": [1], "prompt_logprobs": value}).json()
    assert short["choices"][0]["prompt_logprobs"] == [None]


def test_other_numbers_for_the_echo_and_the_field(real: Served) -> None:
    fields = {"prompt": TEXT, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 3}
    (both,) = choices(real, fields | {"prompt_logprobs": 1})
    (echo,) = choices(real, fields)
    (field,) = choices(real, fields | {"prompt_logprobs": 1, "echo": False, "logprobs": None})
    assert both["logprobs"] == echo["logprobs"]
    assert both["prompt_logprobs"] == field["prompt_logprobs"]
    assert {len(each) for each in both["prompt_logprobs"][1:]} <= {1, 2}


def parsed(outputs: dict[str, Any], contexts: list[int]) -> list[tuple[float, bool]]:
    """Return sums and whether the text is greedy, as lm-evaluation-harness takes them."""
    found = []
    for choice, context in zip(
        sorted(outputs["choices"], key=itemgetter("index")), contexts, strict=True
    ):
        logs = choice["logprobs"]["token_logprobs"][context:-1]
        tops = choice["logprobs"]["top_logprobs"][context:-1]
        greedy = all(own == max(top.values()) for own, top in zip(logs, tops, strict=True))
        found.append((sum(logs), greedy))
    return found


def test_requests_of_lm_evaluation_harness_give_the_sums_of_our_evaluation(
    real: Served, llm: LLM
) -> None:
    """Its `local-completions` asks for one token after context and continuation."""
    long, other = llm.tokenizer.encode(TEXT * 5), llm.tokenizer.encode("jumps over")
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    (greedy,) = llm.generate([other], params)
    pairs = [
        Pair(long, other),
        Pair(long[:20], long[20:]),
        Pair(other, list(greedy.outputs[0].token_ids)),
        Pair(other[:1], long[:1]),
    ]
    body = {
        "model": "tiny",
        "prompt": [pair.context + pair.continuation for pair in pairs],
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }
    ours = dict(score(llm.runner, pairs, LikelihoodPlan("prefill")))
    for _ in range(2):  # the second time with all prompts in the store
        answer = real.post(PATH, body).json()
        found = parsed(answer, [len(pair.context) for pair in pairs])
        for at, (log, is_greedy) in enumerate(found):
            assert log == pytest.approx(ours[at].log, abs=1e-4)
            assert is_greedy == ours[at].greedy
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert [greedy for _, greedy in found][2]


def generated(instance: Any) -> int:
    """Return the tokens of the one request that is under way; -1 without one."""
    return max((ticket.generated for ticket in [*instance.tickets.values()]), default=-1)


def test_a_killed_engine_tells_them_once(real: Served) -> None:
    """Before the first token, and after it."""
    fields = {"prompt": TEXT * 8, "n": 2, "seed": 3, "max_tokens": 400, "ignore_eos": True}
    fields |= {"echo": True, "logprobs": 1}
    (instance,) = real.front.instance.members
    for stream, least in ((False, 0), (True, 0), (False, 6), (True, 6)):
        alone = choices(real, fields)
        with ThreadPoolExecutor() as pool:
            before = instance.restarts
            ask = pool.submit(choices, real, fields | {"stream": stream})
            until(lambda least=least: generated(instance) >= least)
            os.kill(instance.pid, signal.SIGKILL)
            found = ask.result()
        assert instance.restarts == before + 1
        for one, other in zip(found, alone, strict=True):
            assert one["text"] == other["text"]
            for name in ("tokens", "token_logprobs", "top_logprobs"):
                assert one["logprobs"][name] == other["logprobs"][name]


def test_a_reader_that_lags_gets_them_with_the_rest() -> None:
    scored = Delta("a", 0, "x", (1,), prompt_logprobs=())
    plain = Delta("a", 0, "y", (2,))
    assert merged(scored, plain).prompt_logprobs == ()
    assert merged(plain, scored).prompt_logprobs == ()
    assert merged(plain, plain).prompt_logprobs is None


def test_ids_outside_of_the_vocabulary_are_refused(server: Served) -> None:
    for token in (100_000, -1):
        answer = server.post(PATH, {"prompt": [1, token], "echo": True, "logprobs": 1})
        assert answer.status_code == 400, answer.text
        assert f"{token} is not a token id" in answer.json()["error"]["message"]
