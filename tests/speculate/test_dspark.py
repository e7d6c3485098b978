"""Heads of DSpark: what they draft next to PyTorch, their files, and the law of drawn texts.

Tests markov.py and block_heads.py of both folders; test_drafts_of_heads.py has their texts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import dspark_heads
import heads
from block_engines import cache_of, drafts, parts, refusal_of, with_head
from block_heads import MASK
from dspark_heads import DRAFTS, RANK
from oracle import assert_matches
from suffice import SamplingParams
from suffice.backends.cpu.linear import unpack_rows
from suffice.engine.block_heads import BlockHead
from suffice.engine.runner import Runner
from suffice.errors import InputError
from suffice.sampling import SamplingState
from suffice.speculate import Tree
from suffice.speculate.by_head import ByBlock
from suffice.speculate.markov import MOST_LIKELY, Markov, _most_likely

PROMPT = [(7 * i + 13) % 190 + 3 for i in range(75)]
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


def proposed(head: BlockHead, sequence: Any, text: Sequence[int], count: int) -> Tree:
    """Return what is drafted after a greedy text whose last token has not been run."""
    state = SamplingState(GREEDY, 0, prompt=[*text[:-1]])
    state.append(text[-1])
    sample = SimpleNamespace(state=state, sequence=sequence, goes_on=None, drafter=None)
    (found,) = ByBlock(head).propose([sample], [(1,) * count])  # type: ignore[list-item]
    return found


def reference_of(
    runner: Runner, folder: Path, dtype: torch.dtype
) -> tuple[dspark_heads.Reference, torch.Tensor]:
    """Return the reference and the embedding, each the folder's own or else the model's."""
    weights = {n: w.to(dtype) for n, w in load_file(folder / "model.safetensors").items()}
    tables = [
        weights.get(name, torch.from_numpy(unpack_rows(own, list(range(own.rows)))).to(dtype))
        for name, own in (
            ("embed_tokens.weight", runner.decoder.matrix("embed")),
            ("lm_head.weight", runner.decoder.matrix("head")),
        )
    ]
    config = json.loads((folder / "config.json").read_text())
    return dspark_heads.Reference(config, weights, tables[1]), tables[0]


FORMS: dict[str, dict[str, Any]] = {
    "DeepSpec": {"tables": True},
    "without tables": {},
    "LFM2.5": {"architectures": ["Lfm2DSparkDraftModel"], "rope_is_neox_style": False},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [1, 3, DRAFTS])
@pytest.mark.parametrize("size", [5, 34, 75])
def test_drafts_are_those_of_the_reference(
    model: Path, tmp_path: Path, size: int, count: int, form: str
) -> None:
    """The first row is the last token, each is of the token after it and adds what it follows."""
    folder = dspark_heads.make(tmp_path, model, **FORMS[form])
    runner, head = parts(with_head(model, folder, count))
    sequence = runner.open("test", 120)
    runner.prefill(sequence, PROMPT[: size - 1])
    hidden = torch.from_numpy(np.stack(cache_of(sequence)._hidden))
    last = PROMPT[size - 1]
    ours = drafts(head, sequence, last, count)
    (exact, embed), (same, narrow) = (
        reference_of(runner, folder, dtype) for dtype in (torch.float64, torch.float32)
    )
    wanted, rows = exact.drafts(hidden.double(), embed, last, count, MOST_LIKELY)
    _, near = same.drafts(hidden, narrow, last, count, MOST_LIKELY)
    assert_matches(ours, rows, near, factor=4.0)  # a block of one row has few errors to compare
    assert proposed(head, sequence, PROMPT[:size], count).tokens == tuple(wanted)
    if count == DRAFTS:
        assert wanted != rows.argmax(dim=-1).tolist(), "what is added decides some drafts"
        fewer = proposed(head, sequence, PROMPT[:size], 2)
        assert fewer.tokens == tuple(wanted[:2]), "a shape with fewer depths is of the same block"
    runner.close(sequence)
    assert runner.arena.used == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_is_added_is_as_it_is_stored(model: Path, tmp_path: Path, dtype: str) -> None:
    folder = dspark_heads.make(tmp_path, model, torch_dtype=dtype)
    _, head = parts(with_head(model, folder))
    weights = load_file(folder / "model.safetensors")
    w1, w2 = (weights[f"markov_head.markov_w{part}.weight"].double() for part in (1, 2))
    row = np.linspace(-3, 3, len(w1), dtype=np.float32)
    found, drafted = head.after(17, row)
    assert drafted is not None and drafted.vocabulary == len(w1)
    np.testing.assert_array_equal(drafted.ids, np.arange(len(w1) - MOST_LIKELY, len(w1)))
    exact = torch.from_numpy(row).double() + w2 @ w1[17]
    np.testing.assert_allclose(found, exact[-MOST_LIKELY:], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("vocabulary", [5, 64, 320, 4100, 32000, 151_936])
def test_the_most_likely_tokens_are_found_among_many(vocabulary: int) -> None:
    rng = np.random.default_rng(vocabulary)
    logits = rng.standard_normal(vocabulary).astype(np.float32)
    if vocabulary > MOST_LIKELY:
        logits[rng.choice(vocabulary, 9, replace=False)] = -np.inf
    kept = _most_likely(logits)
    assert (np.diff(kept) > 0).all()
    ranked = np.argsort(-logits, kind="stable")
    assert set(kept) == set(ranked[: len(kept)]), "none that is left out is more likely"
    assert min(MOST_LIKELY, vocabulary) <= len(kept) <= MOST_LIKELY + 12


def test_logits_that_are_no_numbers_stay_so() -> None:
    """The model reports its own errors; a head's end a chain."""
    rows = np.ones((320, 4), np.float32)
    found, _ = Markov(rows, rows).after(3, np.full(320, np.nan, np.float32))
    assert np.isnan(found).all() and len(found) == 320


def test_a_head_without_a_matrix_by_the_token_before(model: Path, tmp_path: Path) -> None:
    """DeepSpec writes such heads with a rank of 0: rows are of the token after their place."""
    folder = dspark_heads.make(tmp_path, model, markov_rank=0, markov_head_type=None)
    runner, head = parts(with_head(model, folder))
    sequence = runner.open("test", 120)
    runner.prefill(sequence, PROMPT[:20])
    (ours,) = head.block([sequence.cache], [7], [DRAFTS])  # type: ignore[list-item]
    head.end([sequence.cache])  # type: ignore[list-item]
    found = proposed(head, sequence, [*PROMPT[:20], 7], DRAFTS)
    assert found.tokens == tuple(ours.argmax(axis=1))
    runner.close(sequence)


def test_fields_as_specforge_writes_them(model: Path, tmp_path: Path) -> None:
    plain = dspark_heads.fields(model)
    names = ("mask_token_id", "target_layer_ids", "markov_rank", "enable_confidence_head")
    own = {name: plain[name] for name in names} | {"projector_type": "dspark"}
    config = {name: each for name, each in plain.items() if name not in names}
    config |= {
        "architectures": ["DSparkDraftModel"],
        "dflash_config": {**own, "attention_mode": "gqa", "confidence_head_alpha": 1.0},
        "target_layer_ids": [-1, 1],
    }
    config["dflash_config"]["target_layer_ids"] = [-1, 1]
    folder = heads.write(tmp_path, config, dspark_heads.random_weights(plain, 0))
    _, head = parts(with_head(model, folder))
    drafting = head.decoder.config.drafts
    assert drafting is not None and (drafting.block, drafting.mask) == (DRAFTS, MASK)
    assert head.layers == (0, 2), "what goes into the first layer, and out of the second"
    assert head.block_rows == DRAFTS


def test_fields_as_liquid_ai_writes_them(model: Path, tmp_path: Path) -> None:
    plain = dspark_heads.fields(model)
    left_out = ("auto_map", "num_anchors", "confidence_head_with_markov", "tie_word_embeddings")
    left_out += ("attention_bias", "use_sliding_window", "max_window_layers", "sliding_window")
    nested = ("mask_token_id", "target_layer_ids", "num_target_layers")
    config = {n: each for n, each in plain.items() if n not in (*left_out, *nested)}
    config |= {
        "architectures": ["Lfm2DSparkDraftModel"],
        "dflash_config": {name: plain[name] for name in nested},
        "rope_is_neox_style": False,
    }
    folder = heads.write(tmp_path, config, dspark_heads.random_weights(plain, 0))
    _, head = parts(with_head(model, folder))
    own = head.decoder.config
    assert own.paired and own.drafts is not None
    assert own.drafts.shared == {"embed", "head"} and own.drafts.mask == MASK
    assert head.layers == (1, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"markov_head_type": "gated"}, "'markov_head_type' = 'gated' is not supported"),
        ({"markov_head_type": "rnn"}, "'markov_head_type' = 'rnn' is not supported"),
        ({"markov_rank": RANK // 2}, "markov_w1.weight' has shape [320, 16], but the configura"),
        ({"markov_rank": 0}, "unknown: markov_head.markov_w1.weight, markov_head.markov_w2.weight"),
        ({"markov_rank": -1}, "'markov_rank' = -1 must be a whole number from 1"),
        ({"mask_token_id": None}, "config.json: lacks 'mask_token_id'"),
        ({"target_layer_ids": [-2, 1]}, "must be layers in ascending order, of -1 to 1"),
        ({"rope_is_neox_style": 1}, "'rope_is_neox_style' = 1 must be true or false"),
        ({"block_size": 40}, "'block_size' = 40 must be from 2 to 32"),
        ({"dflash_config": 3}, "'dflash_config' = 3 must be an object"),
        ({"dspark_config": {"markov_rank": 4}}, "'dspark_config' = {'markov_rank': 4} is not"),
        ({"architectures": ["Gemma4DSparkModel"]}, "(DSpark with layers of Gemma 4, which is not"),
    ],
    ids=str,
)
def test_heads_that_are_refused(
    model: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    plain = dspark_heads.fields(model)
    folder = heads.write(tmp_path, plain | changes, dspark_heads.random_weights(plain, 0))
    assert message in refusal_of(model, folder)


def test_weights_that_are_refused(model: Path, tmp_path: Path) -> None:
    config = dspark_heads.fields(model)
    weights = dspark_heads.random_weights(config, 0)
    own = weights.pop("markov_head.markov_w2.weight")
    with pytest.raises(InputError, match=r"markov_w2.weight' has shape \[\], but the configura"):
        with_head(model, heads.write(tmp_path / "one", config, weights))
    own[3, 4] = torch.inf
    folder = heads.write(tmp_path / "two", config, {**weights, "markov_head.markov_w2.weight": own})
    with pytest.raises(InputError, match=r"markov_w2.weight' has NaN or infinite entries"):
        with_head(model, folder)


def test_more_drafts_than_a_block_has(model: Path, tmp_path: Path) -> None:
    folder = dspark_heads.make(tmp_path, model)
    assert refusal_of(model, folder, DRAFTS + 1) == (
        f"speculator 'dflash': num_speculative_tokens={DRAFTS + 1}: must be at most {DRAFTS}, "
        f"since {folder} has blocks of {DRAFTS} rows"
    )
