"""Policies and softmaxes in models of transformers: what suffice's own engine does with them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import suffice.integrations.transformers as st
import tiny
from batches import GREEDY, NEW_TOKENS, PADDING, generate, prompts
from calibrating import write_levels
from hf_reference import as_cache
from suffice import LLM, SamplingParams
from suffice.engine.config import Config
from suffice.errors import InputError
from suffice.integrations.fitted import fitted_rounding

FAMILIES = ("llama", "mistral", "gemma3")
POLICIES = (
    "streaming:budget=24",
    "streaming:0.4",
    "snapkv:0.5,window=8",
    "pyramidkv:budget=28,window=8,beta=4",
    "h2o:budget=21",
    "h2o:0.4",
    "quest:budget=48,dense_layers=1",
)
KEEPING = (
    "streaming:rank_only=true",
    "snapkv:rank_only=true,window=8",
    "h2o:rank_only=true",
    "quest:rank_only=true",
)
STOPPING = "art:change=0.5,angle=0.5,patience=1,block=16"
SOFTMAXES = ("exaq:2", "exaq:3,tail=flush", "exaq:4,clip=solve", "exaq_km:2", "exaq_km:3")
LENGTH, NEW = 70, 16


def in_turn(values: Sequence[str]) -> list[tuple[str, str]]:
    """Each value for a family without windows, and for one of those with them."""
    windowed = itertools.cycle(FAMILIES[1:])
    return [*itertools.product(FAMILIES[:1], values), *zip(windowed, values, strict=False)]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """With tokenizers, as the engine needs them."""
    return functools.cache(
        lambda family: tiny.make(tmp_path_factory.mktemp(family), family, tokenizer=True)
    )


@pytest.fixture(scope="module")
def calibrated(
    checkpoints: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Calibrations with another sigma in each layer and another codebook in each head."""

    def get(family: str) -> Path:
        layers = 7 if family == "gemma3" else 3
        path = tmp_path_factory.mktemp("calibration") / f"{family}.json"
        write_levels(path, checkpoints(family), family, layers, heads=4)
        return path

    return get


def engine_tokens(folder: Path, prompt: torch.Tensor, **options: Any) -> tuple[list[int], Any]:
    llm = LLM(folder, dtype="float32", threads=1, **options)
    params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)
    [output] = llm.generate({"prompt_token_ids": prompt.tolist()}, params)
    return list(output.outputs[0].token_ids), llm.runner.trace


def assert_same_reads(trace: Any, theirs: Any) -> None:
    """Bounds are sums of estimates, which the two round differently."""
    found, wanted = trace.plain(), theirs.plain() | {"weight_bytes_read": 0}
    for name in ("missing", "missing_mean", "shift", "shift_mean"):
        value = wanted.pop(name)
        near = value if value is None else pytest.approx(value, rel=1e-4, abs=1e-5)
        assert found.pop(name) == near, name
    assert found == wanted


def assert_as_the_engine(model: Any, folder: Path, **options: Any) -> Any:
    prompt = prompts(1, LENGTH)["input_ids"]
    expected, theirs = engine_tokens(folder, prompt[0], **options)
    with st.enable(model, **options) as enabled:
        tokens = generate(model, 1, LENGTH, max_new_tokens=NEW)
    assert tokens[0, LENGTH:].tolist() == expected
    trace = enabled.trace
    assert trace is not None
    assert_same_reads(trace, theirs)
    return trace


@pytest.mark.parametrize(
    ("family", "policy"),
    [
        *in_turn(POLICIES),
        # Their layers give a policy what those of Llama do.
        *itertools.product(("qwen3", "opt"), POLICIES[2:6:3]),
    ],
)
def test_with_a_policy_tokens_and_reads_are_those_of_the_engine(
    family: str, policy: str, models: Callable[[str], Any], checkpoints: Callable[[str], Path]
) -> None:
    trace = assert_as_the_engine(models(family), checkpoints(family), policy=policy)
    assert trace.key_rows_read < trace.rows_held, "everything was read"


def test_keys_in_4_bits_are_rounded_as_the_engine_does(
    models: Callable[[str], Any], checkpoints: Callable[[str], Path]
) -> None:
    folder, prompt = checkpoints("llama"), prompts(1, LENGTH)["input_ids"]
    bounded = {"attention": "tiers:bounded=true,eps=0.2"}
    expected, theirs = engine_tokens(folder, prompt[0], **bounded)
    reads = {}
    for checkpoint in (None, folder):
        with st.enable(models("llama"), checkpoint=checkpoint, **bounded) as enabled:
            tokens = generate(models("llama"), 1, LENGTH, max_new_tokens=NEW)
        assert enabled.keys_fitted is (checkpoint is not None) and enabled.trace is not None
        assert (tokens[0, LENGTH:].tolist() == expected) is enabled.keys_fitted
        reads[checkpoint] = enabled.trace
    assert_same_reads(reads[folder], theirs)
    assert reads[None].bounds != reads[folder].bounds
    with st.enable(models("llama")) as enabled:
        assert enabled.keys_fitted is None


def test_keys_are_not_rounded_by_another_model(
    models: Callable[[str], Any], checkpoints: Callable[[str], Path]
) -> None:
    other = checkpoints("gemma3")
    with pytest.raises(InputError, match=r"^checkpoint='.*': has \(7, .*, not \(3, "):
        st.enable(models("llama"), attention="tiers", checkpoint=other)
    exact = Config.create("any", attention="exact")
    assert fitted_rounding(exact, other, (3, 2, 16)) is None, "it is not even loaded"


@pytest.mark.parametrize("policy", [*KEEPING, "streaming:budget=24", "snapkv:0.5,window=8"])
def test_policies_and_techniques_that_stop_early_go_together(
    policy: str, models: Callable[[str], Any], checkpoints: Callable[[str], Path]
) -> None:
    options = {"policy": policy, "attention": STOPPING}
    assert_as_the_engine(models("llama"), checkpoints("llama"), **options)


@pytest.mark.parametrize(("family", "softmax"), in_turn(SOFTMAXES))
def test_with_a_coded_softmax_tokens_and_reads_are_those_of_the_engine(
    family: str,
    softmax: str,
    models: Callable[[str], Any],
    checkpoints: Callable[[str], Path],
    calibrated: Callable[[str], Path],
) -> None:
    options = {"softmax": softmax, "calibration": calibrated(family)}
    trace = assert_as_the_engine(models(family), checkpoints(family), **options)
    assert trace.value_rows_read < trace.rows_held


@pytest.mark.parametrize("softmax", ["exaq:2,prefill=true", "exaq_km:3,prefill=true"])
@pytest.mark.parametrize("family", FAMILIES)
def test_with_coded_prompts_tokens_are_those_of_the_engine(
    family: str,
    softmax: str,
    models: Callable[[str], Any],
    checkpoints: Callable[[str], Path],
    calibrated: Callable[[str], Path],
) -> None:
    options = {"softmax": softmax, "calibration": calibrated(family)}
    prompt = prompts(1, LENGTH)["input_ids"]
    expected, theirs = engine_tokens(checkpoints(family), prompt[0], **options)
    with st.enable(models(family), **options) as enabled:
        tokens = generate(models(family), 1, LENGTH, max_new_tokens=NEW)
    assert tokens[0, LENGTH:].tolist() == expected
    assert enabled.trace is not None
    more = enabled.trace.rows - theirs.rows
    assert not more[[0, 2]].any()
    # Prompts run in steps of another length, after which what they hold may be summed once more.
    assert np.abs(more[1]).max() <= LENGTH


def test_a_coded_softmax_in_a_technique_that_stops_early(
    models: Callable[[str], Any],
    checkpoints: Callable[[str], Path],
    calibrated: Callable[[str], Path],
) -> None:
    options = {"softmax": "exaq:3", "calibration": calibrated("llama"), "attention": STOPPING}
    assert_as_the_engine(models("llama"), checkpoints("llama"), **options)


@pytest.mark.parametrize("prefill", [False, True])
def test_prompts_are_exact_unless_the_softmax_says_otherwise(
    prefill: bool, models: Callable[[str], Any], calibrated: Callable[[str], Path]
) -> None:
    model, inputs = models("llama"), prompts(3, LENGTH)
    softmax = f"exaq:2,prefill={prefill}"
    with torch.no_grad():
        expected = model(**inputs).logits
        with st.enable(model, softmax=softmax, calibration=calibrated("llama")):
            logits = model(**inputs).logits
    held = inputs["attention_mask"].bool()
    assert bool(torch.isfinite(logits[held]).all())
    assert torch.equal(logits[held], expected[held]) is not prefill


_expected: dict[str, torch.Tensor] = {}  # what transformers generates, by family


@pytest.mark.parametrize(
    ("family", "policy"),
    in_turn(
        [
            *("streaming:budget=999", "snapkv:1", "pyramidkv:ratio=1"),
            *("h2o:budget=999", "quest:budget=999"),
        ]
    ),
)
def test_at_its_exact_limit_a_policy_gives_the_tokens_of_transformers(
    family: str, policy: str, models: Callable[[str], Any]
) -> None:
    model = models(family)
    if family not in _expected:
        _expected[family] = generate(model)
    expected = _expected[family]
    with st.enable(model, policy=policy):
        assert torch.equal(generate(model), expected)


@pytest.mark.parametrize(("family", "policy"), in_turn(POLICIES))
def test_a_padded_request_has_its_own_budget_and_the_tokens_it_has_alone(
    family: str, policy: str, models: Callable[[str], Any]
) -> None:
    model = models(family)
    with st.enable(model, policy=policy) as enabled:
        cache = enabled.new_cache()
        together = generate(model, 3, LENGTH, **as_cache(cache))
        held = [each.held(each.layers - 2) for each in cache.requests.caches]
        for row, padding in enumerate(PADDING):
            prompt = prompts(3, LENGTH)["input_ids"][row : row + 1, padding:]
            cache = enabled.new_cache()
            alone = model.generate(prompt, max_new_tokens=NEW_TOKENS, **as_cache(cache), **GREEDY)
            assert torch.equal(together[row, padding:], alone[0])
            assert held[row] == cache.requests.caches[0].held(cache.requests.layers - 2)


@pytest.mark.parametrize("softmax", ["exaq:2", "exaq_km:2,prefill=true"])
def test_a_padded_request_has_the_codes_it_has_alone(
    softmax: str, models: Callable[[str], Any], calibrated: Callable[[str], Path]
) -> None:
    model = models("llama")
    with st.enable(model, softmax=softmax, calibration=calibrated("llama")):
        together = generate(model, 3, LENGTH)
        for row, padding in enumerate(PADDING):
            prompt = prompts(3, LENGTH)["input_ids"][row : row + 1, padding:]
            alone = model.generate(prompt, max_new_tokens=NEW_TOKENS, **GREEDY)
            assert torch.equal(together[row, padding:], alone[0])
