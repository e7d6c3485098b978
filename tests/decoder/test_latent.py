"""Latent attention: its sizes, matrices and rows, and the core against PyTorch, which makes keys
and values of them that the core never makes (torch_latent.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from caches import cache_for
from native_steps import new_cache, run
from suffice.cache import JOINT_DTYPES, token_bytes
from suffice.checkpoints.open import open_checkpoint
from suffice.decoder.blocks import LatentAttention
from suffice.decoder.families import family_of
from suffice.decoder.latent import Latent
from suffice.decoder.native_model import NativeModel
from suffice.decoder.step_rows import StepRows
from suffice.errors import InputError
from suffice.quant import QUANTS
from suffice.quantize.torch_decoder import TorchDecoder
from suffice.quantize.torch_latent import LatentHeads

TOKENS = torch.randint(0, tiny.VOCABULARY, (40,), generator=torch.Generator().manual_seed(1))
VARIANTS = ("deepseek-v2", "deepseek-v2-lite", "deepseek-v3-bias", "minicpm3")
WRITTEN = json.loads((Path(__file__).parent / "configs" / "transformers-5.json").read_text())


def decoder_of(folder: Path, quant: str = "none:dtype=float32") -> TorchDecoder:
    return TorchDecoder.from_checkpoint(open_checkpoint(folder), QUANTS.build(quant))


def test_the_matrices_of_a_block(checkpoints: Any) -> None:
    config = open_checkpoint(checkpoints("deepseek-v2")).config
    block = config.blocks(1)[0]
    assert isinstance(block, LatentAttention)
    assert block.matrices == {
        "q_low": (40, 64),
        "q": (4 * 48, 40),
        "kv": (64, 64),
        "key_up": (4 * 48, 32),
        "value_up": (4 * 16, 48),
        "o": (64, 64),
    }
    assert block.vectors == {"q_norm": (40,), "kv_norm": (48,)}
    assert (config.kv_heads, config.head_size, config.joint) == (1, 64, 48)
    assert config.rotary_size(0) == 16
    without = open_checkpoint(checkpoints("deepseek-v2-lite")).config.blocks(1)[0]
    assert "q_low" not in without.matrices and set(without.vectors) == {"kv_norm"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rank": 500}, "'kv_lora_rank' = 500 is not supported; supported: multiples of 16"),
        ({"plain": 100}, "'qk_nope_head_dim' = 100 is not supported"),
        ({"rotated": 24}, "'qk_rope_head_dim' = 24 is not supported"),
        ({"value": 72}, "'v_head_dim' = 72 is not supported"),
        ({"rank": 528}, "'kv_lora_rank' [+] 'qk_rope_head_dim' = 592 are more than the 576"),
    ],
)
def test_sizes_that_are_refused(fields: dict[str, int], message: str) -> None:
    sizes = {"rank": 512, "plain": 128, "rotated": 64, "value": 128}
    assert Latent(**sizes).row == 576
    with pytest.raises(InputError, match=message):
        Latent(**{**sizes, **fields})


@pytest.mark.parametrize(
    ("variant", "fields", "message"),
    [
        ("deepseek-v2", {"num_key_value_heads": 2}, "'num_key_value_heads' = 2 is not supported"),
        ("deepseek-v2", {"qk_head_dim": 64}, "'qk_head_dim' = 64 is not supported; supported: 48"),
        ("deepseek-v2", {"head_dim": 48}, "'head_dim' = 48 is not supported; supported: 16"),
        ("deepseek-v2", {"topk_method": "noaux_tc"}, "'topk_method' = 'noaux_tc' is not supp"),
        ("deepseek-v2", {"scoring_func": "sigmoid"}, "'scoring_func' = 'sigmoid' is not supported"),
        ("deepseek-v2", {"norm_topk_prob": True}, "'norm_topk_prob' = True is not supported"),
        ("deepseek-v3", {"n_group": 3}, "'n_group' = 3 does not share out 8 experts"),
        ("deepseek-v3", {"n_group": 8}, "to groups of at least 2"),
        ("deepseek-v3", {"topk_group": 1}, "'topk_group' = 1 of 4 groups leaves no 3 of 8 experts"),
        ("glm4-moe-lite", {"mlp_layer_types": ["dense"]}, "must be a list of 3 of dense, sparse"),
        ("youtu", {"mlp_bias": True}, "'mlp_bias' = True is not supported"),
    ],
)
def test_configurations_that_are_refused(
    variant: str, fields: dict[str, Any], message: str, checkpoints: Any, tmp_path: Path
) -> None:
    folder = tiny.changed(checkpoints(variant), tmp_path / "changed", **fields)
    with pytest.raises(InputError, match=message) as caught:
        open_checkpoint(folder)
    assert "\n" not in str(caught.value)


def test_a_row_of_a_large_model_is_short() -> None:
    """DeepSeek V3: 576 entries in place of 128 keys of 192 and as many values of 128."""
    raw = WRITTEN["deepseek-v3"]
    config = family_of(raw).read(raw)
    row = token_bytes("bfloat16", "bfloat16", config.rows[:1], joint=True)
    assert row == 2 * 576
    assert row < 0.015 * 2 * 128 * (192 + 128)


def test_heads_are_absorbed() -> None:
    random = torch.Generator().manual_seed(0)
    latent = Latent(rank=48, plain=32, rotated=16, value=16)
    up, down, rows, q = (
        torch.randn(shape, generator=random, dtype=torch.float64)
        for shape in ((4, 48, 32), (4, 16, 48), (9, 64), (4, 3, 48))
    )
    heads = LatentHeads(latent, up, down)
    scores = q @ heads.keys(rows).transpose(1, 2)
    torch.testing.assert_close(heads.absorbed(q) @ rows.T, scores)
    weights = scores.softmax(dim=-1)
    values = torch.einsum("hts,sr,hvr->htv", weights, rows[:, :48], down)
    torch.testing.assert_close(weights @ heads.values(rows), values)


@pytest.mark.parametrize("dtype", JOINT_DTYPES)
@pytest.mark.parametrize("variant", ["minicpm3", "youtu"])  # without experts, whose choice jumps
def test_the_core_attends_to_stored_rows(variant: str, dtype: str, checkpoints: Any) -> None:
    """Both read the rows as they are stored, so that they differ by little in any type."""
    decoder = decoder_of(checkpoints(variant))
    expected = decoder.forward(TOKENS, new_cache(decoder, dtype), logits="all")
    assert expected is not None
    model, found, start = NativeModel(decoder, 64), [], 0
    cache = new_cache(decoder, dtype)
    for size in (1, 16, 7, 1, 15):
        found.append(run(model, cache, TOKENS[start : start + size].tolist()))
        start += size
    ours, theirs = np.concatenate(found), expected.numpy()
    # A stored row's rounding may fall to the other side, where the core's sum differs in a bit.
    within = 1e-3 if dtype == "float32" else 0.15
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=within * theirs.std())


@pytest.mark.parametrize("quant", ["int8", "rtn:bits=4,group=32"])
def test_rounded_matrices_are_the_reference_s(quant: str, checkpoints: Any) -> None:
    decoder = decoder_of(checkpoints("minicpm3"), quant)
    expected = decoder.forward(TOKENS, new_cache(decoder), logits="all")
    plain = decoder_of(checkpoints("minicpm3"))
    exact = plain.forward(TOKENS, new_cache(plain), logits="all")
    assert expected is not None and exact is not None
    found = run(NativeModel(decoder, 64), new_cache(decoder), TOKENS[:30].tolist())
    error = np.abs(found - expected.numpy()[:30]).max() / expected.std()
    assert error < 0.03
    assert (exact - expected).abs().max() > 0.05 * expected.std()  # or it would show nothing


@pytest.mark.parametrize("variant", VARIANTS)
def test_chunks_and_threads_change_no_bit(each_isa: str, variant: str, checkpoints: Any) -> None:
    from suffice.native import core

    decoder = decoder_of(checkpoints(variant), "none:dtype=bfloat16")
    model, before = NativeModel(decoder, 64), core.threads()
    found = []
    for threads, sizes in ((1, [1] * 30), (2, [16, 14]), (2, [30]), (1, [7, 1, 22])):
        core.set_threads(threads)
        cache, logits, start = new_cache(decoder), [], 0
        for size in sizes:
            part = TOKENS[start : start + size].tolist()
            logits.append(run(model, cache, part, prompt=size > 7))
            start += size
        found.append(np.concatenate(logits))
    core.set_threads(before)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_watched_queries_are_those_of_rows(checkpoints: Any) -> None:
    """A policy that chooses rows by queries gets them as they are compared with rows."""
    decoder = decoder_of(checkpoints("deepseek-v3"))
    seen: dict[str, list[np.ndarray]] = {"torch": [], "core": []}
    tokens = TOKENS[:9]
    decoder.forward(
        tokens, new_cache(decoder), watch=lambda _, queries: seen["torch"].append(queries)
    )
    cache = cache_for(decoder, "float32", growth="upfront", limit=64)
    cache.reserve(64)
    rows = StepRows(
        cache,
        tokens.tolist(),
        exact=True,
        counted=False,
        watch=lambda _, queries: seen["core"].append(queries.copy()),
    )
    NativeModel(decoder, 64).step([rows])
    assert len(seen["core"]) == len(seen["torch"]) == 3
    for ours, theirs in zip(seen["core"], seen["torch"], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
