"""Tiny models that embed, as sentence-transformers stores them, or rank by yes and no."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

import tiny

MODULE = "sentence_transformers.models."
PROMPTS = {"query": "Instruct: find it\nQuery:", "document": "", "task": "Task: "}
CHATML = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")
JUDGE_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)
SPARE = 400  # tokens of models whose tokenizer is written by `judge`


def write(path: Path, value: Any) -> None:
    """Write a value as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def changed(folder: Path, file: str, **changes: Any) -> None:
    """Change fields of a JSON file."""
    write(folder / file, json.loads((folder / file).read_text()) | changes)


def write_modules(
    folder: Path,
    pooling: dict[str, Any],
    *,
    dense: tuple[int, str] | None = None,
    normalize: bool = True,
    prompts: dict[str, str] = PROMPTS,
    usual: str | None = None,
) -> Path:
    """Write the files of sentence-transformers into a model's folder, and return it.

    `dense` is the size and the activation of a matrix after pooling.
    """
    width = json.loads((folder / "config.json").read_text())["hidden_size"]
    names = ["", "1_Pooling"]
    kinds = [f"{MODULE}Transformer", f"{MODULE}Pooling"]
    write(folder / "1_Pooling/config.json", {"word_embedding_dimension": width, **pooling})
    if dense is not None:
        names.append("2_Dense")
        kinds.append(f"{MODULE}Dense")
        write_dense(folder / "2_Dense", width, *dense)
    if normalize:
        names.append("3_Normalize")
        kinds.append(f"{MODULE}Normalize")
        (folder / "3_Normalize").mkdir()
    modules = [
        {"idx": at, "name": str(at), "path": name, "type": kind}
        for at, (name, kind) in enumerate(zip(names, kinds, strict=True))
    ]
    write(folder / "modules.json", modules)
    settings = {"prompts": prompts, "default_prompt_name": usual, "similarity_fn_name": "cosine"}
    write(folder / "config_sentence_transformers.json", settings)
    return folder


def write_dense(folder: Path, width: int, size: int, activation: str) -> None:
    """Write a module of a matrix [size, width] with a bias."""
    names = {"Tanh": "torch.nn.modules.activation.Tanh"}
    fields = {"in_features": width, "out_features": size, "bias": True}
    function = names.get(activation, f"torch.nn.modules.linear.{activation}")
    write(folder / "config.json", fields | {"activation_function": function})
    noise = np.random.default_rng(3)
    weight = noise.standard_normal((size, width), np.float32) / 8
    tensors = {"linear.weight": weight, "linear.bias": noise.standard_normal(size, np.float32)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def without_head(folder: Path, architecture: str) -> Path:
    """Store a model as its class without a head is: names without `model.`; return the folder."""
    path = folder / "model.safetensors"
    stored = {
        name.removeprefix("model."): each
        for name, each in load_file(path).items()
        if not name.startswith("lm_head")
    }
    save_file(stored, path, metadata={"format": "pt"})
    changed(folder, "config.json", architectures=[architecture])
    return folder


def with_eos(folder: Path) -> int:
    """Let the tokenizer put its end of text after every text; return that token."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    eos = tokenizer.token_to_id("<eos>")
    tokenizer.post_processor = TemplateProcessing(
        single="$A <eos>", special_tokens=[("<eos>", eos)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return int(eos)


def judge(folder: Path, variant: str = "qwen3", *, chatml: bool = True, **changes: Any) -> Path:
    """Make a model whose tokenizer has yes and no as tokens; return its folder.

    With `chatml` it has the marks and the template of Qwen3.
    """
    tiny.make(folder, variant, vocab_size=SPARE, **{"max_position_embeddings": 1024, **changes})
    tiny.write_tokenizer(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens(["yes", "no"])
    if chatml:
        tokenizer.add_special_tokens(list(CHATML))
        (folder / "chat_template.jinja").write_text(JUDGE_TEMPLATE)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
