"""How keys in codes are rounded, as found out from a model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from caches import cache_for, cache_of
from suffice import LLM
from suffice.checkpoints.open import open_checkpoint
from suffice.data.essay import essay
from suffice.decoder import key_rounding, stored_rounding
from suffice.decoder.native_model import NativeModel
from suffice.decoder.step_rows import StepRows
from suffice.engine import techniques
from suffice.quant import QUANTS, PackedLinear
from suffice.quantize.torch_decoder import TorchDecoder

COUNT = 50  # more than one step takes


def models(folder: Path) -> tuple[TorchDecoder, NativeModel]:
    decoder = TorchDecoder.from_checkpoint(
        open_checkpoint(folder), QUANTS.build("none:dtype=float32")
    )
    return decoder, NativeModel(decoder, 128)


@pytest.mark.parametrize("sample", [[], [3, 1, 4, 1, 5, 9, 2, 6]])
@pytest.mark.parametrize("variant", ["llama", "gemma3", "neox", "opt-post"])
def test_means_and_queries_are_those_of_one_pass(
    variant: str, sample: list[int], checkpoints: Any
) -> None:
    decoder, model = models(checkpoints(variant))
    config, cache = decoder.config, cache_for(decoder)
    queries: dict[int, np.ndarray] = {}
    random = np.random.default_rng(0)
    rest = random.integers(config.vocab, size=COUNT - len(sample)).tolist()
    decoder.forward(torch.tensor([*sample, *rest]), cache, logits="none", watch=queries.__setitem__)
    seen = key_rounding.observed(model, config, COUNT, [*sample, config.vocab])
    for index, layer in enumerate(config.layers):
        keys, q = (torch.from_numpy(x).double() for x in (cache.keys(index), queries[index]))
        shared = keys.repeat_interleave(config.heads // config.kv_heads, 0)
        scores = config.attention_scale * q @ shared.mT
        hidden = torch.ones(COUNT, COUNT).triu(1) + torch.ones(COUNT, COUNT).tril(
            -(layer.window or COUNT)
        )
        p = scores.masked_fill(hidden.bool(), -torch.inf).softmax(-1)
        weighted = q * (p * (1 - p)).sum(-1, keepdim=True)
        each = torch.einsum("htd,hte->hde", weighted[:, 4:], q[:, 4:])
        summed = each.unflatten(0, (config.kv_heads, -1)).sum(1)
        atol = 1e-3 * summed.max().item()
        np.testing.assert_allclose(seen.moments[index], summed, rtol=0, atol=atol)
        mean = keys[:, 4:].mean(1, keepdim=True)
        share = (keys[:, 4:] * mean).sum(-1, keepdim=True) / mean.square().sum(-1, keepdim=True)
        square = (keys[:, 4:] - share * mean).square().mean(1)
        np.testing.assert_allclose(seen.means[index], mean[:, 0], rtol=0, atol=1e-4)
        np.testing.assert_allclose(seen.squares[index], square, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("variant", ["llama", "gemma3", "neox", "opt-post"])
def test_texts_that_begin_later_count_as_well(
    variant: str, checkpoints: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, model = models(checkpoints(variant))
    config = decoder.config
    monkeypatch.setattr(key_rounding, "TOKENS", 20)
    once, spread = (key_rounding.observed(model, config, count) for count in (20, 45))
    tables = decoder.rope_tables(41)
    for index, layer in enumerate(config.layers):
        turns = [np.eye(config.head_size)]
        if layer.rope is not None:
            cos, sin = (part[:, :, None] for part in tables[layer.rope])
            count = cos.shape[1]
            columns = np.eye(config.head_size)  # one for each element
            low, high, rest = np.split(columns, (count, 2 * count))
            still = np.broadcast_to(rest, (len(cos), *rest.shape))
            turned = np.concatenate((low * cos - high * sin, high * cos + low * sin, still), axis=1)
            turns = [turned[begin] for begin in (0, 20, 40)]
        shares = (1.0,) if len(turns) == 1 else (5 / 9, 3 / 9, 1 / 9)
        pairs = list(zip(shares, turns, strict=True))
        means = sum(share * once.means[index] @ turn.T for share, turn in pairs)
        moments = sum(share * turn @ once.moments[index] @ turn.T for share, turn in pairs)
        np.testing.assert_allclose(spread.means[index], means, rtol=0, atol=1e-4)
        atol = 1e-4 * np.abs(moments).max()
        np.testing.assert_allclose(spread.moments[index], moments, rtol=0, atol=atol)
        assert spread.squares[index].sum() >= 0.98 * once.squares[index].sum()


def test_factors_are_those_of_the_damped_moments() -> None:
    half = np.random.default_rng(0).standard_normal((24, 5))
    moments = 7 * half @ half.T
    passed, weights = key_rounding.factors(moments)
    assert not np.tril(passed).any()
    upper = passed + np.eye(24)
    expected = moments / (moments.trace() / 24) + key_rounding.DAMPING * np.eye(24)
    np.testing.assert_allclose(upper * weights @ upper.T, expected, rtol=0, atol=1e-5)


def test_queries_of_zeros_pass_nothing_on() -> None:
    passed, weights = key_rounding.factors(np.zeros((16, 16)))
    assert not passed.any() and (weights == 1).all()


@pytest.mark.parametrize("positions", [1, 2, 5])
def test_a_model_of_few_positions(positions: int, checkpoints: Any) -> None:
    decoder, model = models(checkpoints("llama"))
    seen = key_rounding.observed(model, decoder.config, positions)
    assert all(np.isfinite(each).all() for each in (seen.means, seen.squares, seen.moments))
    assert seen.means.any()
    key_rounding.rounding_of(seen)


def test_scales_are_of_roots_of_mean_squares() -> None:
    squares = np.array([[1.0, 4.0, 0.0, 3.0], [0.0, 0.0, 0.0, 0.0]])
    scales = key_rounding.scales_of(squares)
    expected = [(each / 2 + key_rounding.FLOOR) ** -0.5 for each in squares[0].tolist()]
    assert scales[0].tolist() == pytest.approx(expected)
    assert len(set(scales[1].tolist())) == 1  # of nothing nothing is known


def test_channels_of_unlike_sizes_lose_less(each_isa: str) -> None:
    random, size = np.random.default_rng(0), 10 ** np.linspace(-1, 1, 64)
    keys, queries = size * random.standard_normal((1, 512, 64)), random.standard_normal((200, 64))
    queries /= size
    moments = (queries.T @ queries)[None, None]
    shown = key_rounding.Observed(np.zeros((1, 1, 64)), np.square(size)[None, None], moments)
    alike = dataclasses.replace(shown, squares=np.ones((1, 1, 64)))
    errors = [
        np.square((cache_of(keys, keys, "kmeans4", rounding=how).keys(0) - keys) @ queries.T).mean()
        for how in (key_rounding.rounding_of(shown).native, key_rounding.rounding_of(alike).native)
    ]
    assert errors[0] < 0.5 * errors[1]


def test_huge_keys_have_scales(checkpoints: Any) -> None:
    decoder, _ = models(checkpoints("llama"))
    weights = dict(decoder.weights)
    k = weights["layers.1.k"]
    assert isinstance(k, PackedLinear)
    weights["layers.1.k"] = QUANTS.build("none:dtype=float32").pack(k.unpack() * 1e20)
    seen = key_rounding.observed(
        NativeModel(TorchDecoder(decoder.config, weights), 128), decoder.config, 9
    )
    assert np.isfinite(seen.squares).all()
    key_rounding.rounding_of(seen)


@pytest.mark.parametrize(("variant", "share"), [("llama", 1.0), ("gemma3", 0.85)])
def test_logits_are_nearer_with_it(variant: str, share: float, checkpoints: Any) -> None:
    decoder, model = models(checkpoints(variant))
    random = np.random.default_rng(0)
    texts = [random.integers(tiny.VOCABULARY, size=100).tolist() for _ in range(4)]

    def logits(tokens: list[int], **options: Any) -> np.ndarray:
        cache, found = cache_for(decoder, **options), []
        cache.reserve(len(tokens))
        for token in tokens:
            found.append(model.step([StepRows(cache, [token])]))
            cache.commit([0])
        return np.concatenate(found)

    def error(rounding: Any) -> float:
        coded = {"dtype": "kmeans4", "value_dtype": "float32", "rounding": rounding}
        errors = [np.square(logits(text, **coded) - logits(text)).mean() for text in texts]
        return float(np.mean(errors))

    ours, plain = map(error, (key_rounding.key_rounding(model, decoder.config, 128).native, None))
    assert ours < share * plain


def test_a_model_s_load_shows_it_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny.make(tmp_path / "model", "llama", tokenizer=True)
    monkeypatch.setattr(stored_rounding, "folder", lambda: tmp_path / "none yet")
    shown: list[list[int]] = []

    def noted(model: Any, config: Any, positions: int, sample: list[int]) -> Any:
        shown.append(sample)
        return key_rounding.key_rounding(model, config, positions, sample)

    monkeypatch.setattr(techniques, "key_rounding", noted)
    LLM(folder, kv_cache_dtype="int8/kmeans4")
    assert not shown
    llm = LLM(folder, kv_cache_dtype="kmeans4")
    (sample,) = shown
    assert len(sample) > key_rounding.TOKENS
    assert llm.tokenizer.decode(sample, skip_special=True).startswith(essay()[:500])
