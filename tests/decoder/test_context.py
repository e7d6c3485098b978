"""Contexts longer than a model was trained on: the same logits as transformers', or a refusal."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hf_reference
import tiny
from caches import cache_for
from oracle import assert_matches
from suffice import LLM, SamplingParams
from suffice.cache.kv import KVCache
from suffice.checkpoints.open import open_checkpoint
from suffice.decoder.native_model import NativeModel
from suffice.decoder.rotation import Rope
from suffice.decoder.step_rows import StepRows
from suffice.errors import InputError
from suffice.quant.none import NoQuant
from suffice.quantize.torch_decoder import TorchDecoder

TRAINED, LONG = 64, 120
TOKENS = torch.randint(0, tiny.VOCABULARY, (LONG,), generator=torch.Generator().manual_seed(2))
SCALING: dict[str, dict[str, Any]] = {
    "yarn": {"original_max_position_embeddings": TRAINED},
    "linear": {},
    "dynamic": {},
    "longrope": {
        "original_max_position_embeddings": TRAINED,
        "short_factor": [1.0 + i / 8 for i in range(8)],
        "long_factor": [1.5 + i for i in range(8)],
    },
}
CHANGING = ("dynamic", "longrope")  # by the length of the text


def make(folder: Path, kind: str, **changes: Any) -> Path:
    rope = {"rope_type": kind, "rope_theta": 1000.0, "factor": 4.0, **SCALING[kind]}
    stated = 4 * TRAINED if kind == "longrope" else TRAINED
    return tiny.make(
        folder, "qwen2", max_position_embeddings=stated, rope_parameters=rope, **changes
    )


def cache_of(decoder: TorchDecoder) -> KVCache:
    cache = cache_for(decoder, growth="upfront", limit=LONG)
    cache.reserve(LONG)
    return cache


def by_torch(decoder: TorchDecoder, chunks: list[list[int]]) -> torch.Tensor:
    cache = cache_of(decoder)
    rows = [decoder.forward(torch.tensor(chunk), cache, logits="all") for chunk in chunks]
    return torch.cat([row for row in rows if row is not None])


def by_native(decoder: TorchDecoder, chunks: list[list[int]]) -> torch.Tensor:
    model, cache, rows = NativeModel(decoder, LONG), cache_of(decoder), []
    for chunk in chunks:
        rows.append(model.step([StepRows(cache, chunk, outputs=None)]))
        cache.commit(list(range(len(chunk))))
    return torch.from_numpy(np.concatenate(rows))


@torch.no_grad()
def prompt_and_steps(model: Any, prompt: int) -> torch.Tensor:
    """Logits [T, V] of transformers: the first tokens in one call, the rest one by one."""
    first = model(TOKENS[None, :prompt], use_cache=True)
    cache, rows = hf_reference.cache_of(first), [first.logits[0]]
    for token in TOKENS[prompt:]:
        rows.append(model(token.view(1, 1), **hf_reference.as_cache(cache)).logits[0])
    return torch.cat(rows)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Models by their kind of rotation, each made once."""
    return functools.cache(lambda kind: make(tmp_path_factory.mktemp(kind), kind))


@functools.cache
def by_transformers(folder: Path, dtype: torch.dtype, prompt: int) -> torch.Tensor:
    return prompt_and_steps(hf_reference.load(folder, dtype), prompt)


@pytest.mark.parametrize("run", [by_torch, by_native])
@pytest.mark.parametrize("kind", SCALING)
def test_logits_beyond_the_trained_positions(kind: str, run: Any, made: Any) -> None:
    folder, tokens = made(kind), TOKENS.tolist()
    decoder = TorchDecoder.from_checkpoint(open_checkpoint(folder), NoQuant("float32"))
    # where frequencies are of the text's length, transformers has those of each step's
    prompt = LONG if kind in CHANGING else 100
    assert decoder.config.longest_text == (TRAINED if kind in CHANGING else 4 * TRAINED)
    decoder = TorchDecoder(decoder.config.fitted(LONG), decoder.weights)
    assert decoder.config.longest_text == (LONG if kind in CHANGING else 4 * TRAINED)
    exact, same = (
        by_transformers(folder, dtype, prompt) for dtype in (torch.float64, torch.float32)
    )
    head = [tokens[at : min(at + 25, prompt)] for at in range(0, prompt, 25)]
    assert_matches(run(decoder, [*head, *([t] for t in tokens[prompt:])]), exact, same, factor=4)


@pytest.mark.parametrize(
    ("rope", "context", "most"),
    [
        (Rope(), 64, 64),
        (Rope("yarn", 1e4, (("factor", 4.0), ("original_max_position_embeddings", 64))), 256, 256),
        (Rope("yarn", 1e4, (("factor", 4.0), ("original_max_position_embeddings", 8))), 64, 64),
        (Rope("linear", 1e4, (("factor", 2.5),)), 64, 160),
        (Rope("dynamic", 1e4, (("factor", 4.0),)), 64, 256),
        (Rope("linear", 1e4, (("factor", 0.5),)), 64, 64),
    ],
)
def test_how_far_a_rotation_reaches(rope: Rope, context: int, most: int) -> None:
    assert rope.reached(64) == (context, most)


@pytest.mark.parametrize(
    ("kind", "default"), [("yarn", 256), ("linear", 64), ("dynamic", 64), ("longrope", 256)]
)
def test_a_longer_context_may_be_asked_for(kind: str, default: int, tmp_path: Path) -> None:
    folder = make(tmp_path, kind, tokenizer=True)
    options: dict[str, Any] = {"dtype": "float32", "threads": 1}
    assert LLM(folder, **options).config.max_model_len == default
    with pytest.raises(InputError, match=r"^max_model_len=257: must not be more than 256, the con"):
        LLM(folder, max_model_len=257, **options)
    llm = LLM(folder, max_model_len=200, **options)
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    (result,) = llm.generate({"prompt_token_ids": TOKENS[:60].tolist()}, params)
    assert len(result.outputs[0].token_ids) == 60
    prompt = {"prompt_token_ids": TOKENS[:100].tolist()}
    assert len(llm.generate(prompt, params)[0].outputs[0].token_ids) == 60


@pytest.mark.parametrize("kind", CHANGING)
def test_a_long_prompt_has_the_tokens_of_transformers(kind: str, tmp_path: Path) -> None:
    """In chunks, whose number changes nothing: the frequencies are known before the first."""
    folder = make(tmp_path, kind, tokenizer=True)
    model = hf_reference.load(folder, torch.float32)
    with torch.no_grad():
        expected = int(model(TOKENS[None]).logits[0, -1].argmax())
    for chunk in (16, 512):
        llm = LLM(folder, dtype="float32", max_model_len=LONG + 1, prefill_chunk=chunk, threads=1)
        params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        (found,) = llm.generate({"prompt_token_ids": TOKENS.tolist()}, params)
        assert list(found.outputs[0].token_ids) == [expected]


def test_a_context_of_two_billion_takes_the_memory_of_what_is_used(tmp_path: Path) -> None:
    changes = {"tokenizer": True, "max_position_embeddings": 2**31 - 1}
    vast = LLM(tiny.make(tmp_path / "vast", "llama", **changes), threads=1)
    usual = LLM(tiny.make(tmp_path / "usual", "llama", tokenizer=True), threads=1)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    (found,), (expected,) = (
        llm.generate("The owls", params, use_tqdm=False) for llm in (vast, usual)
    )
    assert vast.config.max_model_len == 2**31 - 1
    assert found.outputs[0].token_ids == expected.outputs[0].token_ids
