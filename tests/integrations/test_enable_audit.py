"""Audits in models of transformers: those of suffice's own engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import suffice.integrations.transformers as st
import tiny
from batches import generate, prompts
from hf_reference import load
from suffice import LLM, SamplingParams
from suffice.errors import InputError

LENGTH, NEW, EVERY = 70, 50, 3
LOSSY = (
    {"attention": "certified:eps=0.3"},
    {"attention": "art:change=0.5,angle=0.5,patience=1,block=16"},
    {"attention": "aet:keys=0.3,block=1", "policy": "snapkv:rank_only=true,window=8"},
)
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("llama"), "llama", tokenizer=True)


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return load(folder, torch.float32)


@pytest.mark.parametrize("options", LOSSY, ids=lambda options: options["attention"][:5])
def test_figures_are_the_engine_s(folder: Path, model: Any, options: dict[str, str]) -> None:
    prompt = prompts(1, LENGTH)["input_ids"]
    llm = LLM(folder, dtype="float32", threads=1, audit=EVERY, **options)
    params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)
    [output] = llm.generate({"prompt_token_ids": prompt[0].tolist()}, params)
    with st.enable(model, audit=EVERY, **options) as enabled:
        tokens = generate(model, 1, LENGTH, max_new_tokens=NEW)
    assert tokens[0, LENGTH:].tolist() == list(output.outputs[0].token_ids)
    assert enabled.trace is not None
    found, expected = enabled.trace.audit, llm.runner.trace.audit
    assert found is not None and expected is not None
    assert found.tokens == expected.tokens == len(range(0, NEW - 1, EVERY)) and found.beyond == 0
    assert expected.most[1].max() > 0.01, "the technique has an error"
    # A bound over the true share, where that is tiny, shows how differently the two round.
    np.testing.assert_allclose(found.sums, expected.sums, rtol=1e-2, atol=1e-4)
    np.testing.assert_allclose(found.most[:2], expected.most[:2], rtol=1e-3, atol=1e-4)


def test_each_request_s_rows_are_audited_without_padding(model: Any) -> None:
    with st.enable(model, attention="certified:eps=0.3", audit=1) as enabled:
        audited = generate(model, 3, max_new_tokens=9)
        trace = enabled.trace
    with st.enable(model, attention="certified:eps=0.3") as enabled:
        assert torch.equal(generate(model, 3, max_new_tokens=9), audited)
        assert enabled.trace is not None and enabled.trace.audit is None
    assert trace is not None and trace.audit is not None
    assert trace.audit.tokens == 3 * 8 and trace.audit.shape == (3, 4)


def test_nothing_to_audit_is_refused(model: Any) -> None:
    with pytest.raises(InputError, match="leaves nothing out of decode steps"):
        st.enable(model, audit=4)
    with pytest.raises(InputError, match="audit=0"):
        st.enable(model, attention="art", audit=0)
