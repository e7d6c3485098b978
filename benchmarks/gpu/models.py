"""The models of the GPU benchmark: real ones, and random ones of the shapes that people run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen3Config,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from benchmarks.gpu.parts import Place
from suffice.errors import InputError

# Folders, or GGUF files in them, below --models; and the rows of their caches.
REAL = {"SmolLM2-135M": ("smollm2-135m*", 8192), "Gemma 3 270M": ("gemma3-270m*", 32768)}
SHAPES: dict[str, Any] = {
    "Mistral-7B": MistralConfig(
        vocab_size=32768,
        num_key_value_heads=8,
        max_position_embeddings=40960,
        rope_theta=1e6,
        sliding_window=None,
    ),
    "Qwen3-8B": Qwen3Config(
        vocab_size=151936,
        hidden_size=4096,
        intermediate_size=12288,
        num_hidden_layers=36,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40960,
    ),
}
_TINY = LlamaConfig(
    vocab_size=200,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
)
_RECORDER = "suffice-recorder"


def random(place: Place, name: str) -> PreTrainedModel:
    """Return a model of a shape with random weights, in bfloat16."""
    config = _TINY if place.tiny else SHAPES[name]
    kind = AutoModelForCausalLM
    torch.manual_seed(0)
    with torch.device(place.device):
        model = kind.from_config(config, dtype=torch.bfloat16)
    return model.eval()  # type: ignore[no-any-return]


def real(place: Place, name: str) -> tuple[PreTrainedModel, list[list[int]]]:
    """Return a model in bfloat16, or a tiny random one, and texts of the rows of its caches.

    Raises:
        InputError: --models or --data lacks them.
    """
    pattern, rows = REAL[name]
    if place.tiny:
        made = torch.Generator().manual_seed(0)
        ids = torch.randint(3, 200, (2, 110), generator=made)
        return random(place, name), ids.tolist()
    found = sorted(place.models.glob(pattern)) if place.models else []
    if not found:
        raise InputError(f"{name}: --models={place.models} has no {pattern}")
    source = found[0]
    if source.is_dir() and not (source / "config.json").is_file():  # a folder of one file
        source = next(source.glob("*.gguf"), source)
    given = {} if source.is_dir() else {"gguf_file": source.name}
    folder = source if source.is_dir() else source.parent
    tokenizer = AutoTokenizer.from_pretrained(folder, **given)
    options: dict[str, Any] = {**given, "dtype": torch.bfloat16}
    if given and hasattr(transformers, "GgufConfig"):  # else it would keep the file's blocks
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(folder, **options)
    return model.to(place.device).eval(), texts(place, tokenizer, rows)


def texts(place: Place, tokenizer: Any, rows: int, most: int = 8) -> list[list[int]]:
    """Return texts of `rows` tokens: runs of WikiText-2's test set, which --data has.

    Raises:
        InputError: It has not.
    """
    path = (place.data or Path()) / "wikitext2-test-raw.txt"
    if not path.is_file():
        raise InputError(f"--data={place.data}: has no {path.name}")
    tokens = tokenizer(path.read_text(encoding="utf-8"), verbose=False)["input_ids"]
    return [tokens[at : at + rows] for at in range(0, len(tokens) - rows, rows)][:most]


@contextlib.contextmanager
def recording(
    model: PreTrainedModel, last: int = 1
) -> Iterator[dict[int, tuple[torch.Tensor, ...]]]:
    """Record each full layer's last queries [B, H, last, D], its keys and values, while it runs."""
    found: dict[int, tuple[torch.Tensor, ...]] = {}

    def attention(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        if getattr(module, "sliding_window", None) is None:
            found[module.layer_idx] = query[:, :, -last:].clone(), key.clone(), value.clone()
        return sdpa_attention_forward(module, query, key, value, mask, **options)

    before = model.config._attn_implementation
    AttentionInterface.register(_RECORDER, attention)
    model.set_attn_implementation(_RECORDER)
    try:
        yield found
    finally:
        model.set_attn_implementation(before)
        del AttentionInterface._global_mapping[_RECORDER]
