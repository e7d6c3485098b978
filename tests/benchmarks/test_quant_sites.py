"""Rounding of activations at chosen sites, against decoders that code token by token."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tiny

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import quant_sites
from quant_sites import GROUPS, INTEGERS, Inputs, Rounding
from suffice.cache.kv import KVCache
from suffice.cache.upfront import Upfront
from suffice.models.checkpoint import open_checkpoint
from suffice.models.decoder import Decoder
from suffice.quant.activations import Site
from suffice.quant.hadamard import rotate
from suffice.quant.index_matmul import integer_matmul
from suffice.quant.kmeans import KMeans
from suffice.quant.none import NoQuant
from suffice.quant.sites import SITE_OF

WINDOWS = [[1, *range(20, 70)], [2, *range(90, 130)]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("sites") / "model", "llama-bias", tokenizer=True)


@pytest.fixture
def decoder(model: Path) -> Decoder:
    return Decoder.from_checkpoint(open_checkpoint(model), NoQuant("float32"))


def rounded(decoder: Decoder, inputs: Inputs) -> Rounding:
    if inputs.learned:
        *_, found = quant_sites.learned(decoder, WINDOWS, [inputs])
        sites = found[inputs]
    else:
        sites = quant_sites.even(inputs, len(decoder.config.layers))
    *_, run = quant_sites.run(decoder, WINDOWS, sites)
    assert isinstance(run, Rounding)
    return run


class ByToken(Decoder):
    """A decoder that codes one token's activations after the other, at some sites."""

    sites: dict[str, Site]

    def _coded(self, site: str, x: torch.Tensor) -> torch.Tensor:
        if site not in self.sites:
            return x
        return torch.stack([self.sites[site].encode(row).decode() for row in x])

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        layer, _, matrix = name.rpartition(".")
        rotation = getattr(self.weights[name], "rotation", 0)
        turned = rotate(x, rotation) if rotation else x
        coded = self._coded(f"{layer}.{SITE_OF.get(matrix)}", turned)
        y = super()._linear(name, rotate(coded, rotation) if rotation else coded)
        return self._coded(name, y) if matrix in ("gate", "up") else y

    def _projected(self, index, table, x):  # type: ignore[no-untyped-def]
        found = []
        for site, part in zip(
            ("queries", "keys", "values"), super()._projected(index, table, x), strict=True
        ):
            flat = self._coded(f"layers.{index}.{site}", torch.cat(list(part), -1))
            found.append(torch.stack(flat.split(part.shape[-1], -1)))
        return tuple(found)


def by_token(decoder: Decoder, sites: dict[str, Site], window: list[int]) -> torch.Tensor:
    config = decoder.config
    other = ByToken(config, decoder.weights)
    other.sites = sites
    cache = KVCache(
        len(config.layers), config.kv_heads, config.head_size, growth=Upfront(), limit=64,
        key_dtype="float32", value_dtype="float32",
    )  # fmt: skip
    logits = other.forward(torch.tensor(window), cache, logits="all")
    assert logits is not None
    return logits


CODED = [site for site in GROUPS["all"] if site != "scores"]


@pytest.mark.parametrize("sites", ["linear", "mlp", "+".join(CODED), *CODED])
def test_it_is_the_coding_of_each_token(decoder: Decoder, sites: str) -> None:
    run = rounded(decoder, Inputs(a=4, outliers=0.1, sites=sites))
    agrees(run, decoder)


def test_rotated_weights_take_rounded_rotated_inputs(model: Path) -> None:
    decoder = Decoder.from_checkpoint(open_checkpoint(model), KMeans(w=6))
    assert quant_sites.rotation_of(decoder.weights["layers.0.q"])
    agrees(rounded(decoder, Inputs(a=4, outliers=0.1)), decoder)


def agrees(run: Rounding, decoder: Decoder) -> None:
    exact = rounded(decoder, Inputs())
    for number, window in enumerate(WINDOWS):
        expected = by_token(decoder, run.sites, window)
        found = run.logits(run.states[number])
        assert torch.allclose(found, expected, rtol=1e-3, atol=1e-3)
        # It would not if nothing were rounded.
        assert not torch.allclose(found, exact.logits(exact.states[number]), rtol=1e-3, atol=1e-3)


def test_sites_switch_separately(decoder: Decoder) -> None:
    """Each site has levels where it is chosen, and no other has."""
    every = {f"layers.{index}.{site}" for index in range(3) for site in GROUPS["all"]}
    runs = {site: rounded(decoder, Inputs(a=4, outliers=0.1, sites=site)) for site in GROUPS["all"]}
    for site, run in runs.items():
        assert {name.rpartition(".")[2] for name in run.sites} == {site}
        assert len(run.sites) == len(decoder.config.layers)
    whole = rounded(decoder, Inputs(a=4, outliers=0.1, sites="all"))
    assert whole.sites.keys() <= every and len(whole.sites) == 10 * len(decoder.config.layers)
    assert rounded(decoder, Inputs(a=8, outliers=0.1, sites="mlp+qkv")).sites.keys() == {
        f"layers.{index}.{site}"
        for index in range(len(decoder.config.layers))
        for site in ("qkv", "gate", "up")
    }


def scores_and_values(group: int | None) -> tuple[torch.Tensor, Site, torch.Tensor]:
    """Scores [4, 6, 20] of heads, and values [20, 2 x 32] of half as many heads."""
    generator = torch.Generator().manual_seed(5)
    scores = torch.randn(4, 6, 20, generator=generator).mul(3).softmax(-1)
    values = torch.randn(20, 64, generator=generator)
    values *= torch.exp(2 * torch.randn(20, 1, generator=generator))
    return scores, Site.learn(values, 4, 0.03, group=group), values


def literal(scores: torch.Tensor, site: Site, values: torch.Tensor) -> torch.Tensor:
    """The product by counting, one query and one channel after the other."""
    coded = [site.encode(row) for row in values]
    codes = torch.stack([each.codes for each in coded])
    spread = torch.stack([each.spread for each in coded])
    missing = torch.stack([each.decode() - each.dense for each in coded])
    y = torch.zeros(4, 6, 32)
    for head in range(4):
        for query in range(6):
            for channel in range(32):
                at = 32 * (head // 2) + channel
                scaled = scores[head, query] * spread[:, at]
                unit = scaled.max() / 127
                integers = torch.round(scaled / unit)
                (found,) = integer_matmul(integers, codes[:, at : at + 1], site.levels)
                y[head, query, channel] = unit * found + scores[head, query] @ missing[:, at]
    return y


@pytest.mark.parametrize("group", [None, 16, 32, 48])
def test_scores_times_values_is_the_counting(group: int | None) -> None:
    scores, site, values = scores_and_values(group)
    found = quant_sites.times_values(INTEGERS, scores, site.rows(values), 32)
    assert torch.allclose(found, literal(scores, site, values), rtol=1e-5, atol=1e-5)


def test_scores_that_are_integers_before_they_are_scaled_would_show() -> None:
    """Tokens of small values have as many integers then as those of great ones."""
    scores, site, values = scores_and_values(None)
    coded = site.rows(values)
    integers = INTEGERS.rows(scores.flatten(0, 1)).rounded.view_as(scores)
    whole = quant_sites.heads(coded.rounded, 32).repeat_interleave(2, 0)
    found = quant_sites.times_values(INTEGERS, scores, coded, 32)
    assert not torch.allclose(integers @ whole, found, rtol=1e-3, atol=1e-3)


def test_scores_alone_cost_next_to_nothing(decoder: Decoder) -> None:
    """As integers, of values that are as they were: the attention of a window, masked."""
    exact, run = rounded(decoder, Inputs()), rounded(decoder, Inputs(a=8, sites="scores"))
    coarse = rounded(decoder, Inputs(a=4, sites="all"))
    for window in range(2):
        expected = exact.states[window]
        error = (run.states[window] - expected).norm() / expected.norm()
        assert 0 < 5 * error < (coarse.states[window] - expected).norm() / expected.norm()


@pytest.mark.parametrize("window", [None, 8])
def test_masks_are_those_of_attention(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch, window: int | None
) -> None:
    """With scores that are not rounded the product is plain attention."""
    generator = torch.Generator().manual_seed(6)
    config = decoder.config
    size, count = config.head_size, 30
    q, k, v = (
        torch.randn(heads, count, size, generator=generator)
        for heads in (config.heads, config.kv_heads, config.kv_heads)
    )
    layers = (replace(config.layers[0], window=window), *config.layers[1:])
    decoder.config = replace(config, layers=layers)
    run = Rounding(decoder, WINDOWS, {f"layers.0.{quant_sites.SCORES}": INTEGERS})
    plain = Rounding(decoder, WINDOWS, {})._mixed(0, q, k, v)
    monkeypatch.setattr(Site, "rows", lambda site, x: quant_sites.Rows(x, torch.ones_like(x), x))
    found = run._mixed(0, q, k, v)
    assert torch.allclose(found, plain, rtol=1e-4, atol=1e-5)
