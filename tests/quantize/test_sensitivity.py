"""The weights of tokens are squares of plain autograd's gradients, and H is weighted by them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tiny
from draws import normal
from hf_reference import load
from suffice.checkpoints.open import open_checkpoint
from suffice.quant.none import NoQuant
from suffice.quant.sites import LAYERED, SITE_OF, SITES
from suffice.quantize import sensitivity
from suffice.quantize.layerwise import GRADIENT, Layerwise
from suffice.quantize.sensitivity import Sensitivity
from suffice.quantize.torch_decoder import TorchDecoder

NAMES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
WINDOWS = torch.randint(3, tiny.VOCABULARY, (2, 150), generator=torch.Generator().manual_seed(1))


def last(site: str, known: Collection[str]) -> str:
    """Return the last matrix of a site such as `layers.0.qkv` that is known."""
    layer, _, name = site.rpartition(".")
    return [own for matrix in SITES[name] if (own := f"{layer}.{matrix}") in known][-1]


def decoder(folder: Path) -> TorchDecoder:
    return TorchDecoder.from_checkpoint(open_checkpoint(folder), NoQuant("float32"))


@pytest.mark.parametrize(
    "family",
    [
        *("llama-bias", "gemma2", "gemma3", "granite", "olmo2", "qwen3", "stablelm-parallel"),
        *("gemma4", "gemma4-keys"),
    ],
)
def test_weights_are_squares_of_the_gradients(
    family: str, checkpoints: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoints(family)
    monkeypatch.setattr(sensitivity, "ELEMENTS", 3 * 16 * 64)  # heads in several blocks
    own = Sensitivity(decoder(folder), WINDOWS.tolist(), sites=True)
    found = own.of(1)
    model = load(folder, torch.float32, **{})
    outputs: dict[str, torch.Tensor] = {}
    inputs: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: object, given: tuple[torch.Tensor], y: torch.Tensor) -> None:
            y.retain_grad()
            given[0].retain_grad()
            outputs[name], inputs[name] = y, given[0]

        return hook

    for index, layer in enumerate(model.model.layers):
        modules = dict(layer.named_modules())  # a layer may lack keys and values
        for ours, theirs in NAMES.items():
            if theirs in modules:
                modules[theirs].register_forward_hook(keep(f"layers.{index}.{ours}"))
    likely = model(WINDOWS[1:]).logits[0].log_softmax(-1)
    # The same draws: in blocks of rows, from a generator with the window's number as seed.
    generator = torch.Generator().manual_seed(1)
    blocks = likely.detach().exp().split(128)
    drawn = torch.cat([torch.multinomial(block, 1, generator=generator) for block in blocks])
    likely.gather(1, drawn).sum().backward()
    own_names = {name for name in found if name.rpartition(".")[2] in LAYERED}
    assert found.keys() - own_names == outputs.keys()
    for name, y in outputs.items():
        assert y.grad is not None
        expected = y.grad[0].square().mean(-1)
        torch.testing.assert_close(found[name], expected, rtol=1e-3, atol=1e-6 * expected.max())
    sites = [f"layers.{i}.{site}" for i in range(len(model.model.layers)) for site in SITES]
    assert own.gradients.keys() == {site + GRADIENT for site in sites}
    shared: dict[int, list[str]] = {}  # parallel blocks may have one input, here two
    given = {site: inputs[last(site, inputs)] for site in sites}
    for site, x in given.items():
        shared.setdefault(id(x), []).append(site)
    for together in shared.values():
        x = given[together[0]]
        assert x.grad is not None
        found_here = sum(own.gradients[site + GRADIENT] for site in together)
        most = float(x.grad.abs().max())
        torch.testing.assert_close(found_here, x.grad[0], rtol=1e-3, atol=1e-5 * most)


@pytest.mark.parametrize("family", ["gemma2", "granite", "opt-post", "opt-untied", "phi"])
def test_the_gradient_of_a_head_of_any_kind(
    family: str, checkpoints: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Projected or with a bias, against the gradient that PyTorch finds for the same draws."""
    monkeypatch.setattr(sensitivity, "ELEMENTS", 3 * 16 * 64)
    ours = Sensitivity(decoder(checkpoints(family)), WINDOWS[:, :100].tolist())
    head = ours.matrix(ours._head)
    bias = normal(head.rows, seed=3)
    ours.weights[ours._head] = replace(head, bias=bias)
    ours._generator = torch.Generator().manual_seed(4)
    found = ours._of_logits(ours._states[0])
    x = ours._states[0].clone().requires_grad_()
    likely = ours._logits(x).log_softmax(-1)
    generator = torch.Generator().manual_seed(4)
    drawn = torch.multinomial(likely.detach().exp(), 1, generator=generator)
    likely.gather(1, drawn).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(found, x.grad, rtol=1e-4, atol=1e-5 * float(x.grad.abs().max()))


def test_what_is_replaced_is_freed(checkpoints: Callable[[str], Path]) -> None:
    """A layerwise run holds no other weights than its decoder."""
    own = decoder(checkpoints("llama"))
    other = own.weights["layers.0.k"]
    Layerwise(own, WINDOWS.tolist()).replace(0, {"q": other})
    assert own.weights["layers.0.q"] is other


def test_a_window_has_the_same_weights_each_time(checkpoints: Callable[[str], Path]) -> None:
    sensitivity = Sensitivity(decoder(checkpoints("llama-bias")), WINDOWS.tolist())
    first, second = sensitivity.of(1), sensitivity.of(1)
    assert first.keys() == second.keys()
    for name, weights in first.items():
        assert torch.equal(weights, second[name])


def test_inputs_count_by_the_weights_of_their_tokens(checkpoints: Callable[[str], Path]) -> None:
    model, windows = decoder(checkpoints("llama")), WINDOWS[:, :40].tolist()
    weights = [{} for _ in windows]
    for index, own in enumerate(weights):
        for matrix in SITE_OF:
            own[f"layers.0.{matrix}"] = torch.zeros(40)
        own["layers.0.v"][7] = 2.0 + index  # two tokens alone count
        own["layers.0.k"][:] = 3.0  # all alike
    found = Layerwise(model, windows, weights).inputs(0)
    plain = Layerwise(model, windows).inputs(0)
    assert plain["qkv"].of("v") is plain["qkv"].hessian
    torch.testing.assert_close(found["qkv"].of("k"), plain["qkv"].hessian)
    first, second = (Layerwise(model, [window]) for window in windows)
    rows = [each._norm("layers.0.attn_norm", each._states[0])[7] for each in (first, second)]
    expected = sum(weight * torch.outer(row, row) for weight, row in zip((2, 3), rows, strict=True))
    torch.testing.assert_close(found["qkv"].of("v"), expected / 5)
    # Where no token counts, all count alike.
    assert found["down"].of("down") is found["down"].hessian
