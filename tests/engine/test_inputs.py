"""Requests that are refused, by the full text of the refusal, before anything runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fake_engine import V, fake_llm, runner_of
from suffice import SamplingParams
from suffice.errors import InputError

GREEDY = SamplingParams(temperature=0, max_tokens=8)


@pytest.mark.parametrize(
    ("prompts", "params", "message"),
    [
        ("", None, "the prompt is empty: give some text"),
        ([[]], None, "the prompt is empty: give at least one token"),
        ([], None, "prompts: the list is empty; give at least one prompt"),
        (
            7,
            None,
            "prompts: must be text, token ids, {'prompt_token_ids': [...]} or a list of these, "
            "not int",
        ),
        *(
            (
                given,
                None,
                f"{name}: must be text or token ids, not {kind}; "
                "decode bytes first, as in data.decode()",
            )
            for given, name, kind in [
                (b"ab", "prompts", "bytes"),
                (b"", "prompts", "bytes"),
                (bytearray(b"ab"), "prompts", "bytearray"),
                (memoryview(b"ab"), "prompts", "memoryview"),
                ([b"ab"], "prompt", "bytes"),
                (["ab", bytearray(b"ab")], "prompt", "bytearray"),
                ({"prompt": b"ab"}, "prompt", "bytes"),
                ({"prompt_token_ids": b"\x03"}, "prompt", "bytes"),
                ([memoryview(b"ab")], "prompt", "memoryview"),
            ]
        ),
        ([None], None, "prompt: must be text or token ids, not NoneType"),
        (
            {"prompt_tokens": [1]},
            None,
            "unknown prompt key 'prompt_tokens'. Did you mean 'prompt_token_ids'? "
            "Known: prompt, prompt_token_ids",
        ),
        ({}, None, "prompt: give either 'prompt' or 'prompt_token_ids'"),
        ([V], None, "prompt_token_ids: 14 is not a token id; this model's are 0 to 13"),
        ([3, -1], None, "prompt_token_ids: -1 is not a token id; this model's are 0 to 13"),
        (
            [3] * 64,
            None,
            "the prompt has 64 tokens: must be at most 63, one less than the context length "
            "(max_model_len)",
        ),
        ("a\ud800", None, "the prompt is not valid text (UTF-8): U+D800 at character 2"),
        (
            [np.float64(3)],
            None,
            "prompt: must be text or token ids, not float64",
        ),
        (
            [3] * 60,
            SamplingParams(min_tokens=5),
            "min_tokens=5: must not be more than 4, the tokens that the prompt leaves in the "
            "context",
        ),
        (
            "x",
            [SamplingParams()] * 2,
            "sampling_params: 2 given for 1 prompts; give one for all, or one for each",
        ),
        (
            "x",
            {"n": 1},
            "sampling_params: must be a SamplingParams or a list of them, not dict",
        ),
        (
            "x",
            SamplingParams(n=17),
            "n=17: must not be more than max_num_seqs=16, the samples that run together",
        ),
        (
            "x",
            SamplingParams(logprobs=15),
            "logprobs=15: must not be more than 14, the size of the vocabulary",
        ),
        (
            "x",
            SamplingParams(logit_bias={20: 1.0}),
            "logit_bias: 20 is not a token id; this model's are 0 to 13",
        ),
    ],
)
def test_bad_requests_are_refused_before_anything_runs(
    prompts: Any, params: Any, message: str
) -> None:
    llm = fake_llm()
    with pytest.raises(InputError) as error:
        llm.generate(prompts, params)
    assert str(error.value) == message
    assert runner_of(llm).prefilled == []


def test_one_bad_prompt_of_many_is_refused_before_anything_runs() -> None:
    llm = fake_llm()
    with pytest.raises(InputError, match="empty"):
        llm.generate(["x", ""])
    assert runner_of(llm).prefilled == []
    after, fresh = llm.generate("x", GREEDY), fake_llm().generate("x", GREEDY)
    assert after[0].outputs == fresh[0].outputs, "and leaves nothing behind"


def test_stream_refuses_several_prompts_or_samples_at_the_call() -> None:
    with pytest.raises(InputError, match="stream: takes one prompt, 2 given"):
        fake_llm().stream(["x", "ab"])
    with pytest.raises(InputError, match="n=2: must be 1 when the text is streamed"):
        fake_llm().stream("x", SamplingParams(n=2))
    with pytest.raises(InputError, match="the conversation is empty: give at least one message"):
        fake_llm().chat([])


def test_numpys_integers_are_token_ids() -> None:
    ids = [np.int64(3), np.uint16(4)]
    assert fake_llm().generate(ids, GREEDY)[0].prompt_token_ids == (3, 4)
    with pytest.raises(InputError, match="True is not a token id"):
        fake_llm().generate([3, True], GREEDY)


FORM = "{'role': ..., 'content': ...}"
LISTS = f"messages: must be a list of {FORM}, or a list of such lists, not "
PARTS = "must be text or a list of {'type': 'text', 'text': ...}, not"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("hi", LISTS + "str"),
        ({"role": "user", "content": "x"}, LISTS + "dict"),
        (3, LISTS + "int"),
        ([], "the conversation is empty: give at least one message"),
        ([[]], "the conversation is empty: give at least one message"),
        ([["x"]], f"messages[0]: must be {FORM}, not str"),
        ([None], f"messages[0]: must be {FORM}, not NoneType"),
        ([{"content": "x"}], "messages[0]: needs a 'role', such as 'user'"),
        ([{"role": "user", "content": 3}], f"messages[0]: content {PARTS} int"),
        ([{"role": "user"}], f"messages[0]: content {PARTS} NoneType"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}],
            "messages[0]: content[0] is of type 'image_url': only 'text' parts are supported",
        ),
        (
            [{"role": "user", "content": ["x"]}],
            "messages[0]: content[0] is of type 'str': only 'text' parts are supported",
        ),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            "messages[0]: content[0] needs a 'text'",
        ),
        (
            [{"role": "user", "content": "x"}, {"role": "user", "content": "\udce9"}],
            "messages[1]: content is not valid text (UTF-8): byte 0xe9 at character 1",
        ),
    ],
)
def test_bad_conversations_are_refused(messages: Any, message: str) -> None:
    llm = fake_llm()
    with pytest.raises(InputError) as error:
        llm.chat(messages, GREEDY)
    assert str(error.value) == message
    assert runner_of(llm).prefilled == []


def test_parts_of_text_are_joined() -> None:
    parts = [{"type": "text", "text": text} for text in ("ab", "x")]
    (joined,) = fake_llm().chat([{"role": "user", "content": parts}], GREEDY)
    talk = [{"role": "user", "content": "ab\nx"}]
    (plain,) = fake_llm().chat([talk], GREEDY)
    assert joined.prompt_token_ids == plain.prompt_token_ids
