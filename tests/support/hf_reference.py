"""transformers as the oracle of the decoder: logits in float32, and exact ones in float64."""

from __future__ import annotations

import copy
import functools
import json
from functools import partial
from pathlib import Path
from typing import Any

import torch

from suffice.integrations.checks import cache_argument

_EAGER = ("gemma2", "gpt_oss")


def _model_type(folder: Path) -> str:
    return str(json.loads((folder / "config.json").read_text())["model_type"])


def load(folder: Path, dtype: torch.dtype, **options: Any) -> Any:
    """Load a checkpoint in transformers; float64 computes the norms in float64 as well."""
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
    """Return a model that has not run yet in float64, its norms as well."""
    model = model.double()
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = partial(_exact_norm, module)
    return model


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


def _exact_norm(module: Any, x: torch.Tensor) -> torch.Tensor:
    gemma = type(module).__name__.startswith("Gemma")
    eps = module.eps if hasattr(module, "eps") else module.variance_epsilon
    weight = module.weight + 1 if gemma else module.weight
    return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
