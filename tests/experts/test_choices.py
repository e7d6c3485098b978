"""Tests of experts/all.py and experts/mass.py: exact limit, reference, bound, and counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tiny
from caches import cache_for
from suffice import LLM, SamplingParams, native
from suffice.checkpoints.open import open_checkpoint
from suffice.decoder.native_model import NativeModel, Omitted
from suffice.decoder.step_rows import StepRows
from suffice.engine.config import Config
from suffice.engine.options import EngineOptions
from suffice.errors import InputError
from suffice.experts import EXPERTS
from suffice.experts.all import All
from suffice.experts.mass import Mass
from suffice.quant import QUANTS
from suffice.quantize import torch_mlps
from suffice.quantize.torch_decoder import TorchDecoder
from suffice.trace import Trace

TOKENS = torch.randint(0, tiny.VOCABULARY, (30,), generator=torch.Generator().manual_seed(2))
VARIANTS = ["gpt-oss", "olmoe", "qwen2-moe"]
MORE = {"num_experts_per_tok": 4}  # so that there is something to leave out


def decoder_of(variant: str, tmp_path: Any) -> TorchDecoder:
    folder = tiny.make(tmp_path / variant, variant, **MORE)
    return TorchDecoder.from_checkpoint(open_checkpoint(folder), QUANTS.build("none:dtype=float32"))


def native_logits(decoder: TorchDecoder, share: float, sizes: list[int]) -> tuple[Any, Trace]:
    """Logits of the tokens in steps of these sizes, by the native model, and its counts."""
    config = decoder.config
    model = NativeModel(decoder, 64, omitted=Omitted(experts=share))
    cache = cache_for(decoder, "float32", growth="upfront", limit=64)
    cache.reserve(64)
    trace, found, first = Trace(len(config.layers), config.kv_heads), [], 0
    for size in sizes:
        rows = StepRows(cache, TOKENS[first : first + size].tolist(), outputs=None)
        found.append(model.step([rows], trace))
        cache.commit(list(range(size)))
        first += size
    return np.concatenate(found), trace


@pytest.mark.parametrize("name", EXPERTS.names())
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_exact_limit_changes_no_bit(name: str, variant: str, tmp_path: Any) -> None:
    decoder = decoder_of(variant, tmp_path)
    limit = EXPERTS.load(name).exact_limit()
    expected, _ = native_logits(decoder, 0.0, [30])
    found, trace = native_logits(decoder, limit.left_out, [30])
    assert np.array_equal(found, expected)
    assert (trace.experts_left_out, trace.experts_missing) == (0, 0.0)
    weights = torch.rand(7).numpy()
    assert limit.kept(weights).all()


@pytest.mark.parametrize("keep", [0.9, 0.6, 0.01])
@pytest.mark.parametrize("variant", VARIANTS)
def test_native_choices_are_those_of_the_reference(
    variant: str, keep: float, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, choice = decoder_of(variant, tmp_path), Mass(keep)
    left_out, shares = [0], [0.0]
    plain = torch_mlps.route

    def route(logits: torch.Tensor, experts: Any, bias: Any) -> torch.Tensor:
        weights = plain(logits, experts)
        kept = torch.from_numpy(np.stack([choice.kept(row) for row in weights.numpy()]))
        dropped = weights.where(~kept, 0.0)
        left_out[0] += int((dropped > 0).sum())
        shares.append(float((dropped.sum(-1) / weights.sum(-1)).max()))
        return weights.where(kept, 0.0)

    monkeypatch.setattr(torch_mlps, "route", route)
    cache = cache_for(decoder, "float32", growth="upfront", limit=64)
    expected = decoder.forward(TOKENS, cache, logits="all")
    assert expected is not None
    found, trace = native_logits(decoder, choice.left_out, [30])
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=3e-4)
    assert trace.experts_left_out == left_out[0] > 0
    assert trace.experts_missing == pytest.approx(max(shares), rel=1e-5)
    assert trace.experts_missing <= choice.left_out + 1e-6
    exact, _ = native_logits(decoder, 0.0, [30])
    assert np.abs(found - exact).max() > 0.01, "nothing that shows was left out"


@pytest.mark.parametrize("sizes", [[1] * 30, [7, 1, 22], [16, 14]])
def test_what_is_left_out_does_not_depend_on_steps(sizes: list[int], tmp_path: Any) -> None:
    decoder = decoder_of("olmoe", tmp_path)
    whole, _ = native_logits(decoder, 0.3, [30])
    parts, _ = native_logits(decoder, 0.3, sizes)
    assert np.array_equal(whole, parts)
    before = native.threads()
    try:
        native.set_threads(min(2, native.cores()))
        assert np.array_equal(native_logits(decoder, 0.3, sizes)[0], whole)
    finally:
        native.set_threads(before)


def test_the_change_of_a_layer_is_within_its_bound(tmp_path: Any) -> None:
    """|change| <= (1 - keep) sum w max |f_e|, for each row of the first layer's experts."""
    decoder, choice = decoder_of("olmoe", tmp_path), Mass(0.7)
    config, experts = decoder.config, decoder.config.experts
    assert experts is not None
    x = torch.randn((40, config.width), generator=torch.Generator().manual_seed(5))
    weights = torch_mlps.route(decoder._linear("layers.0.router", x), experts)
    (block,) = [each for each in config.blocks(0) if each.name == "mlp"]
    outputs = []
    for expert in range(experts.count):
        gate, up = (
            decoder.expert(f"layers.0.{name}", expert, experts.inner, x)
            for name in ("expert_gate", "expert_up")
        )
        inner = torch.nn.functional.silu(gate) * up
        outputs.append(decoder.expert("layers.0.expert_down", expert, config.width, inner))
    each = torch.stack(outputs, 1)  # [T, E, M]
    for row, own in zip(weights, each, strict=True):
        kept = torch.from_numpy(choice.kept(row.numpy()))
        change = ((row * ~kept)[:, None] * own).sum(0).norm()
        most = (row[:, None] * own).norm(dim=-1)
        bound = choice.left_out * row.sum() * own[row > 0].norm(dim=-1).max()
        assert change <= bound * (1 + 1e-5)
        assert kept.any() and most.max() > 0
    assert block.name == "mlp"


def test_a_row_keeps_an_expert_and_weights_may_be_negative() -> None:
    weights = np.float32([-0.5, 0, 0.25, 0.25])
    assert Mass(keep=1e-9).kept(weights).tolist() == [True, False, False, False]
    assert All().kept(weights).tolist() == [True, False, True, True]


def test_ties_and_small_sums() -> None:
    """The heaviest stays; of equal weights, those of the first experts go first."""
    equal = np.full(4, 0.25, np.float32)
    assert Mass(0.5).kept(equal).tolist() == [False, False, True, True]
    assert Mass(0.01).kept(equal).tolist() == [False, False, False, True]
    assert Mass(0.5).kept(np.array([0, 0.1, 0.9, 0], np.float32)).tolist() == [
        False,
        False,
        True,
        False,
    ]


def test_the_engine_says_what_it_left_out(tmp_path: Any) -> None:
    from suffice.cli.answer import summary

    folder = tiny.make(tmp_path / "olmoe", "olmoe", tokenizer=True, **MORE)
    llm = LLM(folder, threads=1, dtype="float32", experts="mass:keep=0.7")
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    (output,) = llm.generate([TOKENS.tolist()], params)
    trace = llm.runner.trace
    assert 0 < trace.experts_missing <= 0.3 + 1e-6 and trace.experts_left_out > 0
    text = summary(output, trace, "weights")
    assert f"up to {100 * trace.experts_missing:.2g} % of experts' weights left out" in (
        text.replace("\n", " | ")
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("mass:keep=0", "mass: keep=0.0: must be a number above 0, at most 1"),
        ("mass:keep=1.5", "mass: keep=1.5: must be a number above 0, at most 1"),
        ("mas", "unknown choice of experts 'mas'. Did you mean 'mass'?"),
    ],
)
def test_refused_settings(given: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        Config.built(EngineOptions("some-model", experts=given))
    assert message in str(error.value)


def test_models_without_experts_refuse_it(tmp_path: Any) -> None:
    folder = tiny.make(tmp_path / "llama", "llama", tokenizer=True)
    with pytest.raises(InputError, match=r"^experts=mass: .* has no experts: leave out --experts$"):
        LLM(folder, experts="mass:keep=0.9")
