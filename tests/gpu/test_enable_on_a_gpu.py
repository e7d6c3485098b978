"""Models of transformers on a GPU: the same tokens, by kernels for GPUs.

Without a GPU the model is on the CPU and the kernels are run by Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import suffice.integrations.transformers as st
import tiny
from batches import GREEDY, PADDING, generate, prompts
from gpu.rows import DEVICE
from hf_reference import as_cache, load
from suffice import LLM, SamplingParams
from suffice.errors import InputError
from suffice.integrations.device_requests import DeviceRequests

TOKENS = 3
LOSSY = [
    "aet:keys=0.5,globals=16,locals=8",
    "art:change=0.5,angle=0.5,patience=1,block=16",
    "certified:eps=0.3",
    "skip_softmax:factor=20,block=16",
]
pytestmark = pytest.mark.usefixtures("one_thread", "on_a_gpu")


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(st, "requests_on", lambda device: DeviceRequests)


@pytest.fixture(scope="module")
def models(checkpoints: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda family: load(checkpoints(family), torch.float32).to(DEVICE)


def tokens_of(model: Any, **options: Any) -> torch.Tensor:
    return generate(model, max_new_tokens=TOKENS, **options)


@pytest.mark.parametrize(
    ("family", "attention"),
    [
        ("llama", "exact"),
        ("mistral", "exact"),  # has a window
        ("gemma3", "art:change=0"),
        ("qwen3", "certified:eps=0"),
        ("llama", "skip_softmax:factor=0"),
    ],
)
def test_at_its_exact_limit_a_technique_gives_the_tokens_of_transformers(
    family: str, attention: str, models: Callable[[str], Any]
) -> None:
    model = models(family)
    expected = tokens_of(model)
    with st.enable(model, attention=attention) as enabled:
        assert torch.equal(tokens_of(model), expected)
    trace = enabled.trace
    assert trace is not None and trace.steps == TOKENS - 1 and trace.key_rows_read > 0


@pytest.mark.parametrize("attention", LOSSY)
def test_with_thresholds_the_tokens_are_those_of_the_engine(attention: str, tmp_path: Path) -> None:
    folder = tiny.make(tmp_path, "llama", tokenizer=True)
    prompt, count = prompts(1)["input_ids"], 5
    llm = LLM(folder, dtype="float32", threads=1, attention=attention)
    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    [output] = llm.generate({"prompt_token_ids": prompt[0].tolist()}, params)
    model = load(folder, torch.float32).to(DEVICE)
    with st.enable(model, attention=attention) as enabled:
        found = generate(model, 1, max_new_tokens=count)
    assert found[0, prompt.shape[1] :].tolist() == list(output.outputs[0].token_ids)
    trace, theirs = enabled.trace, llm.runner.trace
    assert trace is not None and trace.rows_held == theirs.rows_held
    if not attention.startswith("certified"):  # queries are rounded otherwise
        assert (trace.rows[:2] == theirs.rows[:2]).all()


def test_a_padded_request_gives_the_tokens_that_it_gives_alone(
    models: Callable[[str], Any],
) -> None:
    model = models("llama")
    with st.enable(model, attention=LOSSY[1]):
        together = tokens_of(model)
        for row, padding in enumerate(PADDING[:2]):
            prompt = prompts(3)["input_ids"][row : row + 1, padding:].to(DEVICE)
            alone = model.generate(prompt, **{**GREEDY, "max_new_tokens": TOKENS})
            assert torch.equal(together[row, padding:], alone[0])


def test_a_cache_is_cropped_and_reordered(models: Callable[[str], Any]) -> None:
    model = models("llama")
    prompt = prompts(1)["input_ids"].to(DEVICE)
    options = {"max_new_tokens": TOKENS, "do_sample": False}
    for given in ({"num_beams": 2}, {"prompt_lookup_num_tokens": 2}):
        expected = model.generate(prompt, **options, **given)
        with st.enable(model, attention="certified:eps=0") as enabled:
            assert torch.equal(model.generate(prompt, **options, **given), expected)
        assert enabled.trace is not None and enabled.trace.steps > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"attention": "tiers"},
            "attention 'tiers' on a GPU: must be aet, art, certified, exact, skip_softmax",
        ),
        ({"policy": "snapkv:0.5"}, "a policy on a GPU: must be 'full'"),
        ({"attention": "art", "audit": 2}, "audit=2 on a GPU: must be left out"),
        ({"attention": "art:block=16,order=sketch"}, "must be blocks, newest first"),
    ],
)
def test_what_is_refused(
    options: dict[str, Any], message: str, models: Callable[[str], Any]
) -> None:
    with pytest.raises(InputError, match=message):
        st.enable(models("llama"), **options)


def test_several_tokens_at_once_cannot_be_undone(models: Callable[[str], Any]) -> None:
    model = models("llama")
    with st.enable(model, attention=LOSSY[0]) as enabled:
        cache = enabled.new_cache()
        ids = prompts(1)["input_ids"].to(DEVICE)
        model(ids, **as_cache(cache))
        with pytest.raises(InputError, match="3 tokens in a step with attention 'aet'"):
            model(ids[:, :3], **as_cache(cache))
        model(ids[:, :1], **as_cache(cache))
        with pytest.raises(InputError, match="keeps a state that cannot be undone"):
            cache.crop(-1)
