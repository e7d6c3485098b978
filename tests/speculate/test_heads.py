"""What heads of EAGLE-3 compute, next to PyTorch; their files. Tests heads.py, draft_heads.py.

Also tests torch_head.py and with_head.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import heads
import hf_reference
import tiny
from engines import sharing
from oracle import assert_matches
from suffice import LLM
from suffice.backends.cpu.linear import unpack_rows
from suffice.cache.with_head import CacheWithHead
from suffice.checkpoints.draft_heads import LAYERS, open_head
from suffice.checkpoints.open import open_checkpoint
from suffice.engine.heads import Head
from suffice.engine.protocol import Rows
from suffice.engine.runner import Runner
from suffice.errors import InputError
from suffice.speculate import Tree
from suffice.train.torch_head import TorchHead

PROMPT = [(7 * i + 13) % 190 + 3 for i in range(75)]
load = sharing(threads=2, dtype="float32")


def with_head(model: Path, head: Path, **options: Any) -> LLM:
    speculator = {"method": "eagle3", "model": str(head), "adaptive": False, "quantization": "file"}
    return load(model, speculative_config=speculator, **options)


def parts(llm: LLM) -> tuple[Runner, Head]:
    assert isinstance(llm.runner, Runner) and llm.runner.head is not None
    return llm.runner, llm.runner.head


def waiting(cache: Any) -> np.ndarray:
    """Return the hidden states [T, H] that wait for the head."""
    assert isinstance(cache, CacheWithHead)
    return np.stack(cache._hidden)


@pytest.mark.parametrize("variant", ["llama", "gemma3", "olmoe"])
@pytest.mark.parametrize("threads", [1, 2])
def test_hidden_states_are_those_of_the_layers(tmp_path: Path, variant: str, threads: int) -> None:
    folder = tiny.make(tmp_path / "model", variant, tokenizer=True)
    head = heads.make(tmp_path / "head", folder, eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    runner, _ = parts(with_head(folder, head, threads=threads))
    sequence = runner.open("test", 120)
    runner.prefill(sequence, PROMPT[:30])  # many rows share their buffers, and few do not
    runner.reserve(sequence, 4)
    runner.advance([sequence], [PROMPT[30:34]])
    exact, plain = (
        hf_reference.load(folder, dtype)(torch.tensor([PROMPT[:34]]), output_hidden_states=True)
        for dtype in (torch.float64, torch.float32)
    )
    wanted, same = (torch.cat(each.hidden_states[:3], dim=-1)[0] for each in (exact, plain))
    assert_matches(waiting(sequence.cache), wanted, same)
    runner.close(sequence)


def test_drafts_take_four_bits_unless_told_otherwise(model: Path, untrained: Path) -> None:
    given = {"quantization": "file"}, {}, {"quantization": "int8"}
    speculation = [{"method": "eagle3", "model": str(untrained), **each} for each in given]
    llms = [load(model, speculative_config=each) for each in speculation]
    bits = [parts(llm)[1].decoder.bits_per_weight for llm in llms]
    assert bits[0] == 32 > bits[2] > bits[1] + 2, "the embedding is the model's"


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("size", [9, 34, 75])
def test_drafts_have_the_logits_of_the_reference(
    model: Path, tmp_path: Path, normed: bool, size: int
) -> None:
    """A text's rows are made at once or one after the other, and drafts see all of them."""
    folder = heads.make(tmp_path, model, norm_before_residual=normed)
    runner, head = parts(with_head(model, folder))
    text, steps = PROMPT[:size], 4
    sequence = runner.open("test", 120)
    runner.prefill(sequence, text[:-1])
    hidden = waiting(sequence.cache)
    runner.reserve(sequence, 8)
    drafted = [3, 5, 8]
    found = [*head.begin([sequence.cache], text[-1:])]
    for token in drafted:
        found += [*head.go_on([sequence.cache], [token])]
    weights = load_file(folder / "model.safetensors")
    tokens = weights.pop("d2t") + torch.arange(len(weights["lm_head.weight"]))
    ids = [*text[1:], *drafted]
    embedded = torch.from_numpy(unpack_rows(runner.decoder.matrix("embed"), ids))
    exact, same = (
        torch.stack(
            [
                logits[-1]
                for logits in TorchHead(
                    head.decoder.config,
                    {name: each.to(dtype) for name, each in weights.items()},
                ).drafts(torch.from_numpy(hidden).to(dtype), embedded.to(dtype), steps)
            ]
        )
        for dtype in (torch.float64, torch.float32)
    )
    ours = np.stack(found)
    assert_matches(ours[:1], exact[:1], same[:1])
    assert_matches(ours, exact, same, factor=4)  # later ones read what those before have left
    assert head.drafted is not None
    np.testing.assert_array_equal(head.drafted.ids, tokens)
    spread = head.drafted.spread(ours[0], -np.inf)
    np.testing.assert_array_equal(spread[tokens], ours[0])
    assert np.isneginf(np.delete(spread, tokens)).all(), "tokens that it does not draft"
    runner.close(sequence)
    assert runner.arena.used == 0


def test_rows_do_not_depend_on_how_the_text_was_run(model: Path, tmp_path: Path) -> None:
    """As a prompt, in parts, token by token, after a rejected draft, and in a copy."""
    runner, head = parts(with_head(model, heads.make(tmp_path, model)))
    text = PROMPT

    def drafts(sequence: Any) -> list[np.ndarray]:
        runner.reserve(sequence, 8)
        found = [*head.begin([sequence.cache], text[-1:]), *head.go_on([sequence.cache], [9])]
        head.end([sequence.cache])
        return found

    whole = runner.open("whole", 120)
    runner.prefill(whole, text[:-1])
    copy = runner.fork(whole, 40)
    wanted = drafts(whole)
    single = runner.open("single", 120)
    runner.prefill(single, text[:1])
    for token in text[1:-1]:
        runner.reserve(single, 2)
        tree = Tree.chain([token ^ 1])
        runner.run([Rows(single, [token], drafts=tree)])
        runner.commit(single, [0])
        head.follow([single.cache])
    for sequence in (single, copy):
        if sequence is copy:
            runner.prefill(copy, text[40:-1])
        for ours, theirs in zip(drafts(sequence), wanted, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    for sequence in (whole, single, copy):
        runner.close(sequence)
    assert runner.arena.used == 0


def test_a_sibling_that_is_accepted_leaves_its_own_hidden_states(
    model: Path, tmp_path: Path
) -> None:
    runner, head = parts(with_head(model, heads.make(tmp_path, model)))
    text, found = PROMPT[:31], []
    for siblings in (False, True):
        sequence = runner.open("test", 120)
        runner.prefill(sequence, text[:10])
        for at in range(10, 30, 2):
            runner.reserve(sequence, 3)
            one, two = text[at : at + 2]
            tree = Tree.levels([[two ^ 1, two] if siblings else [two]])
            runner.run([Rows(sequence, [one], drafts=tree)])
            runner.commit(sequence, [0, len(tree)])
        runner.reserve(sequence, 2)
        found.append(head.begin([sequence.cache], text[30:])[0][None])
        runner.close(sequence)
    chosen = np.isfinite(found[0])
    np.testing.assert_allclose(found[1][chosen], found[0][chosen], rtol=1e-3, atol=1e-3)


def test_a_cache_is_cut_where_the_head_can_go_on(model: Path, tmp_path: Path) -> None:
    """If the hidden states of the last token are gone, that token is run again."""
    runner, head = parts(with_head(model, heads.make(tmp_path, model)))
    sequence = runner.open("test", 120)
    runner.prefill(sequence, PROMPT[:50])
    cache = sequence.cache
    assert cache.reachable(30) == 30, "all of it waits"
    runner.reserve(sequence, 4)
    head.begin([cache], [7])
    assert cache.reachable(50) == 49
    assert cache.reachable(30) == 29
    cache.truncate(29)
    assert cache.followed
    runner.prefill(sequence, [PROMPT[29], 11])
    assert cache.followed and cache.length == 31
    other = runner.open("other", 120)
    runner.prefill(other, [*PROMPT[:30], 11])
    for each in (sequence, other):
        runner.reserve(each, 4)
    for ours, theirs in zip(head.begin([cache], [5]), head.begin([other.cache], [5]), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    cache.truncate(20)  # not where it can go on
    runner.prefill(sequence, [9, 9])
    assert not cache.followed, "the row of its last token was of another text"
    assert head.follow([cache]) is None and cache.to_follow(3) is None


def test_names_and_forms_of_files(model: Path, tmp_path: Path) -> None:
    """EAGLE's own, vLLM's and those of speculators are one head."""
    config = heads.fields(model)
    weights = heads.random_weights(config, 1)
    target = open_checkpoint(model).config
    own = open_head(str(heads.write(tmp_path / "own", config, weights)), target)
    renamed = {
        name
        if name[0] == "d" or name[0] == "t" or "lm_head" in name
        else "model." + name.replace("midlayer.", "layers.0."): each
        for name, each in weights.items()
    }
    vllm = open_head(str(heads.write(tmp_path / "vllm", config, renamed)), target)
    layer = {
        k: v for k, v in config.items() if k not in ("architectures", "draft_vocab_size", LAYERS)
    }
    speculators = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {"algorithm": "eagle3"},
        "transformer_layer_config": layer,
        "draft_vocab_size": config["draft_vocab_size"],
        LAYERS: config[LAYERS],
    }
    plain = {name.replace("midlayer.", "layers.0."): each for name, each in weights.items()}
    third = open_head(str(heads.write(tmp_path / "spec", speculators, plain)), target)
    for other in (vllm, third):
        assert other.checkpoint.config == own.checkpoint.config
        assert other.layers == own.layers == (0, 1, 3)
        np.testing.assert_array_equal(other.tokens, own.tokens)
        for (name, ours), (same, theirs) in zip(
            own.checkpoint.tensors(), other.checkpoint.tensors(), strict=True
        ):
            assert name == same
            np.testing.assert_array_equal(ours, theirs)
    sglang = {k: v for k, v in config.items() if k != LAYERS} | {
        "eagle_config": {LAYERS: [0, 1, 2]}
    }
    assert open_head(str(heads.write(tmp_path / "sgl", sglang, weights)), target).layers == (
        1,
        2,
        3,
    )


def test_a_head_with_an_embedding_of_its_own(model: Path, tmp_path: Path) -> None:
    config = heads.fields(model)
    with_own = heads.random_weights(config, 1, embedding=True)
    llm = with_head(model, heads.write(tmp_path, config, with_own))
    found = parts(llm)[1].decoder.matrix("embed")
    np.testing.assert_array_equal(
        unpack_rows(found, [5, 9]), with_own["embed_tokens.weight"][[5, 9]].numpy()
    )


@pytest.mark.parametrize(
    ("fields", "weights", "message"),
    [
        ({"vocab_size": 7}, {}, "'vocab_size' = 7 must be"),
        ({"target_hidden_size": 128}, {}, "hidden states of 128 entries: must be 64"),
        (
            {LAYERS: [0, 1]},
            {},
            f"'{LAYERS}' = [0, 1] must be 3 layers in ascending order, of 0 to 3",
        ),
        ({LAYERS: [1, 0, 2]}, {}, "must be 3 layers in ascending order"),
        ({"tie_word_embeddings": True}, {}, "'tie_word_embeddings' must be false"),
        ({"num_hidden_layer": 1}, {}, "Did you mean 'num_hidden_layers'?"),
        ({}, {"d2t": None}, "but there is no weight d2t"),
        ({}, {"d2t": torch.zeros(3, dtype=torch.int64)}, "d2t must be"),
        ({}, {"d2t": "repeated"}, "d2t must give each draft id a token of its own"),
        ({}, {"fc.weight": None}, "it has no weight 'fc.weight'"),
        (
            {},
            {"midlayer.self_attn.q_norm.weight": torch.ones(16)},
            "unknown: layers.0.self_attn.q_norm",
        ),
        ({"speculators_model_type": "eagle"}, {}, "must be 'eagle3'"),
    ],
)
def test_heads_that_are_refused(
    model: Path, tmp_path: Path, fields: dict[str, Any], weights: dict[str, Any], message: str
) -> None:
    config = heads.fields(model)
    stored: dict[str, Any] = heads.random_weights(config, 0) | weights
    if isinstance(stored["d2t"], str):
        stored["d2t"] = -torch.arange(config["draft_vocab_size"])
    folder = heads.write(
        tmp_path, config | fields, {name: x for name, x in stored.items() if x is not None}
    )
    with pytest.raises(InputError) as error:
        with_head(model, folder)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_types_of_its_keys_that_are_refused(model: Path, tmp_path: Path) -> None:
    folder = heads.make(tmp_path, model)
    speculator = {"method": "eagle3", "model": str(folder), "kv_cache_dtype": "kmeans4"}
    with pytest.raises(InputError, match="kv_cache_dtype='kmeans4': must be one of"):
        load(model, speculative_config=speculator)
