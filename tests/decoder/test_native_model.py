from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hf_reference
import tiny
from caches import cache_for
from native_steps import new_cache, run
from oracle import assert_matches
from suffice import native
from suffice.cache.kv import KVCache
from suffice.checkpoints.open import open_checkpoint
from suffice.decoder.native_model import NativeModel, Omitted
from suffice.decoder.step_rows import StepRows
from suffice.quant import QUANTS, PackedLinear
from suffice.quant.packed_codes import INPUT_LEVELS, PackedCodes
from suffice.quant.sites import SITE_OF
from suffice.quantize.torch_decoder import TorchDecoder
from suffice.trace import Trace

TOKENS = torch.randint(0, tiny.VOCABULARY, (40,), generator=torch.Generator().manual_seed(1))


@functools.lru_cache(maxsize=16)
def loaded(folder: Path, quant: str) -> TorchDecoder:
    return TorchDecoder.from_checkpoint(open_checkpoint(folder), QUANTS.build(quant))


def models(folder: Path, quant: str = "none:dtype=float32") -> tuple[TorchDecoder, NativeModel]:
    kept = loaded(folder, quant)
    decoder = TorchDecoder(kept.config, dict(kept.weights))  # a test may change its weights
    return decoder, NativeModel(decoder, 64)


@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_logits_are_those_of_transformers(each_isa: str, variant: str, checkpoints: Any) -> None:
    folder = checkpoints(variant)
    kept, tokens = loaded(folder, "none:dtype=float32"), TOKENS.tolist()
    decoder = TorchDecoder(kept.config.fitted(len(tokens)), kept.weights)
    model = NativeModel(decoder, 64)
    exact, same = hf_reference.exact_and_single(folder, tuple(tokens))
    for sizes in ([*[1] * 8, 20, *[1] * 12], [16, 16, 8], [7, 1, 1, 12, 3, 16]):
        cache, logits, start = new_cache(decoder), [], 0
        for size in sizes:
            logits.append(run(model, cache, tokens[start : start + size]))
            start += size
        assert_matches(np.concatenate(logits), exact, same, factor=4)


@pytest.mark.parametrize("width", [36, 44])
def test_a_width_of_no_whole_vectors(each_isa: str, width: int, tmp_path: Path) -> None:
    shape = {"hidden_size": width, "num_attention_heads": 4, "head_dim": 16}
    decoder, model = models(tiny.make(tmp_path, "llama", num_key_value_heads=2, **shape))
    expected = decoder.forward(TOKENS[:5], new_cache(decoder), logits="all")
    assert expected is not None
    found = run(model, new_cache(decoder), TOKENS[:5].tolist())
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-4)


CODED = ["llama", "llama-bias", "gemma3", "granite", "neox", "olmo2", "opt-post"]
METHODS = ["kmeans", "kmeans:hadamard=false,group=64", "rtn:bits=3"]
# A family is an order of calls: all methods meet one, and each other one meets one of them.
CODES = [
    *itertools.product(["llama"], METHODS, native.isas()),
    *zip(CODED[1:], itertools.cycle(METHODS), itertools.cycle(native.isas()), strict=False),
]


@pytest.mark.parametrize(("variant", "quant", "each_isa"), CODES, indirect=["each_isa"])
def test_codes_are_the_decoder_s(each_isa: str, quant: str, variant: str, checkpoints: Any) -> None:
    """The step on codes against PyTorch on the decoded weights, which differ by 16-bit inputs."""
    decoder, _ = models(checkpoints(variant), quant)
    plain, _ = models(checkpoints(variant))
    for name in ("embed", "head"):  # in int8 their inputs would be rounded to 8 bits
        if name in decoder.weights:
            decoder.weights[name] = plain.weights[name]
    model = NativeModel(decoder, 64)
    logits = run(model, new_cache(decoder), TOKENS[:30].tolist())
    expected = decoder.forward(TOKENS[:30], new_cache(decoder), logits="all")
    exact = plain.forward(TOKENS[:30], new_cache(plain), logits="all")
    assert expected is not None and exact is not None
    assert np.abs(logits - expected.numpy()).max() < 0.01 * expected.std()
    assert (exact - expected).abs().max() > 0.1 * expected.std()  # or it would show nothing


def test_matrices_of_one_input_have_orders_of_their_own(checkpoints: Any) -> None:
    decoder, _ = models(checkpoints("llama"), "rtn:bits=4,group=32")
    random = np.random.default_rng(0)
    for name, weight in list(decoder.weights.items()):
        if name.endswith((".q", ".k", ".v", ".gate", ".up")):
            assert isinstance(weight, PackedCodes)
            order = random.permutation(weight.columns).astype(np.int32)
            decoder.weights[name] = dataclasses.replace(weight, order=order)
    logits = run(NativeModel(decoder, 64), new_cache(decoder), TOKENS[:30].tolist())
    expected = decoder.forward(TOKENS[:30], new_cache(decoder), logits="all")
    assert expected is not None
    assert np.abs(logits - expected.numpy()).max() < 0.01 * expected.std()


def test_matrices_of_one_input_have_levels_of_any_range(each_isa: str, checkpoints: Any) -> None:
    """Many rows take inputs of 8 bits in another form if bytes cannot multiply the levels."""
    decoder, _ = models(checkpoints("llama"), "rtn:bits=4,group=32,act_bits=8")
    wide = np.linspace(0, 255, 16).astype(np.uint8)
    for name, weight in list(decoder.weights.items()):
        if name.endswith((".k", ".v", ".up")):
            assert isinstance(weight, PackedCodes)
            decoder.weights[name] = dataclasses.replace(weight, levels=wide)
    model, cache = NativeModel(decoder, 64), new_cache(decoder)
    logits = run(model, new_cache(decoder), TOKENS[:30].tolist())
    steps = [run(model, cache, [token]) for token in TOKENS[:30].tolist()]
    assert np.array_equal(np.concatenate(steps), logits)


OTHER = {
    "gemma3": ("int8", "bfloat16"),
    "granite-moe": ("int8", "float32"),
    "neox": ("none:dtype=bfloat16", "int8"),
    "olmo2": ("int8", "float32"),
    "opt-post": ("kmeans:group=64,act_bits=8", "kmeans4"),
    "qwen2-moe": ("none:dtype=bfloat16", "bfloat16"),
}
QUANTS_HELD = ["none:dtype=float32", "none:dtype=bfloat16", "int8", "kmeans:group=64,act_bits=8"]
KV_HELD = ["float32", "bfloat16", "int8", "kmeans4", "planes"]
# Weights and keys meet in no kernel, and a family is an order of calls: each needs one partner.
TOGETHER = [
    *(
        (isa, "llama", *pair)
        for isa in native.isas()
        for pair in zip(itertools.cycle(QUANTS_HELD), KV_HELD, strict=False)
    ),
    *((native.isas()[0], "llama", *pair) for pair in itertools.product(QUANTS_HELD, KV_HELD)),
    *((isa, v, *OTHER[v]) for isa in native.isas() for v in OTHER),
]


@pytest.mark.parametrize(
    ("each_isa", "variant", "quant", "kv"), list(dict.fromkeys(TOGETHER)), indirect=["each_isa"]
)
def test_a_batch_equals_its_rows(
    each_isa: str, quant: str, kv: str, variant: str, checkpoints: Any
) -> None:
    """Bit for bit: neighbours, drafts and the number of rows change nothing.

    Only a draft with a wrong one before it among the rows sums in another order.
    """
    decoder, model = models(checkpoints(variant), quant)
    tokens = TOKENS.tolist()
    alone = []
    for start in (0, 5, 11):
        cache = new_cache(decoder, kv)
        run(model, cache, tokens[start : start + 9])
        alone.append([run(model, cache, [token])[0] for token in tokens[:4]])
    caches = [new_cache(decoder, kv) for _ in range(3)]
    for cache, start in zip(caches, (0, 5, 11), strict=True):
        for token in tokens[start : start + 9]:
            run(model, cache, [token])
    batch = model.step(
        [
            StepRows(caches[0], tokens[:4], outputs=None),
            StepRows(caches[1], tokens[:1]),
            # a tree: two wrong drafts next to the right ones
            StepRows(caches[2], [tokens[0], 7, tokens[1], 8], [-1, 0, 0, 2], outputs=None),
        ]
    )
    for i in range(4):
        assert np.array_equal(batch[i], alone[0][i])
    assert np.array_equal(batch[4], alone[1][0])
    assert np.array_equal(batch[5], alone[2][0])
    atol = 0.05 if {"int8", "planes"} & {quant, kv} or "act_bits=8" in quant else 1e-3
    if kv == "kmeans4":  # what rounding a value's weight leaves goes to rows that come later
        atol = 0.25 * float(np.stack(alone[2]).std())
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=atol)
    close(batch[7], alone[2][1])
    caches[2].commit([0, 2])
    rest = model.step([StepRows(caches[2], tokens[2:4], outputs=None)])
    close(rest, np.stack(alone[2][2:]))


def after(decoder: TorchDecoder, model: NativeModel, decided: Any = None) -> np.ndarray:
    """Logits of steps of a token and of three behind 24 tokens that the whole model has run."""
    cache = new_cache(decoder)
    run(NativeModel(decoder, 64), cache, TOKENS[:24].tolist())
    if decided:
        decided(cache)
    one = run(model, cache, TOKENS[24:25].tolist())
    three = model.step([StepRows(cache, TOKENS[25:28].tolist(), outputs=None)])
    return np.concatenate((one, three))


@pytest.mark.parametrize(("recent", "sinks"), [(1, 0), (5, 0), (6, 4), (3, 16), (40, 4)])
def test_a_step_sees_recent_keys_and_sinks(
    each_isa: str, recent: int, sinks: int, checkpoints: Any
) -> None:
    """Those that it would see if a policy let it."""

    def policy(cache: KVCache) -> None:
        for layer in range(len(decoder.config.layers)):
            cache.set_visible(layer, sinks=sinks, recent=recent)

    decoder, model = models(checkpoints("llama"))
    less = NativeModel(decoder, 64, omitted=Omitted(recent, sinks))
    assert np.array_equal(after(decoder, less), after(decoder, model, policy))
    assert np.array_equal(after(decoder, less), after(decoder, model)) == (recent == 40)


def test_a_window_of_a_layer_s_own_stays(checkpoints: Any) -> None:
    decoder, _ = models(checkpoints("gemma3"))  # windows of 8 and all keys
    for recent in (5, 12):
        layers = tuple(
            dataclasses.replace(layer, window=min(layer.window or recent, recent))
            for layer in decoder.config.layers
        )
        narrow = TorchDecoder(dataclasses.replace(decoder.config, layers=layers), decoder.weights)
        less = NativeModel(decoder, 64, omitted=Omitted(recent))
        assert np.array_equal(after(decoder, less), after(decoder, NativeModel(narrow, 64)))


@pytest.mark.parametrize("variant", ["llama", "mixtral", "neox", "opt-post", "smollm3"])
def test_layers_are_skipped(variant: str, checkpoints: Any) -> None:
    """The rest is a model of fewer layers."""
    decoder, _ = models(checkpoints(variant))
    layers, tokens = decoder.config.layers, TOKENS[:9].tolist()
    for skipped in ((0,), (1,), (0, 2)):
        kept = [index for index in range(len(layers)) if index not in skipped]
        weights = {
            name: weight
            for name, weight in decoder.weights.items()
            if not name.startswith("layers.")
        }
        for to, index in enumerate(kept):
            for name, weight in decoder.weights.items():
                if name.startswith(f"layers.{index}."):
                    weights[name.replace(f".{index}.", f".{to}.")] = weight
        config = dataclasses.replace(decoder.config, layers=tuple(layers[at] for at in kept))
        shallow = TorchDecoder(config, weights)
        less = NativeModel(decoder, 64, omitted=Omitted(layers=skipped))
        assert np.array_equal(
            run(less, new_cache(decoder), tokens),
            run(NativeModel(shallow, 64), new_cache(shallow), tokens),
        )


def test_rotations_are_made_as_positions_are_reached(
    checkpoints: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any context, the bits equal those of tables that were made at once."""
    decoder, at_once = models(checkpoints("gemma3"))
    monkeypatch.setattr("suffice.decoder.native_model.FIRST_POSITIONS", 5)
    later = NativeModel(decoder, 2**31 - 1)
    caches = [new_cache(decoder), new_cache(decoder)]
    tokens = TOKENS[:40].tolist()
    for start in (0, 3, 6, 20):
        part = tokens[start : start + 14]
        found = [
            run(model, cache, part) for model, cache in zip((at_once, later), caches, strict=True)
        ]
        assert np.array_equal(*found)


def test_weights_are_stored_once_more(checkpoints: Any) -> None:
    """Where that saves something: the rest is shared."""
    decoder, _ = models(checkpoints("llama"), "int8")
    assert decoder.requantized(QUANTS.build("int8")) is decoder
    assert decoder.requantized(QUANTS.build("none:dtype=bfloat16")) is decoder
    less = decoder.requantized(QUANTS.build("rtn:group=32,act_bits=8"))
    for name, weight in less.weights.items():
        own = decoder.weights[name]
        if name.startswith("layers.") and isinstance(own, PackedLinear):
            assert isinstance(weight, PackedLinear)
            assert weight.bytes < own.bytes
            assert np.array_equal(weight.bias, own.bias)
            expected = QUANTS.build("rtn:group=32,act_bits=8").pack(own.unpack())
            assert np.array_equal(weight.unpack(), expected.unpack())
        else:
            assert weight is own


def test_sites_are_minded_where_nothing_is_calibrated(checkpoints: Any) -> None:
    """When a model is loaded, and when it is stored once more."""
    quant = QUANTS.build("kmeans:act_bits=8,sites=o+down")
    decoder = TorchDecoder.from_checkpoint(open_checkpoint(checkpoints("llama")), quant)
    plain, _ = models(checkpoints("llama"), "int8")
    for weights in (decoder.weights, plain.requantized(quant).weights):
        for matrix in SITE_OF:
            weight = weights[f"layers.1.{matrix}"]
            assert isinstance(weight, PackedCodes)
            assert weight.most == INPUT_LEVELS[8 if matrix in ("o", "down") else 16]


def test_int8_equals_its_definition(each_isa: str, checkpoints: Any) -> None:
    """The integer products are exact, so every instruction set agrees with plain loops closely."""
    decoder, model = models(checkpoints("llama"), "int8")
    before, results = native.isa(), []
    for isa in (before, "base"):
        native.use_isa(isa)
        results.append(run(model, new_cache(decoder, "int8"), TOKENS[:16].tolist()))
    native.use_isa(before)
    spread = results[0].std()
    assert np.abs(results[0] - results[1]).mean() < 0.05 * spread


def test_what_was_read_is_counted(checkpoints: Any) -> None:
    decoder, model = models(checkpoints("gemma3"))
    config = decoder.config
    cache, trace = new_cache(decoder), Trace(len(config.layers), config.kv_heads)
    run(model, cache, TOKENS[:16].tolist())
    model.step([StepRows(cache, [1])], trace)
    keys, values, held, *_ = trace.rows
    assert trace.steps == 1
    assert (held == 17).all()
    assert (keys == values).all() and (keys > 0).all() and (keys <= held).all()
    whole = [index for index, layer in enumerate(config.layers) if layer.window is None]
    assert whole and (keys[whole] == 17).all()
    row_bytes = config.head_size * 4 * 2
    assert trace.kv_bytes_read == keys.sum() * row_bytes
    assert trace.kv_bytes_held == held.sum() * row_bytes
    before = trace.copy()
    model.step([StepRows(cache, [1]), StepRows(new_cache(decoder), [1, 2])], trace)
    added = trace.since(before)
    assert added.steps == 1 and (added.rows[2] == 17 + 1 + 2).all(), "for every token of the step"
    plain = json.loads(json.dumps(added.plain()))
    assert np.array_equal(plain["key_rows_read"], added.rows[0])
    weights = sum(weight.bytes for weight in decoder.weights.values() if hasattr(weight, "unpack"))
    assert 0.9 * weights <= added.weight_bytes_read <= 1.2 * weights


def test_timed_parts_change_no_logit_and_are_taken_once(checkpoints: Any) -> None:
    decoder, model = models(checkpoints("llama"))
    plain = run(model, new_cache(decoder), TOKENS[:20].tolist())
    assert not any(model.take_part_seconds().values()), "nobody timed them"
    model.time_parts(True)
    assert np.array_equal(run(model, new_cache(decoder), TOKENS[:20].tolist()), plain)
    seconds = model.take_part_seconds()
    assert min(seconds[part] for part in ("products", "attention", "norms", "heads")) > 0
    assert not any(model.take_part_seconds().values())
    model.time_parts(False)
    run(model, new_cache(decoder), TOKENS[:20].tolist())
    assert not any(model.take_part_seconds().values())


def test_parts_are_timed_after_a_step_that_failed(checkpoints: Any) -> None:
    decoder, model = models(checkpoints("llama"))
    plain = run(model, new_cache(decoder), TOKENS[:20].tolist())
    model.time_parts(True)
    cache = new_cache(decoder)
    with pytest.raises(ValueError, match="outside the vocabulary"):
        model.step([StepRows(cache, [3, tiny.VOCABULARY])])
    cache.rollback()
    assert not any(model.take_part_seconds().values()), "it ended before its first part"
    assert np.array_equal(run(model, cache, TOKENS[:20].tolist()), plain)
    seconds = model.take_part_seconds()
    assert min(seconds[part] for part in ("products", "attention", "norms", "heads")) > 0
    assert not any(model.take_part_seconds().values())


def test_no_position_and_no_adapter_beyond_the_last(checkpoints: Any) -> None:
    decoder, model = models(checkpoints("llama"))  # of 64 positions, without adapters
    cache = cache_for(decoder, "float32", growth="upfront", limit=80)
    cache.reserve(80)
    cache.advance(63)
    model.step([StepRows(cache, [1])])
    cache.commit([0])
    with pytest.raises(ValueError, match=r"^position 64 exceeds the model's 64$"):
        model.step([StepRows(cache, [1])])
    cache.truncate(1)
    for adapter in (-2, 0):
        with pytest.raises(ValueError, match=f"^there is no adapter {adapter}$"):
            model.step([StepRows(cache, [1], adapter=adapter)])


@pytest.mark.parametrize("threads", [1, 2])
def test_maxima_are_those_of_blocks_of_logits(
    each_isa: str, threads: int, checkpoints: Any
) -> None:
    """Of each thread's panels; the last block is not whole, and its padding does not count."""
    if threads > native.cores():
        pytest.skip("needs two cores")
    before = native.threads()
    native.set_threads(threads)
    for variant in ("llama", "granite"):  # granite scales its logits
        decoder, model = models(checkpoints(variant))
        for count in (1, 5, 17, 33):
            caches = [new_cache(decoder) for _ in range(count)]
            batch = [StepRows(cache, [at + 3]) for at, cache in enumerate(caches)]
            blocks = -(-tiny.VOCABULARY // native.LOGIT_BLOCK)
            maxima = np.full((count, blocks), np.nan, np.float32)
            logits = model.step(batch, maxima=maxima)
            expected = np.full((count, blocks * native.LOGIT_BLOCK), -np.inf, np.float32)
            expected[:, : tiny.VOCABULARY] = logits
            assert np.array_equal(maxima, expected.reshape(count, blocks, -1).max(2))
    native.set_threads(before)
