"""How keys in codes are rounded, as found out from a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from caches import cache_for
from suffice.cache.kv import KVCache
from suffice.models import key_rounding
from suffice.models.checkpoint import open_checkpoint
from suffice.models.decoder import Decoder
from suffice.models.native_model import NativeModel, Rows
from suffice.quant import QUANTS, hadamard

COUNT = 50  # more than one step takes


def models(folder: Path) -> tuple[Decoder, NativeModel]:
    decoder = Decoder.from_checkpoint(open_checkpoint(folder), QUANTS.build("none:dtype=float32"))
    return decoder, NativeModel(decoder, 128)


@pytest.mark.parametrize("variant", ["llama", "gemma3", "opt-post"])
def test_means_and_queries_are_those_of_one_pass(variant: str, checkpoints: Any) -> None:
    decoder, model = models(checkpoints(variant))
    config, cache = decoder.config, cache_for(decoder)
    queries: dict[int, torch.Tensor] = {}
    random = torch.Generator().manual_seed(0)
    tokens = torch.randint(config.vocab, (COUNT,), generator=random)
    decoder.forward(tokens, cache, logits="none", watch=queries.__setitem__)
    means, moments = key_rounding.observed(model, config, COUNT)
    for index, layer in enumerate(config.layers):
        keys, q = cache.keys(index).double(), queries[index].double()
        shared = keys.repeat_interleave(config.heads // config.kv_heads, 0)
        scores = config.attention_scale * q @ shared.mT
        hidden = torch.ones(COUNT, COUNT).triu(1) + torch.ones(COUNT, COUNT).tril(
            -(layer.window or COUNT)
        )
        p = scores.masked_fill(hidden.bool(), -torch.inf).softmax(-1)
        weighted = q * (p * (1 - p)).sum(-1, keepdim=True)
        each = torch.einsum("htd,hte->hde", weighted[:, 4:], q[:, 4:])
        block = config.head_size & -config.head_size
        matrix = hadamard.rotate(torch.eye(config.head_size, dtype=torch.float64), block)
        summed = matrix @ each.unflatten(0, (config.kv_heads, -1)).sum(1) @ matrix
        torch.testing.assert_close(moments[index], summed, rtol=0, atol=1e-3 * summed.max().item())
        mean = keys[:, 4:].mean(1) @ matrix
        torch.testing.assert_close(means[index].double(), mean, rtol=0, atol=1e-4)


def test_factors_are_those_of_the_damped_moments() -> None:
    torch.manual_seed(0)
    half = torch.randn(24, 5, dtype=torch.float64)
    moments = 7 * half @ half.T
    passed, weights = (part.double() for part in key_rounding.factors(moments))
    assert not passed.tril().any()
    upper = passed + torch.eye(24)
    expected = moments / (moments.trace() / 24) + key_rounding.DAMPING * torch.eye(24)
    torch.testing.assert_close(upper * weights @ upper.T, expected, rtol=0, atol=1e-5)


def test_queries_of_zeros_pass_nothing_on() -> None:
    passed, weights = key_rounding.factors(torch.zeros(16, 16))
    assert not passed.any() and torch.equal(weights, torch.ones(16))


@pytest.mark.parametrize("positions", [1, 2, 5])
def test_a_model_of_few_positions(positions: int, checkpoints: Any) -> None:
    decoder, model = models(checkpoints("llama"))
    means, moments = key_rounding.observed(model, decoder.config, positions)
    assert means.isfinite().all() and moments.isfinite().all()
    assert means.any()


@pytest.mark.parametrize("variant", ["llama", "gemma3"])
def test_logits_are_nearer_with_it(variant: str, checkpoints: Any) -> None:
    decoder, model = models(checkpoints(variant))
    tokens = torch.randint(0, tiny.VOCABULARY, (100,), generator=torch.Generator().manual_seed(7))

    def logits(cache: KVCache) -> torch.Tensor:
        cache.reserve(len(tokens))
        found = []
        for token in tokens.tolist():
            found.append(model.step([Rows(cache, [token])]))
            cache.commit([0])
        return torch.cat(found)

    exact = logits(cache_for(decoder))
    rounding = key_rounding.key_rounding(model, decoder.config, 128)
    ours, plain = (
        (logits(cache_for(decoder, "kmeans4", value_dtype="float32", rounding=how)) - exact)
        .square()
        .mean()
        for how in (rounding, None)
    )
    assert ours < 0.95 * plain
