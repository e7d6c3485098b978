"""How files say that a model embeds. Tests sentence_folder.py, pooled.py and pooling.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedders
import tiny
from suffice.checkpoints.formats.quantized_file import Quantized
from suffice.checkpoints.open import open_checkpoint
from suffice.checkpoints.pooled import pooling_facts, pooling_of
from suffice.checkpoints.sentence_folder import _OLD
from suffice.decoder.pooling import MODES, Pool, Pooling
from suffice.errors import InputError

OLD = {mode: field for field, mode in _OLD.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.make(tmp_path / "model", "llama")


def read(folder: Path) -> Pooling:
    return pooling_of(open_checkpoint(folder))


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_by_both_names(folder: Path, mode: str) -> None:
    flags = dict.fromkeys(OLD.values(), False) | {OLD[mode]: True, "include_prompt": True}
    found = read(embedders.write_modules(folder, flags))
    assert (found.mode, found.size, found.declared, found.normalize) == (mode, 64, True, True)
    embedders.write(folder / "1_Pooling/config.json", {"pooling_mode": mode})
    assert read(folder).mode == mode


def test_files_that_say_nothing(folder: Path) -> None:
    found = read(folder)
    assert found.plain == Pooling(64).plain and not found.declared and found.mode == "lasttoken"


def test_matrices_prompts_and_no_norm(folder: Path) -> None:
    made = embedders.write_modules(
        folder, {"pooling_mode": "mean"}, dense=(48, "Tanh"), normalize=False, usual="query"
    )
    found = read(made)
    (dense,) = found.dense
    assert dense.weight.shape == (48, 64) and dense.bias is not None
    assert (found.size, found.normalize, found.default_prompt) == (48, False, "query")
    assert found.prompt(None) == embedders.PROMPTS["query"] and found.prompt("task") == "Task: "
    with pytest.raises(InputError, match=r"unknown prompt_name 'querry'\. Did you mean 'query'"):
        found.prompt("querry")
    pooled = np.linspace(-1, 1, 64)
    wanted = np.tanh(dense.weight.astype(np.float64) @ pooled + dense.bias)
    np.testing.assert_allclose(found.embedding(pooled, None, None), wanted, rtol=1e-6)


def damage(name: str, content: Any) -> Callable[[Path], None]:
    return lambda folder: embedders.write(folder / name, content)


def modules(*entries: Any) -> Callable[[Path], None]:
    kinds = [
        {"type": f"a.{each}", "path": ""} if isinstance(each, str) else each for each in entries
    ]
    return damage("modules.json", kinds)


def no_score(folder: Path) -> None:
    modules({"type": "a.LogitScore", "path": "1_Score"})(folder)
    embedders.write(folder / "1_Score/config.json", {"true_token_id": 3, "false_token_id": None})


POOLING = "1_Pooling/config.json"
REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "two": (damage(POOLING, dict.fromkeys(_OLD, True)), "the pooling \\['cls', 'mean'"),
    "none": (
        damage(POOLING, {}),
        r"the pooling \[\] is not supported; supported: one of lasttoken",
    ),
    "other": (damage(POOLING, {"pooling_mode": "rank"}), "the pooling 'rank' is not supported"),
    "prompt": (
        damage(POOLING, {"pooling_mode": "mean", "include_prompt": False}),
        "'include_prompt' = False is not supported; supported: true",
    ),
    "module": (modules("Transformer", "LayerNorm"), "the module .*LayerNorm.* is not supported"),
    "no module": (modules(3), "the module 3 is not supported; supported: Transformer, Pooling"),
    "outside": (modules({"type": "a.Pooling", "path": "../x"}), "the path '../x' must be a folder"),
    "no pooling": (modules("Transformer"), "has no module Pooling: nothing says how"),
    "object": (damage("modules.json", {}), "must hold a JSON list, not a dict"),
    "gone": (lambda folder: (folder / POOLING).unlink(), "config.json cannot be read"),
    "prompts": (
        damage("config_sentence_transformers.json", {"prompts": {"a": 1}}),
        "'prompts' must be texts by name",
    ),
    "usual": (
        damage("config_sentence_transformers.json", {"default_prompt_name": "a"}),
        "'default_prompt_name' one of the names",
    ),
    "no name": (
        damage("config_sentence_transformers.json", {"default_prompt_name": []}),
        "'default_prompt_name' one of the names",
    ),
    "activation": (
        lambda folder: embedders.changed(
            folder / "2_Dense", "config.json", activation_function="a.GELU"
        ),
        "'activation_function' = 'GELU' is not supported; supported: Identity, Tanh",
    ),
    "columns": (
        lambda folder: embedders.write_dense(folder / "2_Dense", 32, 8, "Tanh"),
        "must have 'linear.weight' of 64 columns",
    ),
    "tokens": (
        no_score,
        "must be two token ids",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(folder: Path, name: str) -> None:
    embedders.write_modules(folder, {"pooling_mode": "mean"}, dense=(48, "Tanh"))
    act, message = REFUSED[name]
    act(folder)
    with pytest.raises(InputError, match=message):
        read(folder)


def test_tokens_by_which_a_model_ranks(folder: Path) -> None:
    modules("Transformer", {"type": "a.LogitScore", "path": "1_Score"})(folder)
    embedders.write(folder / "1_Score/config.json", {"true_token_id": 9, "false_token_id": 4})
    found = read(folder)
    assert found.yes_no == (9, 4) and not found.declared


@pytest.mark.parametrize(("number", "mode"), [(1, "mean"), (2, "cls"), (3, "lasttoken")])
def test_the_number_of_a_gguf_file(folder: Path, number: int, mode: str) -> None:
    path = tiny.write_gguf(folder, folder / "a.gguf", pooling_type=number)
    found = read(path)
    assert (found.mode, found.declared, found.normalize) == (mode, True, True)


def test_other_gguf_files(folder: Path) -> None:
    assert not read(tiny.write_gguf(folder, folder / "a.gguf", pooling_type=0)).declared
    assert not read(tiny.write_gguf(folder, folder / "a.gguf")).declared
    with pytest.raises(
        InputError, match=r"'llama.pooling_type' = 4 is not supported; supported: 0"
    ):
        read(tiny.write_gguf(folder, folder / "a.gguf", pooling_type=4))


@pytest.mark.parametrize("variant", ["mistral", "llama", "qwen3", "gpt2-unscaled"])
def test_classes_without_a_head(tmp_path: Path, variant: str) -> None:
    folder = tiny.make(tmp_path, variant)
    (name,) = json.loads((folder / "config.json").read_text())["architectures"]
    bare = name.replace("ForCausalLM", "Model").replace("LMHead", "")
    if variant == "gpt2-unscaled":
        embedders.changed(folder, "config.json", architectures=[bare])
        assert not read(folder).headless, "its files have one"
        return
    opened = open_checkpoint(embedders.without_head(folder, bare))
    assert opened.headless and opened.config.tied and pooling_of(opened).headless
    embedders.changed(folder, "config.json", architectures=[name])
    assert read(folder).headless, "Qwen3-Embedding's largest is stored so"


def test_a_head_that_is_missing_is_refused(folder: Path) -> None:
    """Where names begin as those of a model with a head do."""
    from safetensors.numpy import load_file, save_file

    stored = load_file(folder / "model.safetensors")
    del stored["lm_head.weight"]
    save_file(stored, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"missing: lm_head.weight"):
        read(folder)


def test_a_quantized_file_keeps_it(folder: Path) -> None:
    made = embedders.write_modules(folder, {"pooling_mode": "mean"}, usual="task")
    opened = open_checkpoint(made)
    told = json.loads(json.dumps(pooling_facts(opened)))["pooling"]

    def stored(facts: dict[str, Any]) -> Pooling:
        return pooling_of(Quantized(folder, facts, opened.config, {}))

    assert stored({"pooling": told}).plain == read(made).plain
    assert stored({"pooling": told | {"yes_no": [3, 4]}}).yes_no == (3, 4)
    assert not stored({}).declared
    for wrong in ({"mode": "rank"}, {"size": 63}, {"what": 1}, {"yes_no": 3}):
        with pytest.raises(
            InputError, match="is damaged: 'pooling' of its header has another form"
        ):
            stored({"pooling": told | wrong})
    assert pooling_facts(open_checkpoint(tiny.make(folder / "plain", "llama"))) == {}
    dense = tiny.make(folder / "dense", "llama")
    embedders.write_modules(dense, {"pooling_mode": "mean"}, dense=(8, "Identity"))
    with pytest.raises(InputError, match="Dense modules after pooling: these cannot be quantized"):
        pooling_facts(open_checkpoint(dense))


STATES = np.random.default_rng(1).standard_normal((37, 16), np.float32)
EXACT = STATES.astype(np.float64)
RISING = np.arange(1, 38)[:, None]
POOLED = {
    "lasttoken": EXACT[-1],
    "cls": EXACT[0],
    "max": EXACT.max(0),
    "mean": EXACT.mean(0),
    "mean_sqrt_len_tokens": EXACT.sum(0) / 37**0.5,
    "weightedmean": (RISING * EXACT).sum(0) / RISING.sum(),
}


@pytest.mark.parametrize("mode", MODES)
def test_cuts_change_no_bit(mode: str) -> None:
    found = []
    for size in (1, 2, 5, 36, 37):
        pool = Pool(mode)
        for first in range(0, 37, size):
            pool.add(STATES[first : first + size])
        found.append(pool.value)
    np.testing.assert_allclose(found[0], POOLED[mode], rtol=1e-12, atol=1e-14)
    assert all(np.array_equal(each, found[0]) for each in found)


def test_fewer_entries_are_normalized_again() -> None:
    vector = np.array([3.0, 4.0, 12.0])
    np.testing.assert_allclose(Pooling(3).embedding(vector, 2, None), [0.6, 0.8], rtol=1e-7)
    assert Pooling(3).embedding(vector, 2, False).tolist() == [3, 4]
    assert Pooling(3, normalize=False).embedding(vector, None, True)[2] == np.float32(12 / 13)
    assert Pooling(3).embedding(np.zeros(3), None, None).tolist() == [0, 0, 0]
    with pytest.raises(InputError, match="the embedding is not finite: the model's weights may"):
        Pooling(3).embedding(np.array([1.0, np.nan, 0]), None, None)
