"""Tests of checkpoint.py, hf_folder.py, weights.py and files.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny
from suffice.checkpoints.open import open_checkpoint
from suffice.errors import InputError

Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.make(tmp_path / "tiny", "llama")


def change(folder: Path, **changes: Any) -> None:
    """Replace or add weights by name (`__` stands for `.`); None removes one."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    for name, value in changes.items():
        name = name.replace("__", ".")
        if value is None:
            del weights[name]
        else:
            weights[name] = value
    save_file(weights, path)


def refusal(model: str | Path) -> str:
    with pytest.raises(InputError) as caught:
        list(open_checkpoint(model).tensors())
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_every_weight_is_used_once(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    stored = load_file(folder / "model.safetensors")
    read = dict(checkpoint.tensors())
    assert sorted(checkpoint.names.values()) == sorted(stored)
    for name, tensor in read.items():
        assert np.array_equal(tensor, stored[checkpoint.names[name]]), name


def test_norms_of_gemma_get_their_one(tmp_path: Path) -> None:
    folder = tiny.make(tmp_path, "gemma3")
    stored = load_file(folder / "model.safetensors")
    read = dict(open_checkpoint(folder).tensors())
    for name, full in (
        ("final_norm", "norm"),
        ("layers.0.post_mlp_norm", "layers.0.post_feedforward_layernorm"),
        ("layers.2.q_norm", "layers.2.self_attn.q_norm"),
    ):
        assert np.array_equal(read[name], stored[f"model.{full}.weight"] + 1), name
    assert np.array_equal(read["embed"], stored["model.embed_tokens.weight"])


def test_missing_and_left_over_weights(folder: Path) -> None:
    change(folder, **{Q.replace(".", "__"): None, "model__extra__weight": torch.zeros(2)})
    assert refusal(folder) == (
        f"{folder}: the weights do not match the configuration; "
        f"missing: {Q}; unknown: model.extra.weight"
    )


def test_many_missing_weights_are_counted(folder: Path) -> None:
    names = [name for name in load_file(folder / "model.safetensors") if "layers.2" in name]
    change(folder, **{name.replace(".", "__"): None for name in names})
    assert refusal(folder).endswith(
        "input_layernorm.weight, model.layers.2.mlp.down_proj.weight, "
        "model.layers.2.mlp.gate_proj.weight, model.layers.2.mlp.up_proj.weight and 5 more"
    )


def test_a_bias_that_the_configuration_does_not_mention(folder: Path) -> None:
    change(folder, model__layers__0__self_attn__q_proj__bias=torch.zeros(64))
    assert "unknown: model.layers.0.self_attn.q_proj.bias" in refusal(folder)


def test_wrong_shape(folder: Path) -> None:
    change(folder, **{Q.replace(".", "__"): torch.zeros(64, 32)})
    assert refusal(folder) == (
        f"{folder}: weight '{Q}' has shape [64, 32], but the configuration says [64, 64]"
    )


def test_wrong_type(folder: Path) -> None:
    change(folder, **{Q.replace(".", "__"): torch.zeros(64, 64, dtype=torch.int8)})
    assert refusal(folder) == (
        f"{folder / 'model.safetensors'}: weight '{Q}' has type I8; supported: F32, F16, BF16"
    )


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_types(folder: Path, dtype: str) -> None:
    path = folder / "model.safetensors"
    weights = {k: v.to(getattr(torch, dtype)) for k, v in load_file(path).items()}
    save_file(weights, path)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.dtype == dtype
    loaded = dict(checkpoint.tensors())["layers.1.q"]
    assert loaded.dtype.name == dtype
    assert np.array_equal(loaded.astype(np.float32), weights[Q].float().numpy())


@pytest.mark.parametrize(
    ("types", "widest"),
    [
        (("bfloat16", "bfloat16"), "bfloat16"),
        (("bfloat16", "float32"), "float32"),
        (("float32", "bfloat16"), "float32"),
        (("float16", "bfloat16"), "float32"),  # neither holds the other
    ],
)
def test_the_type_holds_every_matrix(folder: Path, types: tuple[str, str], widest: str) -> None:
    path, first = folder / "model.safetensors", "model.layers.0.self_attn.q_proj.weight"
    one, rest = (getattr(torch, name) for name in types)
    weights = {k: v.to(one if k == first else rest) for k, v in load_file(path).items()}
    save_file(weights, path)
    assert open_checkpoint(folder).dtype == widest


def test_norms_do_not_decide_the_type(folder: Path) -> None:
    path = folder / "model.safetensors"
    save_file({k: v.bfloat16() if v.dim() == 2 else v for k, v in load_file(path).items()}, path)
    assert open_checkpoint(folder).dtype == "bfloat16"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", [Q, "model.norm.weight"])
def test_weights_that_are_not_finite(folder: Path, name: str, bad: float, dtype: str) -> None:
    weights = load_file(folder / "model.safetensors")
    weights[name].view(-1)[-1] = bad
    change(folder, **{name.replace(".", "__"): weights[name].to(getattr(torch, dtype))})
    assert refusal(folder) == (
        f"{folder}: weight '{name}' has NaN or infinite entries; all must be finite"
    )


def test_old_rotary_buffers_are_no_weights(folder: Path) -> None:
    change(folder, model__layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(8))
    list(open_checkpoint(folder).tensors())


def test_a_spare_head_must_be_the_embedding(tmp_path: Path) -> None:
    folder = tiny.make(tmp_path, "llama", tie_word_embeddings=True)
    embed = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    change(folder, lm_head__weight=embed.clone())
    assert "head" not in dict(open_checkpoint(folder).tensors())
    change(folder, lm_head__weight=embed + 1)
    assert refusal(folder) == (
        f"{folder}: the configuration ties the head to the embedding, "
        "but the weight 'lm_head.weight' differs from it"
    )


def test_a_checkpoint_of_the_model_without_its_head(tmp_path: Path) -> None:
    folder = tiny.make(tmp_path, "opt")
    before = dict(open_checkpoint(folder).tensors())
    path = folder / "model.safetensors"
    save_file({k.removeprefix("model."): v for k, v in load_file(path).items()}, path)
    after = dict(open_checkpoint(folder).tensors())
    assert before.keys() == after.keys()


def shard(folder: Path) -> dict[str, str]:
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in files.items():
        save_file({name: weights[name] for name in part}, folder / file)
    (folder / "model.safetensors").unlink()
    index = {name: file for file, part in files.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return index


def test_shards(folder: Path) -> None:
    whole = dict(open_checkpoint(folder).tensors())
    index = shard(folder)
    parts = dict(open_checkpoint(folder).tensors())
    assert all(np.array_equal(whole[name], parts[name]) for name in whole)

    (folder / "b.safetensors").unlink()
    assert "b.safetensors cannot be read" in refusal(folder)
    index[Q] = "a.safetensors" if index[Q] == "b.safetensors" else "b.safetensors"
    (folder / "model.safetensors.index.json").write_text("{}")
    assert refusal(folder).endswith("model.safetensors.index.json has no 'weight_map'")


def test_a_weight_that_is_not_where_the_index_says(folder: Path) -> None:
    index = shard(folder)
    index[Q] = "a.safetensors" if index[Q] == "b.safetensors" else "b.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert refusal(folder).endswith(f"safetensors lacks the weight '{Q}' of the index")


def test_a_file_cut_short(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    for size in (0, 4, 500, len(data) - 1):
        path.write_bytes(data[:size])
        assert refusal(folder).startswith(f"{path} is not a valid safetensors file: ")


def test_weights_in_other_formats(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert refusal(folder) == (
        f"{folder} has weights in PyTorch's pickle format only; "
        "convert them to safetensors (save_pretrained of transformers does)"
    )
    (folder / "pytorch_model.bin").unlink()
    assert refusal(folder) == (
        f"{folder} has no weights: neither model.safetensors nor model.safetensors.index.json"
    )


def test_what_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hint = "give a name of `suffice list`, a directory, a .gguf file or a hub id"
    assert refusal(tmp_path) == (
        f"{tmp_path} has no config.json, so it is not a Hugging Face checkpoint"
    )
    assert refusal("missing").startswith("unknown model 'missing'. Known: ")
    assert refusal("./a/b") == f"model './a/b' not found: {hint} (organisation/name)"
    assert refusal("a/b.gguf") == f"model 'a/b.gguf' not found: {hint} (organisation/name)"
    (tmp_path / "x.bin").write_bytes(b"")
    assert refusal(tmp_path / "x.bin") == (
        f"{tmp_path / 'x.bin'} is not a model: give a directory, a .gguf file, one of "
        "`suffice quantize` (.safetensors) or a hub id"
    )
    assert refusal("/dev/null").startswith("/dev/null is not a model: ")
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert refusal(tmp_path) == (
        f"{tmp_path} has no config.json; did you mean the file {tmp_path / 'm.gguf'}?"
    )


def test_names_that_no_file_can_have(tmp_path: Path) -> None:
    assert refusal(f"./{'x' * 300}").endswith("cannot be opened: File name too long")
    assert refusal("./a\0b") == "model 'a\\x00b' cannot be opened: embedded null byte"
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert refusal(tmp_path / "loop").endswith("Too many levels of symbolic links")


def test_a_hub_id_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert refusal("organisation/model") == (
        "model 'organisation/model' is neither a local path nor available: "
        "it is not in the local cache and the hub cannot be reached"
    )
