"""What heads of DFlash compute, next to PyTorch; their files. Tests block_heads.py of both folders.

Also tests with_head.py, beginning.cpp and traversal.cpp.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import block_heads
import heads
import tiny
from block_engines import cache_of, drafts, load, parts, refusal_of, with_head
from block_heads import BLOCK, MASK
from oracle import assert_matches
from suffice.backends.cpu.linear import unpack_rows
from suffice.decoder.step_rows import StepRows
from suffice.engine.protocol import Rows
from suffice.engine.runner import Runner
from suffice.errors import InputError
from suffice.speculate import Tree

PROMPT = [(7 * i + 13) % 190 + 3 for i in range(75)]


def embedded(runner: Runner, tokens: list[int]) -> torch.Tensor:
    return torch.from_numpy(unpack_rows(runner.decoder.matrix("embed"), tokens))


def wanted(
    runner: Runner, folder: Path, hidden: torch.Tensor, last: int, rows: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return the logits [rows - 1, V] of drafts after a text."""
    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    matrix = runner.decoder.matrix("embed" if runner.decoder.config.tied else "head")
    table = torch.from_numpy(unpack_rows(matrix, list(range(matrix.rows))))
    reference = block_heads.Reference(
        config, {name: each.to(dtype) for name, each in weights.items()}, table.to(dtype)
    )
    block = embedded(runner, [last, *[MASK] * (rows - 1)])
    found = reference.logits(hidden.to(dtype), block.to(dtype)[None], torch.tensor([len(hidden)]))
    return found[0, 1:]


FORMS: dict[str, dict[str, Any]] = {
    "published": {},
    "full attention": {"layer_types": ["full_attention"] * 2, "sliding_window": None},
    "windows ahead": {"is_causal": False, "sliding_window": 5},
    "causal": {"is_causal": True},
    "biases": {"attention_bias": True},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [2, 9, 34, 75])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_drafts_have_the_logits_of_the_reference(
    model: Path, tmp_path: Path, form: str, size: int, dtype: str
) -> None:
    """A text's rows are made at once, and drafts see all of them and each other."""
    folder = block_heads.make(tmp_path, model, torch_dtype=dtype, **FORMS[form])
    runner, head = parts(with_head(model, folder, dtype=dtype))
    sequence = runner.open("test", 120)
    runner.prefill(sequence, PROMPT[: size - 1])
    hidden = torch.from_numpy(np.stack(cache_of(sequence)._hidden))
    ours = drafts(head, sequence, PROMPT[size - 1])
    exact, same = (
        wanted(runner, folder, hidden, PROMPT[size - 1], BLOCK, each)
        for each in (torch.float64, getattr(torch, dtype))
    )
    assert_matches(ours, exact, same.float())
    runner.close(sequence)
    assert runner.arena.used == 0


@pytest.mark.parametrize("count", [1, 3])
def test_fewer_drafts_are_a_shorter_block(model: Path, tmp_path: Path, count: int) -> None:
    """The block's rows follow from the option; a step may ask for fewer logits of the same."""
    folder = block_heads.make(tmp_path, model)
    runner, head = parts(with_head(model, folder, count))
    sequence = runner.open("test", 120)
    runner.prefill(sequence, PROMPT[:20])
    hidden = torch.from_numpy(np.stack(cache_of(sequence)._hidden))
    ours = drafts(head, sequence, PROMPT[20])
    exact, same = (
        wanted(runner, folder, hidden, PROMPT[20], 1 + count, each)
        for each in (torch.float64, torch.float32)
    )
    assert_matches(ours, exact, same)
    np.testing.assert_array_equal(drafts(head, sequence, PROMPT[20], 1), ours[:1])
    runner.close(sequence)


def test_scales_and_a_cap_of_the_head(model: Path, tmp_path: Path) -> None:
    own = {"input_embedding_scale": 3.0, "output_multiplier": 0.5, "final_logit_softcapping": 2.0}
    plain = block_heads.fields(model)
    folder = block_heads.make(tmp_path, model, dflash_config={**plain["dflash_config"], **own})
    runner, head = parts(with_head(model, folder))
    sequence = runner.open("test", 120)
    runner.prefill(sequence, PROMPT[:20])
    hidden = torch.from_numpy(np.stack(cache_of(sequence)._hidden)).double()
    config, weights = plain, load_file(folder / "model.safetensors")
    matrix = runner.decoder.matrix("head")
    table = torch.from_numpy(unpack_rows(matrix, list(range(matrix.rows)))).double()
    reference = block_heads.Reference(
        config, {name: each.double() for name, each in weights.items()}, table
    )
    block = 3.0 * embedded(runner, [7, *[MASK] * (BLOCK - 1)]).double()
    found = reference.logits(hidden, block[None], torch.tensor([20]))[0, 1:]
    np.testing.assert_allclose(
        drafts(head, sequence, 7), 2 * torch.tanh(found / 4), rtol=1e-4, atol=1e-4
    )
    runner.close(sequence)


def test_rows_do_not_depend_on_how_the_text_was_run(model: Path, tmp_path: Path) -> None:
    """As a prompt, in parts, token by token, after a rejected draft, in a copy, and in a batch."""
    runner, head = parts(with_head(model, block_heads.make(tmp_path, model)))
    text = PROMPT
    whole = runner.open("whole", 120)
    runner.prefill(whole, text[:-1])
    copy = runner.fork(whole, 40)
    expected = drafts(head, whole, text[-1])
    single = runner.open("single", 120)
    runner.prefill(single, text[:1])
    for token in text[1:-1]:
        runner.reserve(single, 2)
        runner.run([Rows(single, [token], drafts=Tree.chain([token ^ 1]))])
        runner.commit(single, [0])
        head.follow([single.cache])
    runner.prefill(copy, text[40:-1])
    for sequence in (single, copy, whole):
        np.testing.assert_array_equal(drafts(head, sequence, text[-1]), expected)
    other = runner.open("other", 120)
    runner.prefill(other, text[5:30])
    caches = [cache_of(other), cache_of(whole)]
    both = head.block(caches, [9, text[-1]], [2, BLOCK - 1])
    head.end(caches)
    assert both[0].shape[0] == 2
    np.testing.assert_array_equal(both[1], expected)
    for sequence in (whole, single, copy, other):
        assert cache_of(sequence).head.tentative == 0
        runner.close(sequence)
    assert runner.arena.used == 0


@pytest.mark.parametrize("made", [True, False])
def test_a_cache_is_cut_anywhere(model: Path, tmp_path: Path, made: bool) -> None:
    """A row of the head is of one token alone, so none is run again."""
    runner, head = parts(with_head(model, block_heads.make(tmp_path, model)))
    sequence, other = runner.open("test", 120), runner.open("other", 120)
    runner.prefill(sequence, PROMPT[:50])
    cache = cache_of(sequence)
    if made:
        drafts(head, sequence, 7)
    for rows in (30, 50):
        assert cache.reachable(rows) == rows
    cache.truncate(30)
    assert cache.followed and head.ready(cache)
    runner.prefill(sequence, [9, 11])
    runner.prefill(other, [*PROMPT[:30], 9, 11])
    np.testing.assert_array_equal(drafts(head, sequence, 5), drafts(head, other, 5))
    for each in (sequence, other):
        runner.close(each)
    assert runner.arena.used == 0


def test_a_block_reaches_beyond_the_context(model: Path, tmp_path: Path) -> None:
    """Its rows are not the text's: a block is whole where the text may have one more token."""
    folder = block_heads.make(tmp_path, model)
    runner, head = parts(with_head(model, folder, max_model_len=40))
    sequence = runner.open("test", 40)
    runner.prefill(sequence, PROMPT[:39])
    hidden = torch.from_numpy(np.stack(cache_of(sequence)._hidden))
    ours = drafts(head, sequence, 7)
    exact, same = (
        wanted(runner, folder, hidden, 7, BLOCK, each) for each in (torch.float64, torch.float32)
    )
    assert_matches(ours, exact, same)
    runner.close(sequence)


@pytest.mark.parametrize("changes", [{"num_target_layers": None}, {"block_size": None}], ids=str)
def test_fields_that_may_be_missing(model: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    _, head = parts(with_head(model, block_heads.make(tmp_path, model, **changes)))
    drafting = head.decoder.config.drafts
    assert drafting is not None
    assert drafting.block == (16 if "block_size" in changes else BLOCK)
    assert head.layers == (1, 2), "the outputs of layers 0 and 1"


def nested(**changes: Any) -> dict[str, Any]:
    own = {"mask_token_id": MASK, "target_layer_ids": [0, 1], **changes}
    return {"dflash_config": {name: each for name, each in own.items() if each != "left out"}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["DFlash2DraftModel"]},
            "['DFlash2DraftModel'] (DFlash 2, which is not ",
        ),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "'architectures' = ['LlamaForCausalLMEagl"),
        ({"architectures": None}, "'architectures' = None must be one of ['DFlashDraftModel'], ["),
        ({"hidden_size": 128}, "'hidden_size' = 128 must be 64, that of the model"),
        ({"vocab_size": 7}, "'vocab_size' = 7 must be 320"),
        ({"draft_vocab_size": 160}, "'draft_vocab_size' = 160 must be 320, that of the model"),
        ({"num_target_layers": 36}, "'num_target_layers' = 36 must be 3, that of the model"),
        ({"dflash_config": None}, "'dflash_config' = None must be an object"),
        (nested(mask_token_id="left out"), "'dflash_config' lacks 'mask_token_id'"),
        (nested(mask_token_id=320), "'mask_token_id' = 320 must be a token below 320"),
        (nested(target_layer_ids="left out"), "'dflash_config' lacks 'target_layer_ids'"),
        (nested(target_layer_ids=[1, 0]), "[1, 0] must be layers in ascending order, of 0 to 1"),
        (nested(target_layer_ids=[0, 2]), "[0, 2] must be layers in ascending order, of 0 to 1"),
        (nested(block_size=40), "'block_size' = 40 must be from 2 to 32"),
        (nested(block_size="8"), "'block_size' = '8' must be a whole number"),
        (nested(use_swa=True), "'use_swa' = True is not supported"),
        (nested(conv_kernel_size=4), "'conv_kernel_size' = 4 is not supported"),
        (nested(causal=3), "'causal' = 3 must be true or false"),
        ({"is_causal": 1}, "'is_causal' = 1 must be true or false"),
        (nested(output_multiplier="x"), "'output_multiplier' = 'x' must be"),
        ({"sliding_window": None}, "'sliding_window' is missing, but 'layer_types' uses it"),
        ({"num_hidden_layer": 1}, "Did you mean 'num_hidden_layers'?"),
        ({"num_hidden_layers": 3, "layer_types": None}, "missing: layers.2."),
    ],
)
def test_heads_that_are_refused(
    model: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    plain = block_heads.fields(model)
    folder = heads.write(tmp_path, plain | changes, block_heads.random_weights(plain, 0))
    assert message in refusal_of(model, folder)


def test_weights_and_folders_that_are_refused(model: Path, tmp_path: Path) -> None:
    config = block_heads.fields(model)
    weights = block_heads.random_weights(config, 0)
    del weights["hidden_norm.weight"]
    weights["markov_w1.weight"] = torch.ones(4, 4)
    folder = heads.write(tmp_path / "head", config, weights)
    with pytest.raises(InputError, match=r"missing: hidden_norm.weight; unknown: markov_w1.weight"):
        with_head(model, folder)
    file = tmp_path / "head.gguf"
    file.write_bytes(b"GGUF")
    assert refusal_of(model, file) == (
        f"{file}: a head that drafts blocks is a folder with config.json and safetensors"
    )


def test_more_drafts_than_a_block_has(model: Path, tmp_path: Path) -> None:
    folder = block_heads.make(tmp_path, model)
    assert refusal_of(model, folder, BLOCK) == (
        f"speculator 'dflash': num_speculative_tokens={BLOCK}: must be at most {BLOCK - 1}, since "
        f"{folder} has blocks of {BLOCK} rows"
    )


def test_a_head_of_eagle3_is_another(model: Path, tmp_path: Path) -> None:
    folder = block_heads.make(tmp_path, model)
    with pytest.raises(InputError) as error:
        load(model, speculative_config={"method": "eagle3", "model": str(folder)})
    message = f"{folder} is a head that drafts blocks: give it as dflash:model={folder}"
    assert str(error.value) == message


def test_fields_that_contradict_each_other(model: Path, tmp_path: Path) -> None:
    plain = block_heads.fields(model)
    changes = {"is_causal": True, "dflash_config": plain["dflash_config"] | {"causal": False}}
    folder = heads.write(tmp_path, plain | changes, block_heads.random_weights(plain, 0))
    with pytest.raises(InputError, match="'is_causal' = True and 'causal' = False"):
        with_head(model, folder)


def test_a_block_s_room_counts_as_memory(model: Path, tmp_path: Path) -> None:
    """A request is let in by what its cache takes, with the head's rows of a block behind it."""
    folder = block_heads.make(tmp_path, model)
    (large, head), (small, _) = (parts(with_head(model, folder, each)) for each in (BLOCK - 1, 1))
    assert large.bytes_of(40) - small.bytes_of(40) == (BLOCK - 2) * head.row_bytes > 0


def test_a_model_whose_embedding_has_another_width(tmp_path: Path) -> None:
    folder = tiny.make(tmp_path / "model", "opt-post", tokenizer=True)
    head = block_heads.make(tmp_path / "head", folder)
    with pytest.raises(InputError, match="the width of the model's embedding, here 48"):
        with_head(folder, head)


def test_a_step_that_stores_gives_nothing(model: Path, tmp_path: Path) -> None:
    runner, head = parts(with_head(model, block_heads.make(tmp_path, model)))
    cache = head.cache(40, runner.growth, runner.arena)
    cache.reserve(8)
    rows = StepRows(cache, [1], outputs=1, exact=True, counted=False)
    with pytest.raises(ValueError, match="stores hidden states gives nothing"):
        head._native.step([rows], hidden=np.zeros((1, 128), np.float32))
    cache.rollback()
    cache.close()
