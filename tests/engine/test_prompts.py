"""Requests that are refused, by the full text of the refusal, before anything runs."""

from __future__ import annotations

from typing import Any

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
