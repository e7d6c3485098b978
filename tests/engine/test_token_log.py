"""Log probabilities of a step's tokens."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fake_engine import fake_llm, mixed
from suffice import SamplingParams, sampling


def damaged(history: list[int]) -> Any:
    """Infinite for a token, if the prompt starts with 3."""
    logits = mixed(history)
    if history[0] == 3 and len(history) > 2:
        logits[6] = math.inf
    return logits


def test_a_request_without_log_probabilities_ends_alone() -> None:
    params = SamplingParams(
        allowed_token_ids=[4, 5], max_tokens=4, logprobs=2, seed=1, ignore_eos=True
    )
    broken, whole = fake_llm(damaged).generate([[3], [4]], params)
    assert broken.error == "the model's largest logit is inf: its weights may be damaged"
    assert broken.outputs[0].finish_reason == "abort"
    assert len(broken.outputs[0].logprobs or ()) == 2
    assert whole.error is None
    assert len(whole.outputs[0].logprobs or ()) == 4


def test_a_step_computes_them_for_all_requests_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    top_logprobs = sampling.top_logprobs

    def counted(logits: Any, tokens: Any, counts: Any) -> Any:
        calls.append(len(logits))
        return top_logprobs(logits, tokens, counts)

    monkeypatch.setattr(sampling, "top_logprobs", counted)
    params = [SamplingParams(max_tokens=3, logprobs=n, seed=1, ignore_eos=True) for n in (1, 0, 4)]
    outputs = fake_llm().generate([[3], [4], [5]], params)
    assert calls[:3] == [1, 1, 1] and calls[3:] == [3, 3], "each prompt, then each step"
    for output, count in zip(outputs, (1, 0, 4), strict=True):
        for entry in output.outputs[0].logprobs or ():
            assert count <= len(entry) <= count + 1
