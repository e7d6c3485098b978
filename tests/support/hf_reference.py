"""transformers as the oracle of the decoder: logits in float32, and exact ones in float64."""

from __future__ import annotations

import copy
import functools
import json
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from suffice.integrations.checks import cache_argument

_EAGER = ("gemma2", "gpt_oss")


def _model_type(folder: Path) -> str:
    return str(json.loads((folder / "config.json").read_text())["model_type"])


def load(folder: Path, dtype: torch.dtype, **options: Any) -> Any:
    """Load a checkpoint in transformers; with float64 it computes all in float64."""
    import transformers

    # some that are parts of larger models are none of transformers' automatic classes
    (name,) = json.loads((folder / "config.json").read_text())["architectures"]
    model = (
        getattr(transformers, name)
        .from_pretrained(
            folder,
            dtype=torch.float32,
            # sdpa knows neither capped scores nor spare logits
            attn_implementation="eager" if _model_type(folder) in _EAGER else "sdpa",
            experts_implementation="eager",
            **options,
        )
        .eval()
    )
    return exact(model) if dtype == torch.float64 else model


def exact(model: Any) -> Any:
    """Return a model in float64, and in float64 where it asks for float32."""
    model = model.double()
    model.forward = partial(_in_double, model.forward)
    return model


def _in_double(forward: Any, *args: Any, **kwargs: Any) -> Any:
    with (
        mock.patch.object(torch, "float32", torch.float64),
        mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        return forward(*args, **kwargs)


def as_cache(cache: Any) -> dict[str, Any]:
    """Return the argument that gives a cache to a model, by its name in this transformers."""
    from transformers import LlamaForCausalLM

    name = cache_argument(LlamaForCausalLM.forward)
    assert name
    return {name: cache}


def cache_of(output: Any) -> Any:
    """Return the cache that a model's pass returned."""
    return output["cache"] if "cache" in output else output["past_key_values"]


@functools.cache
def exact_and_single(
    folder: Path, tokens: tuple[int, ...], stepwise: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits [T, V] of a checkpoint in float64 and float32, computed once for all."""
    step = stepwise_logits if stepwise else logits
    single = load(folder, torch.float32)
    double = exact(copy.deepcopy(single))
    return step(double, torch.tensor(tokens)), step(single, torch.tensor(tokens))


@torch.no_grad()
def logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Return the logits [T, V] of one pass over tokens [T]."""
    return model(tokens[None]).logits[0]


@torch.no_grad()
def stepwise_logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Return the logits [T, V] of decoding the tokens one by one."""
    cache, rows = None, []
    for token in tokens:
        output = model(token.view(1, 1), **as_cache(cache), use_cache=True)
        cache = cache_of(output)
        rows.append(output.logits[0, -1])
    return torch.stack(rows)
