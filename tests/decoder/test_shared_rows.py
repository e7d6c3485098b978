"""Layers of other sizes, and layers that read what an earlier one stores.

Tests of blocks.py and native_blocks.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from caches import cache_with
from commands import Cli
from native_steps import new_cache, run
from suffice import LLM, SamplingParams
from suffice.cache import LayerRows, token_bytes
from suffice.checkpoints.open import open_checkpoint
from suffice.decoder.families import family_of
from suffice.decoder.native_model import NativeModel, Omitted
from suffice.decoder.step_rows import StepRows
from suffice.decoder.weights import DecoderWeights
from suffice.engine.protocol import Rows
from suffice.errors import InputError
from suffice.quant import QUANTS

TOKENS = torch.randint(0, tiny.VOCABULARY, (40,), generator=torch.Generator().manual_seed(1))
ROWS = (LayerRows(2, 16), LayerRows(1, 32), LayerRows(2, 16, shares=0), LayerRows(1, 32, shares=1))


def weights_of(folder: Path) -> DecoderWeights:
    quant = QUANTS.build("none:dtype=float32")
    return DecoderWeights.from_checkpoint(open_checkpoint(folder), quant)


@pytest.mark.parametrize("variant", ["llama", "gemma4"])
def test_what_has_no_logits_ends_early(variant: str, checkpoints: Any) -> None:
    """Layers after the last that stores have weights that are no numbers, which nobody notices."""
    decoder = weights_of(checkpoints(variant))
    model = NativeModel(decoder, 64)
    config, tokens = decoder.config, TOKENS[:20].tolist()
    last = max(at for at, layer in enumerate(config.layers) if layer.shares is None)
    broken = dict(decoder.weights)
    for name, weight in decoder.weights.items():
        layer = int(name.split(".")[1]) if name.startswith("layers.") else -1
        unread = layer > last or (layer == last and name.endswith(("q_norm", "mlp_norm")))
        if unread and isinstance(weight, np.ndarray):
            broken[name] = np.full_like(weight, np.nan)
    other = NativeModel(DecoderWeights(config, broken), 64)
    first, second = new_cache(decoder), new_cache(decoder)
    other.step([StepRows(first, tokens, outputs=0, exact=True, counted=False)])
    model.step([StepRows(second, tokens, exact=True, counted=False)])
    for cache in (first, second):
        cache.commit(list(range(20)))
    for layer in range(len(config.cached)):
        np.testing.assert_array_equal(first.keys(layer), second.keys(layer))
        np.testing.assert_array_equal(first.values(layer), second.values(layer))
    logits = run(model, first, [7])
    np.testing.assert_array_equal(logits, run(model, second, [7]))
    through_all = run(other, new_cache(decoder), [*tokens, 7])[-1:]
    assert not np.array_equal(through_all, logits), "a token with logits goes through all layers"


def test_a_layer_without_rows_takes_no_memory_and_shows_another_s() -> None:
    cache = cache_with(ROWS, "bfloat16", growth="step:rows=16")
    generator = np.random.default_rng(0)
    cache.reserve(20)
    stored = [generator.standard_normal((2, rows.heads, 20, rows.size)) for rows in ROWS[:2]]
    for layer, (k, v) in enumerate(stored):
        cache.append(layer, k, v)
    cache.advance(20)
    assert cache.row_bytes == token_bytes("bfloat16", "bfloat16", ROWS) == 2 * 2 * (2 * 16 + 32)
    assert cache.held_bytes == 20 * cache.row_bytes
    alone = cache_with(ROWS[:2], "bfloat16", growth="step:rows=16")
    alone.reserve(20)
    assert cache.bytes == alone.bytes
    copy = cache.fork(17)
    for layer, owner in ((2, 0), (3, 1)):
        np.testing.assert_array_equal(cache.keys(layer), cache.keys(owner))
        np.testing.assert_array_equal(copy.values(layer), cache.values(owner)[:, :17])
    kept = np.tile(np.arange(4, 10, dtype=np.int32), (2, 1))
    cache.evict(0, kept)
    assert [cache.held(layer) for layer in range(4)] == [6, 20, 6, 20]
    np.testing.assert_array_equal(cache.keys(2), copy.keys(0)[:, 4:10])
    assert cache.held_bytes == 2 * 2 * (6 * 32 + 20 * 32)


@pytest.mark.parametrize(
    ("layer", "message"), [(2, "layer 2 has no rows of its own"), (4, "there is no such layer")]
)
def test_nothing_is_stored_in_a_layer_without_rows(layer: int, message: str) -> None:
    cache = cache_with(ROWS, "float32")
    cache.reserve(1)
    with pytest.raises(ValueError, match=message):
        cache.append(layer, np.zeros((2, 1, 16)), np.zeros((2, 1, 16)))


@pytest.mark.parametrize(
    "rows",
    [
        (LayerRows(2, 16, shares=0),),
        (LayerRows(2, 16), LayerRows(1, 16, shares=0)),
        (LayerRows(2, 16), LayerRows(2, 32, shares=0)),
        (LayerRows(2, 16), LayerRows(2, 16, shares=2), LayerRows(2, 16)),
        (LayerRows(2, 16), LayerRows(2, 16, shares=0), LayerRows(2, 16, shares=1)),
    ],
)
def test_rows_are_shared_with_an_earlier_layer_of_the_shape(rows: tuple[LayerRows, ...]) -> None:
    with pytest.raises(ValueError, match="shares rows with an earlier one"):
        cache_with(rows, "float32")


@pytest.mark.parametrize(("variant", "sizes"), [("gemma4", [59, 1]), ("gemma4-keys", [60])])
def test_the_last_token_of_a_prompt_runs_alone_where_that_spares_most(
    variant: str, sizes: list[int], tmp_path: Path
) -> None:
    """Half of the layers of one model store nothing, none of the other's."""
    llm = LLM(str(tiny.make(tmp_path / "tiny", variant, tokenizer=True)), dtype="float32")
    ran: list[int] = []
    run = llm.runner.run

    def watched(batch: Sequence[Rows]) -> list[np.ndarray]:
        ran.extend(len(rows.tokens) for rows in batch if rows.prompt)
        return run(batch)

    llm.runner.run = watched  # type: ignore[method-assign]
    llm.generate([list(range(5, 65))], SamplingParams(max_tokens=1, temperature=0))
    assert ran == sizes


def test_what_others_read_is_not_left_out(checkpoints: Any) -> None:
    decoder = weights_of(checkpoints("gemma4"))
    read = sorted({layer.shares for layer in decoder.config.layers} - {None})
    with pytest.raises(ValueError, match=f"layer {read[0]} stores what others read"):
        NativeModel(decoder, 64, omitted=Omitted(layers=(read[0],)))
    last = len(decoder.config.layers) - 1
    model = NativeModel(decoder, 64, omitted=Omitted(layers=(last,)))
    assert np.isfinite(run(model, new_cache(decoder), TOKENS[:8].tolist())).all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"per_layer_config": {"1": {"head_dim": None}}}, "'per_layer_config.head_dim' = None"),
        ({"per_layer_config": {"1": {"head_dim": "32"}}}, "'per_layer_config.head_dim' = '32'"),
        ({"per_layer_config": {"1": {"head_dim": 32.0}}}, "'per_layer_config.head_dim' = 32.0"),
        (
            {"per_layer_config": {"1": {"num_key_value_heads": 0}}},
            "'per_layer_config.num_key_value_heads' = 0",
        ),
        ({"per_layer_config": {"9" * 5000: {"head_dim": 32}}}, "'per_layer_config' ="),
        ({"per_layer_config": {"0": {"head_dim": 32}}}, "'per_layer_config' ="),
        ({"num_kv_shared_layers": -1}, "'num_kv_shared_layers' = -1 must be from 0 to 1"),
        ({"num_kv_shared_layers": 2}, "'num_kv_shared_layers' = 2 must be from 0 to 1"),
        ({"num_kv_shared_layers": 1}, "no layer before has keys and values for layer 1"),
        ({"vocab_size_per_layer_input": 7}, "'vocab_size_per_layer_input' = 7"),
        ({"enable_moe_block": True}, "'num_experts' = None"),
    ],
)
def test_impossible_fields_are_named(fields: dict[str, Any], message: str) -> None:
    raw = {"architectures": ["Gemma4ForCausalLM"], "num_hidden_layers": 2}
    kinds = {"layer_types": ["sliding_attention", "full_attention"]}
    with pytest.raises(InputError) as error:
        family_of(raw).read({**raw, **kinds, **fields})
    assert message in str(error.value)


def test_a_calibration_looks_at_layers_that_read_another_s(cli: Cli, tmp_path: Path) -> None:
    """Its levels are of as many heads as each layer's groups have."""
    for variant in ("gemma4", "gemma4-keys"):
        folder = tiny.make(tmp_path / variant, variant, tokenizer=True)
        text = tmp_path / "text"
        text.write_text("To be, or not to be, that is the question. " * 30)
        given = ("-m", str(folder), "--text", str(text), "--window", "64", "--limit", "2")
        ran = cli("calibrate", *given, "-o", str(tmp_path / f"{variant}.cal"))
        assert ran.code == 0, ran.err
        options = {"calibration": str(tmp_path / f"{variant}.cal"), "softmax": "exaq"}
        llm = LLM(str(folder), dtype="float32", **options)
        found = llm.generate([TOKENS.tolist()], SamplingParams(max_tokens=4, temperature=0))
        assert len(found[0].outputs[0].token_ids) == 4


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kv_cache_dtype": "kmeans4"}, "kv_cache_dtype=kmeans4"),
        ({"kv_cache_dtype": "planes/int8"}, "kv_cache_dtype=planes/int8"),
        ({"attention": "tiers"}, "attention=tiers"),
    ],
)
def test_what_needs_heads_of_one_size_is_refused(
    options: dict[str, str], named: str, tmp_path: Path
) -> None:
    folder = tiny.make(tmp_path / "tiny", "gemma4", tokenizer=True)
    with pytest.raises(InputError) as error:
        LLM(str(folder), **options)
    assert str(error.value).startswith(f"{named} rounds keys by a fit to heads of one size")
