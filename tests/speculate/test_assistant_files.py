"""Files of Gemma 4's assistants: forms, and what is refused. Tests checkpoints/assistants.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import assistants
import tiny
from engines import sharing
from suffice import LLM
from suffice.backends.cpu.linear import unpack_rows
from suffice.engine.assistants import Assistant
from suffice.engine.runner import Runner
from suffice.errors import InputError

load = sharing(threads=1, dtype="float32")


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("model"), "gemma4", tokenizer=True)


@pytest.fixture(scope="module")
def plain(gemma: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return assistants.make(tmp_path_factory.mktemp("assistant"), gemma, groups=20)


def drafting(model: Path, assistant: Path, **options: Any) -> LLM:
    method = {"method": "mtp", "model": str(assistant), "quantization": "file", **options}
    return load(model, speculative_config=method)


def test_heads_that_are_stored(gemma: Path, tmp_path: Path) -> None:
    """A head of its own counts where the embedding is not tied, with and without groups."""
    found = []
    for name, tied in (("tied", True), ("own", False)):
        folder = assistants.make(tmp_path / name, gemma)
        weights = load_file(folder / "model.safetensors")
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"] + (0 if tied else 1)
        save_file(weights, folder / "model.safetensors")
        other = tiny.changed(folder, tmp_path / f"{name}-too", tie_word_embeddings=tied)
        runner = drafting(gemma, other).runner
        assert isinstance(runner, Runner) and isinstance(runner.head, Assistant)
        head = runner.head
        found.append(unpack_rows(head.decoder.matrix("head"), [0, 7]))
    np.testing.assert_array_equal(found[0] + 1, found[1])


@pytest.mark.parametrize(
    ("changes", "text", "message"),
    [
        ({"backbone_hidden_size": 48}, {}, "'backbone_hidden_size' = 48 must be 64"),
        ({}, {"vocab_size": 304}, "'text_config.vocab_size' = 304 must be 320"),
        ({}, {"sliding_window": 4}, "'text_config.sliding_window' = 4 must be 8"),
        ({}, {"head_dim": 32}, "heads of sliding attention have 32 entries: must be 16"),
        ({}, {"enable_moe_block": True}, "'text_config.enable_moe_block' = True must be False"),
        ({}, {"num_kv_shared_layers": 1}, "'text_config.num_kv_shared_layers' = 1 must be 3"),
        ({}, {"model_type": "gemma3_text"}, "object of model_type 'gemma4_text'"),
        ({"num_centroids": 40}, {}, "'num_centroids' = 40 must divide the 320 tokens"),
        ({"num_centroids": 7}, {}, "'num_centroids' = 7 must divide the 320 tokens"),
        (
            {"centroid_intermediate_top_k": 21},
            {},
            "'centroid_intermediate_top_k' = 21 must be from 1 to 20",
        ),
        (
            {"architectures": ["Gemma4UnifiedAssistantForCausalLM"]},
            {},
            r"no assistant of Gemma 4: .* must be \['Gemma4AssistantForCausalLM'\]",
        ),
    ],
)
def test_assistants_that_do_not_fit(
    gemma: Path, plain: Path, tmp_path: Path, changes: dict[str, Any], text: Any, message: str
) -> None:
    folder = tiny.changed(plain, tmp_path / "changed", **changes)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"] |= text
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=message):
        drafting(gemma, folder)


def test_damaged_weights_are_refused(gemma: Path, plain: Path, tmp_path: Path) -> None:
    weights = load_file(plain / "model.safetensors")
    order = weights.pop("masked_embedding.token_ordering")
    for name, changed, message in (
        ("order", order.clamp(min=1), "token_ordering must have every token once"),
        ("short", order[order < 304], "has 304 tokens, and the head is"),
        ("none", None, "there is no weight masked_embedding.token_ordering"),
    ):
        folder = tiny.changed(plain, tmp_path / name)
        own = {} if changed is None else {"masked_embedding.token_ordering": changed}
        save_file({**weights, **own}, folder / "model.safetensors")
        with pytest.raises(InputError, match=message):
            drafting(gemma, folder)
    folder = tiny.changed(plain, tmp_path / "missing")
    del weights["post_projection.weight"]
    own = {"masked_embedding.token_ordering": order}
    save_file({**weights, **own}, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"missing: .*post_projection\.weight"):
        drafting(gemma, folder)


def test_other_models_and_options_are_refused(plain: Path, tmp_path: Path) -> None:
    llama = tiny.shallow(tmp_path, vocab_size=320)
    with pytest.raises(InputError, match="has no layer of sliding attention"):
        drafting(llama, plain)
    with pytest.raises(InputError, match="it needs the Gemma 4 that it drafts for, `--speculate"):
        load(plain)
    file = tmp_path / "assistant.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(InputError, match="an assistant is a folder with"):
        drafting(llama, file)
    with pytest.raises(InputError, match="an assistant has no keys and values of its own"):
        drafting(llama, plain, kv_cache_dtype="int8")
