"""Every value that `SamplingParams` refuses, by the full text of the refusal."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from suffice.errors import InputError
from suffice.sampling_params import SamplingParams

BOOL = "must be True or False"
SIDED = "must be a number in [-2, 2]"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"n": 0}, "n=0: must be a whole number of at least 1"),
    ({"n": 1.5}, "n=1.5: must be a whole number of at least 1"),
    ({"n": True}, "n=True: must be a whole number of at least 1"),
    ({"presence_penalty": 2.1}, f"presence_penalty=2.1: {SIDED}"),
    ({"frequency_penalty": -3}, f"frequency_penalty=-3: {SIDED}"),
    ({"repetition_penalty": 0}, "repetition_penalty=0: must be a number in [0.01, 100]"),
    ({"repetition_penalty": 1e-300}, "repetition_penalty=1e-300: must be a number in [0.01, 100]"),
    ({"repetition_penalty": 101}, "repetition_penalty=101: must be a number in [0.01, 100]"),
    ({"temperature": -1}, "temperature=-1: must be a number of at least 0"),
    ({"temperature": float("nan")}, "temperature=nan: must be a number of at least 0"),
    ({"temperature": float("inf")}, "temperature=inf: must be a number of at least 0"),
    ({"temperature": "0.5"}, "temperature='0.5': must be a number of at least 0"),
    ({"top_p": -0.1}, "top_p=-0.1: must be a number in [0, 1]"),
    ({"top_p": 1.5}, "top_p=1.5: must be a number in [0, 1]"),
    (
        {"top_k": -2},
        "top_k=-2: must be a whole number from 1 to 2**31 - 1, or 0 or -1 for all tokens",
    ),
    ({"min_p": -0.1}, "min_p=-0.1: must be a number in [0, 1]"),
    ({"min_p": 1.1}, "min_p=1.1: must be a number in [0, 1]"),
    ({"seed": -1}, "seed=-1: must be a whole number in [0, 2**64), or None"),
    ({"seed": 2**64}, f"seed={2**64}: must be a whole number in [0, 2**64), or None"),
    ({"stop": 3}, "stop=3: must be a list of strings, or None"),
    ({"stop": [""]}, "stop=['']: every entry must be a string that is not empty"),
    ({"stop": ""}, "stop=('',): every entry must be a string that is not empty"),
    (
        {"stop": ["a", "\udcff"]},
        "stop: '\\udcff' is not valid text (UTF-8): byte 0xff at character 1",
    ),
    (
        {"bad_words": ["a\ud800"]},
        "bad_words: 'a\\ud800' is not valid text (UTF-8): U+D800 at character 2",
    ),
    ({"stop_token_ids": 2}, "stop_token_ids=2: must be a list of token ids, or None"),
    (
        {"stop_token_ids": [1, -2]},
        "stop_token_ids: -2 is not a token id (a whole number of at least 0)",
    ),
    ({"ignore_eos": 1}, f"ignore_eos=1: {BOOL}"),
    ({"skip_special_tokens": None}, f"skip_special_tokens=None: {BOOL}"),
    ({"include_stop_str_in_output": "no"}, f"include_stop_str_in_output='no': {BOOL}"),
    ({"max_tokens": 0}, "max_tokens=0: must be a whole number of at least 1, or None"),
    ({"min_tokens": -1}, "min_tokens=-1: must be a whole number of at least 0"),
    ({"logprobs": -1}, "logprobs=-1: must be a whole number of at least 0, or None"),
    (
        {"prompt_logprobs": -1},
        "prompt_logprobs=-1: must be a whole number of at least 0, or None",
    ),
    ({"logit_bias": [3]}, "logit_bias=[3]: must map token ids to numbers, or be None"),
    (
        {"logit_bias": {"3": 1}},
        "logit_bias: '3' is not a token id (a whole number of at least 0)",
    ),
    ({"logit_bias": {3: 101}}, "logit_bias of token 3: 101 must be a number in [-100, 100]"),
    (
        {"allowed_token_ids": []},
        "allowed_token_ids=[]: must hold at least one token id, or be None",
    ),
    (
        {"allowed_token_ids": [True]},
        "allowed_token_ids: True is not a token id (a whole number of at least 0)",
    ),
    ({"marked_token_ids": list(range(33))}, "marked_token_ids: must hold at most 32 token ids"),
    ({"bad_words": "word"}, "bad_words='word': must be a list of strings, or None"),
    (
        {"structured_outputs": "json"},
        "structured_outputs='json': must map one of json, regex, choice, grammar, json_object to "
        "its value, or be None",
    ),
    ({"min_tokens": 20}, "min_tokens=20: must not be more than max_tokens=16"),
    (
        {"n": 4, "temperature": 0},
        "n=4 with temperature=0: greedy samples are all the same; use n=1 or a temperature above 0",
    ),
]


@pytest.mark.parametrize(("values", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_bad_value_is_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        SamplingParams(**values)
    assert str(error.value) == message


def test_every_field_has_a_refusal_tested() -> None:
    tested = {name for values, _ in REFUSED for name in values}
    assert tested == {field.name for field in dataclasses.fields(SamplingParams)}


def test_the_defaults_are_those_users_know() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k) == (1, 1.0, 1.0, 0)
    assert (params.min_p, params.max_tokens, params.min_tokens) == (0.0, 16, 0)
    assert (params.seed, params.logprobs, params.stop, params.stops) == (None, None, None, ())
    assert not params.penalized
    assert not params.greedy


def test_exactly_so_many_tokens_may_be_asked_for() -> None:
    assert SamplingParams(min_tokens=5, max_tokens=5).min_tokens == 5


def test_one_stop_string_is_a_list_of_one() -> None:
    assert SamplingParams(stop="END") == SamplingParams(stop=["END"])
    assert SamplingParams(stop="END").stops == ("END",)


def test_params_do_not_change_with_what_they_were_made_of() -> None:
    bias, stop = {1: 2.0}, ["a"]
    params = SamplingParams(logit_bias=bias, stop=stop)
    bias[1], stop[0] = 3.0, "b"
    assert params == SamplingParams(logit_bias={1: 2.0}, stop=["a"])
    assert pickle.loads(pickle.dumps(params)) == params


@pytest.mark.parametrize(("temperature", "greedy"), [(0, True), (9e-6, True), (1e-5, False)])
def test_hardly_any_temperature_is_greedy(temperature: float, greedy: bool) -> None:
    assert SamplingParams(temperature=temperature).greedy is greedy
