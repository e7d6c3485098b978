"""Rounding of activations at chosen sites, against decoders that code token by token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import tiny
from benchmarks.quant import sites
from benchmarks.quant.sites import GROUPS, INTEGERS, Inputs, Rounding
from suffice.cache.growth import Upfront
from suffice.cache.kv import KVCache
from suffice.checkpoints.open import open_checkpoint
from suffice.errors import InputError
from suffice.quant import Quant
from suffice.quant.activations import Activations, Site
from suffice.quant.hadamard import rotate
from suffice.quant.index_matmul import integer_matmul
from suffice.quant.kmeans import KMeans
from suffice.quant.none import NoQuant
from suffice.quant.sites import SITE_OF, SITES
from suffice.quantize.layerwise import Layerwise
from suffice.quantize.sensitivity import Sensitivity
from suffice.quantize.torch_decoder import TorchDecoder
from suffice.quantize.torch_sites import TensorRows, rounded_rows

WINDOWS = [[1, *range(20, 50)], [2, *range(90, 110)]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sites") / "model"
    return tiny.shallow(folder)


@pytest.fixture
def decoder(model: Path) -> TorchDecoder:
    return TorchDecoder.from_checkpoint(open_checkpoint(model), NoQuant("float32"))


def rounded(decoder: TorchDecoder, inputs: Inputs) -> Rounding:
    if inputs.learned:
        *_, found = sites.learned(decoder, WINDOWS, [inputs])
        coded = found[inputs]
    else:
        coded = sites.even(inputs, len(decoder.config.layers))
    *_, run = sites.run(decoder, WINDOWS, coded)
    assert isinstance(run, Rounding)
    return run


class ByToken(TorchDecoder):
    """A decoder that codes one token's activations after the other, at some sites."""

    sites: dict[str, Site]
    values: torch.Tensor  # [T, G D] of the layer at hand, before they are coded

    def _coded(self, site: str, x: torch.Tensor) -> torch.Tensor:
        if site not in self.sites:
            return x
        return torch.from_numpy(
            np.stack([self.sites[site].encode(row).decode() for row in x.numpy()])
        )

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        layer, _, matrix = name.rpartition(".")
        rotation = getattr(self.weights[name], "rotation", 0)
        turned = sites.turned(x, rotation) if rotation else x
        coded = self._coded(f"{layer}.{SITE_OF.get(matrix)}", turned)
        y = super()._linear(name, sites.turned(coded, rotation) if rotation else coded)
        return self._coded(name, y) if matrix in ("gate", "up") else y

    def _projected(self, index, table, x):  # type: ignore[no-untyped-def]
        found = []
        for site, part in zip(
            ("queries", "keys", "values"), super()._projected(index, table, x), strict=True
        ):
            plain = torch.cat(list(part), -1)
            if site == "values":
                self.values = plain
            flat = self._coded(f"layers.{index}.{site}", plain)
            found.append(torch.stack(flat.split(part.shape[-1], -1)))
        return tuple(found)

    def _mixed(self, index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if f"layers.{index}.scores" not in self.sites:
            return super()._mixed(index, q, k, v)
        assert len(q) == 2 * len(k), "grouped heads"
        products = torch.stack([row @ k[head // 2].T for head, row in enumerate(q)])
        future = torch.ones(products.shape[-2:], dtype=torch.bool).triu(1)
        logits = (self.config.attention_scale * products).masked_fill(future, -torch.inf)
        site = self.sites[f"layers.{index}.values"]
        return literal(logits.softmax(-1), [site.encode(row) for row in self.values.numpy()])


def by_token(decoder: TorchDecoder, sites: dict[str, Site], window: list[int]) -> torch.Tensor:
    config = decoder.config
    other = ByToken(config, decoder.weights)
    other.sites = sites
    cache = KVCache(
        config.rows, growth=Upfront(), limit=64,
        key_dtype="float32", value_dtype="float32",
    )  # fmt: skip
    logits = other.forward(torch.tensor(window), cache, logits="all")
    assert logits is not None
    return logits


def literal(scores: torch.Tensor, values: list[Activations]) -> torch.Tensor:
    """Scores [H, T, S] times values [S, G D], by counting: 16 channels of a query at a time."""
    codes = np.stack([v.codes for v in values])
    spread = np.stack([v.spread for v in values])
    missing = np.stack([v.decode() - v.dense for v in values])
    groups, levels = len(scores) // 2, values[0].levels
    size = codes.shape[1] // groups
    y = torch.zeros(*scores.shape[:2], size)
    for head in range(len(scores)):
        for query, row in enumerate(scores[head].numpy()):
            for first in range(0, size, 16):
                own = slice(first, first + 16)
                at = slice(size * (head // 2) + first, size * (head // 2) + first + 16)
                scaled = row * spread[:, at.start]  # no scale is of fewer channels
                unit = scaled.max() / 255
                found = integer_matmul(np.rint(scaled / unit), codes[:, at], levels)
                y[head, query, own] = torch.from_numpy(unit * found + row @ missing[:, at])
    return y


CODED = [site for site in GROUPS["all"] if site != "scores"]


@pytest.mark.parametrize("sites", ["linear", "mlp", "+".join(CODED), *CODED, "values+scores"])
def test_it_is_the_coding_of_each_token(decoder: TorchDecoder, sites: str) -> None:
    run = rounded(decoder, Inputs(a=4, outliers=0.1, sites=sites))
    agrees(run, decoder)


def test_rotated_weights_take_rounded_rotated_inputs(model: Path) -> None:
    decoder = TorchDecoder.from_checkpoint(open_checkpoint(model), KMeans(bits=6))
    assert sites.rotation_of(decoder.weights["layers.0.q"])
    agrees(rounded(decoder, Inputs(a=4, outliers=0.1)), decoder)


def agrees(run: Rounding, decoder: TorchDecoder) -> None:
    exact = rounded(decoder, Inputs())
    for number, window in enumerate(WINDOWS):
        expected = by_token(decoder, run.sites, window)
        found = run.logits(run.states[number])
        # Where sums are rounded otherwise a code may jump, of few tokens.
        assert same(found, expected) > 0.8
        assert same(found, exact.logits(exact.states[number])) < 0.1, "nothing was rounded"


def same(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the share of tokens whose logits [T, V] are alike."""
    return float(((found - expected).abs().amax(-1) < 1e-4).float().mean())


@pytest.mark.parametrize("quant", [NoQuant("float32"), KMeans(bits=6)])
def test_levels_are_those_that_quantizing_learns(model: Path, quant: Quant) -> None:
    """From as many inputs of the same tokens, turned where the weights are."""
    decoder = TorchDecoder.from_checkpoint(open_checkpoint(model), quant)
    inputs = Inputs(a=4, outliers=0.1)
    *_, found = sites.learned(decoder, WINDOWS, [inputs])
    layers = Layerwise(decoder, WINDOWS)
    for index in range(len(decoder.config.layers)):
        for name, known in layers.inputs(index).items():
            rotation = sites.rotation_of(layers.matrices(index)[SITES[name][0]])
            samples = known.samples.numpy()
            samples = rotate(samples, rotation) if rotation else samples
            expected = Site.learn(samples, 4, 0.05)
            assert np.array_equal(found[inputs][f"layers.{index}.{name}"].levels, expected.levels)
        layers.advance(index)


@pytest.mark.parametrize("quant", [NoQuant("float32"), KMeans(bits=6)])
def test_fisher_weighs_the_same_inputs(model: Path, quant: Quant) -> None:
    """As `suffice quantize` does with `act_fisher`, from gradients of the same tokens."""
    decoder = TorchDecoder.from_checkpoint(open_checkpoint(model), quant)
    inputs = Inputs(a=4, outliers=0.1, fisher=True)
    *_, found = sites.learned(decoder, WINDOWS, [inputs, Inputs(a=4, outliers=0.1)])
    sensitivity = Sensitivity(decoder, WINDOWS, sites=True)
    weights = [sensitivity.of(window) | sensitivity.gradients for window in range(len(WINDOWS))]
    known = Layerwise(decoder, WINDOWS, weights).inputs(0)
    for name, each in known.items():
        assert each.gradients is not None
        method = KMeans(
            act_bits=4, outliers=0.1, act_fisher=True, hadamard=isinstance(quant, KMeans)
        )
        expected = method.site(each.samples.numpy(), each.gradients.numpy())
        assert expected is not None
        levels = found[inputs][f"layers.0.{name}"].levels
        assert np.allclose(levels, expected.levels, atol=1e-6)
        plain = found[Inputs(a=4, outliers=0.1)][f"layers.0.{name}"].levels
        assert not np.allclose(levels, plain, atol=1e-4)


def test_fisher_is_of_inputs_of_matrices() -> None:
    for options in ({"a": 8}, {"a": 4, "sites": "queries"}, {"a": 4, "even": True}):
        with pytest.raises(InputError, match="fisher=true goes with K-means levels of inputs"):
            Inputs(fisher=True, **options)  # type: ignore[arg-type]


def test_sites_that_a_model_has_not(tmp_path: Path) -> None:
    ungated = open_checkpoint(tiny.make(tmp_path / "opt", "opt", tokenizer=True)).config
    with pytest.raises(InputError, match="sites=gate: the model has no gates"):
        sites.check_sites(Inputs(a=4, sites="gate"), ungated)
    sites.check_sites(Inputs(a=4, sites="mlp"), ungated)


def test_sites_switch_separately(decoder: TorchDecoder) -> None:
    """Each site has levels where it is chosen, and no other has."""
    layers = range(len(decoder.config.layers))
    every = {f"layers.{index}.{site}" for index in layers for site in GROUPS["all"]}
    runs = {site: rounded(decoder, Inputs(a=4, outliers=0.1, sites=site)) for site in CODED}
    runs["scores"] = rounded(decoder, Inputs(a=8, sites="scores"))
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
    return scores, Site.learn(values.numpy(), 4, 0.03, group=group), values


@pytest.mark.parametrize("group", [None, 16, 32, 48])
def test_scores_times_values_is_the_counting(group: int | None) -> None:
    scores, site, values = scores_and_values(group)
    found = sites.times_values(INTEGERS, scores, rounded_rows(site, values), 32)
    expected = literal(scores, [site.encode(row) for row in values.numpy()])
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_scores_that_are_integers_before_they_are_scaled_would_show() -> None:
    """Tokens of small values have as many integers then as those of great ones."""
    scores, site, values = scores_and_values(None)
    coded = rounded_rows(site, values)
    integers = torch.from_numpy(INTEGERS.rows(scores.flatten(0, 1).numpy()).rounded)
    integers = integers.view_as(scores)
    whole = sites.heads(coded.rounded, 32).repeat_interleave(2, 0)
    found = sites.times_values(INTEGERS, scores, coded, 32)
    assert not torch.allclose(integers @ whole, found, rtol=1e-3, atol=1e-3)


def test_scores_alone_cost_next_to_nothing(decoder: TorchDecoder) -> None:
    """As integers, of values that are as they were: the attention of a window, masked."""
    exact, run = rounded(decoder, Inputs()), rounded(decoder, Inputs(a=8, sites="scores"))
    coarse = rounded(decoder, Inputs(a=4, sites="all"))
    for window in range(2):
        expected = exact.states[window]
        error = (run.states[window] - expected).norm() / expected.norm()
        assert 0 < 5 * error < (coarse.states[window] - expected).norm() / expected.norm()


@pytest.mark.parametrize("window", [None, 8])
def test_masks_are_those_of_attention(
    decoder: TorchDecoder, monkeypatch: pytest.MonkeyPatch, window: int | None
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
    run = Rounding(decoder, WINDOWS, {f"layers.0.{sites.SCORES}": INTEGERS})
    plain = Rounding(decoder, WINDOWS, {})._mixed(0, q, k, v)
    monkeypatch.setattr(sites, "rounded_rows", lambda site, x: TensorRows.exact(x))
    found = run._mixed(0, q, k, v)
    assert torch.allclose(found, plain, rtol=1e-4, atol=1e-5)
