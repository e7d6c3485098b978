"""Tests of layers with experts: which are read, by what rule, and that others change nothing."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from native_steps import new_cache, run
from suffice import native
from suffice.checkpoints.open import open_checkpoint
from suffice.decoder.blocks import ExpertMLP
from suffice.decoder.config import DecoderConfig
from suffice.decoder.native_model import NativeModel
from suffice.decoder.routing import Experts
from suffice.decoder.step_rows import StepRows
from suffice.decoder.weights import DecoderWeights
from suffice.errors import InputError
from suffice.quant import QUANTS, PackedLinear
from suffice.quantize.torch_decoder import TorchDecoder
from suffice.quantize.torch_layers import dense, route
from suffice.trace import Trace

TOKENS = torch.randint(0, tiny.VOCABULARY, (48,), generator=torch.Generator().manual_seed(1))
VARIANTS = [
    "gpt-oss",
    "granite-moe",
    "mixtral",
    "nemotron-h-latent",
    "nemotron-h-moe",
    "olmoe",
    "qwen2-moe",
    "qwen2-moe-mixed",
    "qwen3-moe",
]


def decoder_of(folder: Any, quant: str = "none:dtype=float32") -> TorchDecoder:
    return TorchDecoder.from_checkpoint(open_checkpoint(folder), QUANTS.build(quant))


def prompt(decoder: DecoderWeights, tokens: list[int], sizes: list[int]) -> Any:
    """Logits of all tokens, in chunks of these sizes."""
    model, cache = NativeModel(decoder, 64), new_cache(decoder)
    ends = list(itertools.accumulate(sizes, initial=0))
    chunks = [tokens[a:b] for a, b in itertools.pairwise(ends)]
    return np.concatenate([run(model, cache, chunk, prompt=True) for chunk in chunks])


def changed(decoder: DecoderWeights, **fields: Any) -> TorchDecoder:
    """Return the decoder with another rule."""
    assert decoder.config.experts is not None
    experts = dataclasses.replace(decoder.config.experts, **fields)
    return TorchDecoder(dataclasses.replace(decoder.config, experts=experts), decoder.weights)


def chosen(decoder: TorchDecoder, token: int) -> list[list[int]]:
    """Return the experts of each layer that a first token goes to, by the reference."""
    found: list[list[int]] = []

    class Watched(TorchDecoder):
        def _experts(self, index: int, block: ExpertMLP, x: torch.Tensor, *stream: Any) -> Any:
            found.append(self._routes(index, block, x, *stream)[-1].nonzero()[:, 0].tolist())
            return super()._experts(index, block, x, *stream)

    watched = Watched(decoder.config, decoder.weights)
    watched.forward(torch.tensor([token]), new_cache(watched))
    return found


def of_experts(config: DecoderConfig, layer: int) -> list[ExpertMLP]:
    return [block for block in config.blocks(layer) if isinstance(block, ExpertMLP)]


def poisoned(decoder: TorchDecoder, layer: int, expert: int) -> TorchDecoder:
    """Return the decoder with huge weights in one expert, and biases where it has them."""
    weights = dict(decoder.weights)
    (block,) = of_experts(decoder.config, layer)
    for part in block.matrices:
        if "expert_" not in part:
            continue
        name = f"layers.{layer}.{part}"
        matrix = decoder.matrix(name)
        values = dense(matrix).numpy().copy()
        rows = matrix.rows // decoder.config.experts.count  # type: ignore[union-attr]
        own = slice(expert * rows, (expert + 1) * rows)
        values[own] = 1e4
        bias = None if matrix.bias is None else matrix.bias.copy()
        if bias is not None:
            bias[own] = 1e4
        packed = QUANTS.build("none:dtype=float32").pack(values)
        weights[name] = dataclasses.replace(packed, bias=bias)
    return TorchDecoder(decoder.config, weights)


@pytest.mark.parametrize("variant", VARIANTS)
def test_only_chosen_experts_are_read(variant: str, checkpoints: Any) -> None:
    """What the others hold changes no bit, and what a chosen one holds does."""
    decoder, token = decoder_of(checkpoints(variant)), int(TOKENS[0])
    before = prompt(decoder, [token], [1])
    experts = decoder.config.experts
    assert experts is not None
    layers = [at for at in range(len(decoder.config.layers)) if of_experts(decoder.config, at)]
    for layer, taken in zip(layers, chosen(decoder, token), strict=True):
        assert len(taken) == experts.chosen
        for expert in range(experts.count):
            after = prompt(poisoned(decoder, layer, expert), [token], [1])
            assert np.array_equal(before, after) == (expert not in taken), (layer, expert)


@pytest.mark.parametrize("variant", VARIANTS)
def test_experts_are_counted_once_a_step(variant: str, checkpoints: Any) -> None:
    decoder = decoder_of(checkpoints(variant))
    config, experts = decoder.config, decoder.config.experts
    assert experts is not None
    model, trace = NativeModel(decoder, 64), Trace(len(config.cached), config.kv_heads)
    layers = sum(len(of_experts(config, at)) for at in range(len(config.layers)))
    first, second = 3, 9
    taken = [chosen(decoder, token) for token in (first, second)]
    biased = "expert_up" in config.biases
    matrices = 3 if experts.gated else 2
    entries = experts.narrow or config.width
    values = matrices * experts.inner * entries + biased * (2 * experts.inner + entries)
    each = 4 * values  # bytes of an expert in float32
    model.step([StepRows(new_cache(decoder), [first])], trace)
    assert (trace.experts_read, trace.experts_held) == (
        layers * experts.chosen,
        layers * experts.count,
    )
    assert trace.expert_bytes_read == each * trace.experts_read
    assert trace.expert_bytes_held == each * trace.experts_held
    stacks = sum(
        weight.bytes
        for name, weight in decoder.weights.items()
        if isinstance(weight, PackedLinear) and "expert_" in name
    )
    assert trace.expert_bytes_held == stacks
    rest = trace.weight_bytes_read - trace.expert_bytes_read
    before = trace.copy()
    batch = [StepRows(new_cache(decoder), [token]) for token in (first, first, second)]
    model.step(batch, trace)
    added = trace.since(before)
    together = sum(len({*a, *b}) for a, b in zip(*taken, strict=True))
    assert added.experts_read == together < 3 * layers * experts.chosen
    assert added.experts_held == layers * experts.count
    assert added.weight_bytes_read == rest + each * added.experts_read
    assert added.plain()["expert_bytes_read"] == each * added.experts_read


def several(decoder: DecoderWeights) -> TorchDecoder:
    """Return the decoder with four experts for a row: the sum of two has no order."""
    return changed(decoder, chosen=4)


SPLITS = [(1, [48]), (1, [1] * 48), (2, [16, 16, 16]), (2, [7, 1, 20, 17, 3]), (3, [40, 8])]
STORED = ["none:dtype=float32", "none:dtype=bfloat16", "int8", "int8:act_bits=8", "4bit"]


@pytest.mark.parametrize("quant", STORED)
@pytest.mark.parametrize("variant", ["qwen2-moe", "qwen3-moe", "granite-moe"])
def test_chunks_and_threads_change_no_bit(variant: str, quant: str, checkpoints: Any) -> None:
    decoder, tokens = several(decoder_of(checkpoints(variant), quant)), TOKENS.tolist()
    before = native.threads()
    found = []
    try:
        for threads, sizes in SPLITS:  # more threads than the cores there may be
            native.core.set_threads(threads)
            found.append(prompt(decoder, tokens, sizes))
    finally:
        native.set_threads(before)
    for other in found[1:]:
        assert np.array_equal(found[0], other)


@pytest.mark.parametrize("quant", STORED)
def test_a_row_is_the_same_whatever_else_is_run(
    each_isa: str, quant: str, checkpoints: Any
) -> None:
    decoder = several(decoder_of(checkpoints("qwen2-moe"), quant))
    model, tokens = NativeModel(decoder, 64), TOKENS[:20].tolist()
    alone = [model.step([StepRows(new_cache(decoder), [token])])[0] for token in tokens]
    for count in (2, 7, 20):
        rows = [StepRows(new_cache(decoder), [token]) for token in tokens[:count]]
        assert np.array_equal(model.step(rows), np.stack(alone[:count])), count


RULES: list[dict[str, Any]] = [
    {"steps": ("softmax", "top")},
    {"steps": ("softmax", "top", "normalize")},
    {"steps": ("top", "softmax")},
    {"steps": ("softmax", "top", "normalize"), "scale": 2.5},
    {"steps": ("top", "softmax"), "chosen": 1},
    {"steps": ("softmax", "top"), "chosen": 6},
    {"steps": ("sigmoid", "top", "normalize"), "scale": 1.5},
    {"steps": ("in_turn",), "margin": 0.2},
    {"steps": ("in_turn",), "margin": 0.8, "chosen": 3},
    {"steps": ("top", "sigmoid"), "before": True},
    {"steps": ("softmax", "best_groups", "top"), "groups": 3, "kept_groups": 1},
    {"steps": ("sigmoid", "best_pairs", "top", "normalize"), "groups": 3, "kept_groups": 1},
]


@pytest.mark.parametrize("fields", RULES, ids=str)
def test_rules_are_the_reference_s(fields: dict[str, Any], checkpoints: Any) -> None:
    plain = decoder_of(checkpoints("olmoe"))
    same = {1: RULES[2], 2: RULES[1]}.get(RULES.index(fields))  # but for the order of its steps
    decoder = changed(plain, **fields)
    ours = prompt(decoder, TOKENS.tolist(), [30, 18])
    theirs = decoder.forward(TOKENS, new_cache(decoder), logits="all")
    assert theirs is not None
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=1e-3)
    for other in (changed(plain, **each) for each in RULES if each not in (fields, same)):
        wrong = other.forward(TOKENS, new_cache(other), logits="all")
        assert wrong is not None
        assert np.abs(ours - wrong.numpy()).max() > 0.05


def test_of_equal_scores_the_first_experts_are_taken(checkpoints: Any) -> None:
    decoder = decoder_of(checkpoints("mixtral"))
    for layer in range(len(decoder.config.layers)):
        name = f"layers.{layer}.router"
        # Of equal rows that are not 0, PyTorch's products differ with AVX-512.
        zeros = np.zeros_like(dense(decoder.matrix(name)).numpy())
        decoder.weights[name] = QUANTS.build("none:dtype=float32").pack(zeros)
    assert chosen(decoder, 5) == [[0, 1]] * 3
    logits = prompt(decoder, [5], [1])
    for layer, expert in itertools.product(range(3), range(6)):
        after = prompt(poisoned(decoder, layer, expert), [5], [1])
        assert np.array_equal(logits, after) == (expert > 1)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (("softmax", "top"), [0.0, 0.25, 0.0, 0.5]),
        (("softmax", "top", "normalize"), [0.0, 1 / 3, 0.0, 2 / 3]),
        (("top", "softmax"), [0.0, 1 / 3, 0.0, 2 / 3]),
    ],
)
def test_the_reference_of_a_rule(steps: tuple[str, ...], expected: list[float]) -> None:
    """On logits whose softmax is 1/8, 1/4, 1/8, 1/2."""
    logits = torch.tensor([[1.0, 2.0, 1.0, 4.0]]).log()
    found = route(logits, Experts(4, 2, 16, steps))
    torch.testing.assert_close(found, torch.tensor([expected]))
    doubled = route(logits, Experts(4, 2, 16, steps, scale=2.0))
    torch.testing.assert_close(doubled, 2 * torch.tensor([expected]))


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        ([4.0, 1.0, 3.0, 2.5], [1 / (1 + math.exp(-1)), 0, 1 / (1 + math.exp(-0.5)), 0]),
        ([4.0, 1.0, 2.0, 2.5], [1, 0, 0, 1 / (1 + math.exp(-0.5))]),  # 2.5 is 37 % below 4
        ([-1.0, -1.2, -5.0, 0.0], [1 / (1 + math.exp(-0.2)), 0, 0, 1]),  # 100 % below 0
    ],
)
def test_experts_in_turn(logits: list[float], expected: list[float]) -> None:
    """With a margin of 30 %, of the greater of the best score and the other's size."""
    found = route(torch.tensor([logits]), Experts(4, 2, 16, ("in_turn",), margin=0.3))
    torch.testing.assert_close(found, torch.tensor([expected]))


@pytest.mark.parametrize("quant", ["int8", "4bit", "rtn:bits=4,group=32", "kmeans:hadamard=false"])
@pytest.mark.parametrize("variant", ["mixtral", "qwen2-moe"])
def test_rounded_experts_are_the_reference_s(variant: str, quant: str, checkpoints: Any) -> None:
    """Routers stay as they are stored; the rest is multiplied as it is stored."""
    decoder, plain = decoder_of(checkpoints(variant), quant), decoder_of(checkpoints(variant))
    for name in ("embed", "head", "layers.0.router", "layers.2.router"):
        assert decoder.matrix(name).dtype == ("float32" if "router" in name else "codes")
    tokens = TOKENS[:1].tolist()
    logits = prompt(decoder, tokens, [1])[0]
    expected = decoder.forward(TOKENS[:1], new_cache(decoder))
    exact = plain.forward(TOKENS[:1], new_cache(plain))
    assert expected is not None and exact is not None
    assert np.abs(logits - expected.numpy()).max() < 0.02 * expected.std()
    assert (exact - expected).abs().max() > 0.02 * expected.std()


def test_gates_that_are_stored_otherwise(one_thread: None, checkpoints: Any) -> None:
    """Matrices that share their inputs may take them in forms of their own.

    One thread goes from the experts of a row to the shared one.
    """
    decoder = decoder_of(checkpoints("qwen2-moe"))
    coded = decoder_of(checkpoints("qwen2-moe"), "int8")
    for name in list(decoder.weights):
        if name.endswith(("expert_gate", "shared_up")):
            decoder.weights[name] = coded.weights[name]
    logits = prompt(decoder, TOKENS.tolist(), [20, 1, 27])
    expected = decoder.forward(TOKENS, new_cache(decoder), logits="all")
    plain = prompt(decoder_of(checkpoints("qwen2-moe")), TOKENS.tolist(), [48])
    assert expected is not None
    assert np.abs(logits - expected.numpy()).max() < 0.005 * expected.std()
    assert np.abs(logits - plain).max() > 0.01 * expected.std()


def test_sites_of_experts(checkpoints: Any) -> None:
    """Inputs of `gate` and `up` have 8 bits, those of `down` 16, as in dense layers."""
    decoder = decoder_of(checkpoints("qwen2-moe"), "4bit:act_bits=8")
    for prefix in ("expert_", "shared_"):
        most = [decoder.matrix(f"layers.1.{prefix}{part}").most for part in ("gate", "up", "down")]  # type: ignore[attr-defined]
        assert most == [127, 127, 32639]
        bits = [
            decoder.matrix(f"layers.1.{prefix}{part}").layout.bits  # type: ignore[attr-defined]
            for part in ("gate", "up", "down")
        ]
        assert bits == [4, 4, 5]


def test_what_is_stored_once_more_keeps_its_routers(checkpoints: Any) -> None:
    decoder = decoder_of(checkpoints("mixtral"), "none:dtype=bfloat16")
    less = decoder.requantized(QUANTS.build("4bit"))
    assert less.matrix("layers.1.router") is decoder.matrix("layers.1.router")
    assert less.matrix("layers.1.expert_up").dtype == "codes"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": [0]}, "a routing chooses once"),
        ({"steps": [1, 1]}, "a routing chooses once"),
        ({"steps": [1, 4]}, "a routing chooses once"),
        ({"steps": [1, 7]}, "no such step of a routing"),
        ({"margin": -0.5}, "a negative margin"),
        ({"activation": 7}, "experts have an activation without parameters"),
        ({"chosen": 0}, "from 1 to all experts can be chosen"),
        ({"chosen": 7}, "from 1 to all experts can be chosen"),
        ({"groups": 4}, "groups are equal shares of the experts"),
        ({"groups": 6}, "the groups that are left have the experts that are chosen"),
        ({"inner": 24}, "experts have whole panels of 16 inputs and outputs"),
        ({"inner": 32}, r"expert_gate is \[288, 64\]; \[192, 64\] expected"),
        ({"experts": 2**30}, "more rows of experts than can be numbered"),
        ({"activation": 9}, "no such activation"),
        ({"shared": -1}, "every size of a model is positive"),
        ({"shared": 16}, "the model lacks its shared_gate weight"),
    ],
)
def test_the_core_checks_its_arguments(
    change: dict[str, Any], message: str, checkpoints: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = decoder_of(checkpoints("mixtral"))
    plain = native.core.Model.add_experts
    names = ("experts", "inner", "shared", "activation", "steps", "chosen", "scale")
    names += ("margin", "before", "groups", "kept_groups")

    class Changed(native.core.Model):
        def add_experts(self, parts: Any, *arguments: Any) -> None:
            plain(self, parts, **(dict(zip(names, arguments, strict=True)) | change))

    monkeypatch.setattr(native.core, "Model", Changed)
    with pytest.raises(ValueError, match=f"^{message}$"):
        NativeModel(decoder, 64)


@pytest.mark.parametrize(
    ("variant", "fields", "message"),
    [
        ("mixtral", {"num_experts_per_tok": 7}, r"'num_experts_per_tok' = 7 is more than the 6"),
        ("mixtral", {"num_local_experts": 0}, r"'num_local_experts' = 0 must be a whole number"),
        ("mixtral", {"num_local_experts": 2000}, r"^2000 experts in a layer; at most 1024 can be"),
        (
            "mixtral",
            {"num_local_experts": 7},
            r"missing: model.layers.0.block_sparse_moe.experts.6",
        ),
        (
            "mixtral",
            {"num_local_experts": 5},
            r"unknown: model.layers.0.block_sparse_moe.experts.5",
        ),
        ("mixtral", {"intermediate_size": 40}, r"inner width of an expert is 40; a multiple of 16"),
        ("mixtral", {"intermediate_size": 64}, r"experts.0.w1.weight. has shape \[48, 64\]"),
        ("olmoe", {"clip_qkv": 8.0}, r"'clip_qkv' = 8.0 is not supported; supported: None"),
        ("granite-moe", {"intermediate_size": 32}, r"input_linear.weight. has shape \[5, 96, 64\]"),
        ("qwen3-moe", {"mlp_only_layers": 3}, r"'mlp_only_layers' = 3 must be a list of whole"),
        ("qwen3-moe", {"mlp_only_layers": ["1"]}, r"'mlp_only_layers' = \['1'\] must be a list"),
        ("qwen3-moe", {"decoder_sparse_step": 0}, r"'decoder_sparse_step' = 0 must be a whole"),
        ("qwen2-moe", {"n_group": 4}, r"'n_group' = 4 is not supported"),
        ("qwen2-moe", {"norm_topk_prob": "yes"}, r"'norm_topk_prob' = 'yes' must be true or false"),
    ],
)
def test_configurations_that_are_refused(
    variant: str, fields: dict[str, Any], message: str, checkpoints: Any, tmp_path: Any
) -> None:
    folder = tiny.changed(checkpoints(variant), tmp_path / "changed", **fields)
    with pytest.raises(InputError, match=message) as caught:
        open_checkpoint(folder)
    assert "\n" not in str(caught.value)
