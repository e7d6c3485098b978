"""Greedy tokens of every family in float32 are transformers': in a batch, past windows, long."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hf_reference
import tiny
from suffice import LLM, SamplingParams

NEW = 4
LENGTHS = (1, 19, 90)
FAMILIES = [
    "apertus",
    "arcee",
    "bamba",
    "cohere",
    "cohere2",
    "deepseek-v2",
    "deepseek-v2-lite",
    "deepseek-v3",
    "deepseek-v3-bias",
    "ernie",
    "ernie-moe",
    "exaone4",
    "exaone4-full",
    "falcon",
    "falcon-h1",
    "falcon-h1-norm",
    "gemma",
    "gemma2",
    "gemma4",
    "gemma4-keys",
    "gemma4-moe",
    "glm",
    "glm4",
    "glm4-moe",
    "glm4-moe-lite",
    "gpt-oss",
    "gpt2",
    "gpt2-unscaled",
    "gptj",
    "granite",
    "granite-moe",
    "granite-moe-shared",
    "granite4",
    "granite4-moe",
    "granite4-states",
    "helium",
    "hunyuan",
    "hunyuan-moe",
    "kimi",
    "lfm2",
    "lfm2-moe",
    "llama",
    "minicpm3",
    "ministral",
    "ministral3",
    "llama4",
    "llama4-mixed",
    "mistral4",
    "mixtral",
    "nemotron",
    "nanochat",
    "nanochat-bare",
    "nemotron-h",
    "nemotron-h-latent",
    "nemotron-h-moe",
    "neox",
    "neox-serial",
    "olmo-hybrid",
    "olmo2",
    "olmo3",
    "olmoe",
    "phi",
    "phi-moe",
    "phi-moe-longrope",
    "phi3",
    "phi3-longrope",
    "qwen2-moe",
    "qwen2-moe-mixed",
    "qwen3-moe",
    "qwen3-next",
    "qwen3.5",
    "qwen3.5-moe",
    "seed-oss",
    "smollm3",
    "smollm3-window",
    "stablelm",
    "stablelm-parallel",
    "starcoder2",
    "youtu",
]


def expected(model: Any, prompt: list[int]) -> list[int]:
    """Return the tokens that transformers decodes one by one.

    Those of states are decoded without a cache, as transformers' is wrong after a single token.
    """
    if model.config.model_type in ("bamba", "falcon_h1", "granitemoehybrid", "nemotron_h"):
        return without_cache(model, prompt)
    cache, found, given = None, [], torch.tensor([prompt])
    with torch.no_grad():
        for _ in range(NEW):
            output = model(given, **hf_reference.as_cache(cache), use_cache=True)
            cache = hf_reference.cache_of(output)
            given = output.logits[:, -1:].argmax(-1)
            found.append(int(given))
    return found


def without_cache(model: Any, prompt: list[int]) -> list[int]:
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(NEW):
            logits = model(torch.tensor([tokens]), use_cache=False).logits
            tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("variant", FAMILIES)
def test_greedy_tokens_are_those_of_transformers(variant: str, tmp_path: Any) -> None:
    folder = tiny.make(tmp_path / variant, variant, tokenizer=True)
    model = hf_reference.load(folder, torch.float32)
    generator = torch.Generator().manual_seed(4)
    prompts = [
        torch.randint(0, tiny.VOCABULARY, (length,), generator=generator).tolist()
        for length in LENGTHS
    ]
    # Those of longrope are of the text's length, and change at 64 tokens.
    for context, some in ((64, prompts[:2]), (None, prompts[2:])):
        check(folder, model, some, context if variant == "phi3-longrope" else None)


def check(folder: Any, model: Any, prompts: list[list[int]], context: int | None) -> None:
    llm = LLM(folder, dtype="float32", kv_cache_dtype="float32", threads=2, max_model_len=context)
    params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)
    outputs = llm.generate(prompts, params)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert list(output.outputs[0].token_ids) == expected(model, prompt), len(prompt)
