"""Models of transformers on a GPU: the same tokens, by kernels for GPUs.

Without a GPU the model is on the CPU and the kernels are run by Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import suffice.integrations.transformers as st
import tiny
from batches import GREEDY, PADDING, generate, prompts
from calibrating import write_levels
from gpu.device_rows import DEVICE
from hf_reference import as_cache, load
from suffice import LLM, SamplingParams
from suffice.attention import calibration
from suffice.errors import InputError
from suffice.integrations.device_requests import DeviceRequests
from suffice.integrations.requests import Requests

TOKENS = 3
LOSSY = [
    "aet:keys=0.5,globals=16,locals=8",
    "art:change=0.5,angle=0.5,patience=1,block=16",
    "certified:eps=0.3",
    "skip_softmax:factor=20,block=16",
    "art:change=0.5,angle=0.5,patience=1,block=16,order=sketch",
]
pytestmark = pytest.mark.usefixtures("one_thread", "on_a_gpu")


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(st, "requests_on", lambda device: DeviceRequests)


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
    family: str, attention: str, model_of: Callable[[str], Any]
) -> None:
    model = model_of(family)
    expected = tokens_of(model)
    with st.enable(model, attention=attention) as enabled:
        assert torch.equal(tokens_of(model), expected)
    trace = enabled.trace
    assert trace is not None and trace.steps == TOKENS - 1 and trace.key_rows_read > 0


@pytest.mark.parametrize(
    ("family", "options"),
    [
        *(("llama", {"attention": attention}) for attention in LOSSY),
        ("llama", {"attention": "tiers:eps=0.5,bounded=true"}),
        ("llama", {"softmax": "exaq:2"}),
        ("mistral", {"softmax": "exaq_km:3,tail=flush"}),  # has a window
    ],
)
def test_with_thresholds_the_tokens_are_those_of_the_engine(
    family: str, options: dict[str, Any], tmp_path: Path
) -> None:
    folder = tiny.shallow(tmp_path, family)
    if "softmax" in options:
        write_levels(tmp_path / "levels.json", folder, family, layers=2, heads=4)
        options = {**options, "calibration": tmp_path / "levels.json"}
    prompt, count = prompts(1)["input_ids"], 5 if options.get("attention") in LOSSY else TOKENS
    llm = LLM(folder, dtype="float32", threads=1, **options)
    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    [output] = llm.generate({"prompt_token_ids": prompt[0].tolist()}, params)
    model = load(folder, torch.float32).to(DEVICE)
    with st.enable(model, checkpoint=folder, **options) as enabled:
        found = generate(model, 1, max_new_tokens=count)
    assert found[0, prompt.shape[1] :].tolist() == list(output.outputs[0].token_ids)
    trace, theirs = enabled.trace, llm.runner.trace
    assert trace is not None and trace.rows_held == theirs.rows_held
    if options.get("attention") in (
        LOSSY[2],
        LOSSY[4],
    ):  # for sketches queries are rounded otherwise
        assert (trace.rows[4] == theirs.rows[4]).all()
        return
    assert (trace.rows[1] == theirs.rows[1]).all()
    # A window's keys are read from the beginning of a tile on the CPU.
    assert family == "mistral" or (trace.rows[[0, 4]] == theirs.rows[[0, 4]]).all()
    assert trace.estimates is theirs.estimates and trace.confidence == theirs.confidence
    assert trace.bounds.softmaxes == theirs.bounds.softmaxes
    for name in ("missing", "shift"):
        for ours, other in ((trace, theirs), (trace.bounds, theirs.bounds)):
            assert getattr(ours, name) == pytest.approx(getattr(other, name), rel=1e-3, abs=1e-5)


def test_a_padded_request_gives_the_tokens_that_it_gives_alone(
    model_of: Callable[[str], Any],
) -> None:
    model = model_of("llama")
    with st.enable(model, attention=LOSSY[1]):
        together = tokens_of(model)
        for row, padding in enumerate(PADDING[:2]):
            prompt = prompts(3)["input_ids"][row : row + 1, padding:].to(DEVICE)
            alone = model.generate(prompt, **{**GREEDY, "max_new_tokens": TOKENS})
            assert torch.equal(together[row, padding:], alone[0])


def test_a_cache_is_cropped_and_reordered(model_of: Callable[[str], Any]) -> None:
    model = model_of("llama")
    prompt = prompts(1)["input_ids"].to(DEVICE)
    options = {"max_new_tokens": TOKENS, "do_sample": False}
    for given in ({"num_beams": 2}, {"prompt_lookup_num_tokens": 2}):
        expected = model.generate(prompt, **options, **given)
        with st.enable(model, attention="certified:eps=0") as enabled:
            assert torch.equal(model.generate(prompt, **options, **given), expected)
        assert enabled.trace is not None and enabled.trace.steps > 0


def rewritten(model: Any, options: dict[str, Any]) -> list[torch.Tensor]:
    """Return logits of steps between which tokens are dropped and requests change places."""
    ids = prompts(2)["input_ids"].to(model.device)
    found = []
    with torch.no_grad(), st.enable(model, **options) as enabled:
        cache = enabled.new_cache()
        model(ids, **as_cache(cache))
        for change in (lambda: cache.crop(-2), lambda: cache.reorder_cache(torch.tensor([1, 0]))):
            model(ids[:, :3], **as_cache(cache))
            change()
            found.append(model(ids[:, 9:10], **as_cache(cache)).logits.cpu())
    return found


@pytest.mark.parametrize("options", [{"softmax": "exaq:2"}])
def test_what_a_technique_keeps_is_cropped_and_reordered_as_on_the_cpu(
    options: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tiny.make(tmp_path / "model", "llama", num_hidden_layers=1)
    if "softmax" in options:
        write_levels(tmp_path / "levels.json", folder, "llama", layers=1, heads=4)
        options = {**options, "calibration": tmp_path / "levels.json"}
    ours = rewritten(load(folder, torch.float32).to(DEVICE), options)
    monkeypatch.setattr(st, "requests_on", lambda device: Requests)
    for found, expected in zip(ours, rewritten(load(folder, torch.float32), options), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5 * float(expected.abs().max()))


def test_bases_are_cropped_and_reordered(model_of: Callable[..., Any]) -> None:
    """Not as on the CPU, where weights of values by bases have 8 bits."""
    model, ids, turned = model_of("llama", 1), prompts(2)["input_ids"].to(DEVICE), [1, 0]
    with torch.no_grad(), st.enable(model, attention="tiers:eps=1,skip=0") as enabled:
        cache, plain = enabled.new_cache(), enabled.new_cache()
        for own, new in ((cache, 2), (plain, 1)):
            model(ids, **as_cache(own))
            model(ids[:, :new], **as_cache(own))
        cache.crop(-1)
        cache.reorder_cache(torch.tensor(turned))
        found = model(ids[turned, 9:10], **as_cache(cache)).logits[turned].cpu()
        expected = model(ids[:, 9:10], **as_cache(plain)).logits.cpu()
    np.testing.assert_allclose(found, expected, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "tiers:sample=8"}, "tiers: sample=8 on a GPU: must be 0"),
        ({"attention": "skip_softmax", "policy": "quest"}, "policy 'quest' with attention 'skip_s"),
        ({"policy": "h2o:0.5"}, "policy 'h2o' on a GPU: must be full, pyramidkv, quest, snapkv"),
        ({"policy": "streaming:rank_only"}, "policy 'streaming' on a GPU: must evict"),
        ({"attention": "aet", "policy": "snapkv"}, "policy 'snapkv' with attention 'aet' on a GPU"),
        ({"attention": "aet:order=sketch"}, "aet: order=sketch on a GPU: must be newest"),
        ({"attention": "aet:block=1"}, "aet: block=1 on a GPU: must be 16"),
        (
            {"softmax": "exaq", "attention": "art"},
            "softmax 'exaq' with attention 'art' on a GPU: the attention must be 'exact'",
        ),
        ({"softmax": "exaq_km:3,prefill=true"}, "softmax=exaq_km:prefill=true on a GPU: must be"),
    ],
)
def test_what_is_refused(
    options: dict[str, Any], message: str, model_of: Callable[[str], Any]
) -> None:
    if "softmax" in options:
        layer = calibration.LayerInputs(2.0, -20.0)
        found = calibration.Calibration("c", "m", "ab12", 4, (layer,), {}, {})
        options = {**options, "calibration": found}
    with pytest.raises(InputError, match=message):
        st.enable(model_of("llama"), **options)


def test_a_model_that_was_moved_is_refused(
    model_of: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of("llama")
    with st.enable(model, policy="snapkv:0.5") as enabled:
        monkeypatch.setattr(enabled, "_device", torch.device("cuda:7"))
        with pytest.raises(InputError, match=f"was enabled on 'cuda:7' and is on '{model.device}'"):
            enabled.new_cache()


@pytest.mark.parametrize("size", [8, 24, 272])
def test_sizes_of_heads_that_kernels_lack_are_refused_at_once(size: int, tmp_path: Path) -> None:
    model = load(tiny.make(tmp_path, "llama", num_hidden_layers=1, head_dim=size), torch.float32)
    with pytest.raises(InputError, match=f"heads of size {size} on a GPU: must be a multiple"):
        st.enable(model)


def test_a_cache_keeps_its_type(model_of: Callable[..., Any]) -> None:
    model, ids = model_of("llama", 1), prompts(1)["input_ids"].to(DEVICE)
    with torch.no_grad(), st.enable(model) as enabled:
        cache = enabled.new_cache()
        model(ids, **as_cache(cache))
        key = torch.zeros(1, 2, 1, 16, dtype=torch.float16, device=DEVICE)
        with pytest.raises(InputError, match=r"keys are torch\.float16: the cache holds torch\.fl"):
            cache.requests.begin(key, None)
        model(ids[:, :1], **as_cache(cache))


def test_an_empty_cache_may_be_reordered(model_of: Callable[..., Any]) -> None:
    model, ids = model_of("llama", 1), prompts(2)["input_ids"].to(DEVICE)
    with torch.no_grad(), st.enable(model) as enabled:
        cache = enabled.new_cache()
        cache.batch_repeat_interleave(2)
        cache.reorder_cache(torch.tensor([1, 0]))
        model(ids, **as_cache(cache))
        cache.batch_repeat_interleave(2)
        assert list(cache.requests.caches) == [0, 1, 2, 3]


def test_several_tokens_at_once_cannot_be_undone(model_of: Callable[[str], Any]) -> None:
    model = model_of("llama")
    with st.enable(model, attention=LOSSY[0]) as enabled:
        cache = enabled.new_cache()
        ids = prompts(1)["input_ids"].to(DEVICE)
        model(ids, **as_cache(cache))
        with pytest.raises(InputError, match="3 tokens in a step with attention 'aet'"):
            model(ids[:, :3], **as_cache(cache))
        model(ids[:, :1], **as_cache(cache))
        with pytest.raises(InputError, match="keeps a state that cannot be undone"):
            cache.crop(-1)
