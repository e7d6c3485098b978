"""Random tiny checkpoints of every model family, made by transformers itself.

Weights are drawn large enough for logits and attention to be far from uniform, so that a wrong
mask, scale or rotation shows.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from tiny_mixtures import MIXTURES
from tiny_tokenizer import write_tokenizer as write_tokenizer
from tiny_variants import STATEFUL as STATEFUL
from tiny_variants import VARIANTS as DENSE
from tiny_variants import VOCABULARY as VOCABULARY

VARIANTS = {**DENSE, **MIXTURES}


def make(folder: Path, variant: str = "llama", *, seed: int = 0, **changes: Any) -> Path:
    """Write a checkpoint directory (config.json, model.safetensors) and return it.

    `changes` are configuration fields. `tokenizer=True` adds a byte-level tokenizer, whose size
    the vocabulary then has. What was made once is written again from memory.
    """
    key = repr((variant, seed, sorted(changes.items())))
    if key not in _made:
        # transformers shows its progress, which is no output of what a test runs
        with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(io.StringIO()):
            _make(Path(name), variant, seed, changes)
            _made[key] = {path.name: path.read_bytes() for path in Path(name).iterdir()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in _made[key].items():
        (folder / name).write_bytes(content)
    return folder


def shallow(folder: Path, variant: str = "llama", **changes: Any) -> Path:
    """Write a checkpoint of two layers with a tokenizer, where more layers show nothing more."""
    return make(folder, variant, tokenizer=True, num_hidden_layers=2, **changes)


def changed(checkpoint: Path, folder: Path, **fields: Any) -> Path:
    """Copy a checkpoint to a folder, with other fields in its configuration; return the folder."""
    shutil.copytree(checkpoint, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **fields}))
    return folder


_made: dict[str, dict[str, bytes]] = {}


def _make(folder: Path, variant: str, seed: int, changes: dict[str, Any]) -> None:
    family, fields = VARIANTS[variant]
    if changes.pop("tokenizer", False):
        changes["vocab_size"] = write_tokenizer(folder)
        if "vocab_size_per_layer_input" in fields:
            changes["vocab_size_per_layer_input"] = changes["vocab_size"]
    model = _model(family, {**fields, **changes})
    centred = family.startswith(_CENTRED) and family not in _NOT_CENTRED
    fill(model, seed, centred=centred)
    model.save_pretrained(folder)


def fill(model: Any, seed: int, *, centred: bool) -> None:
    """Draw a model's weights; `centred`: those of norms are around 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_random(name, parameter, generator, centred=centred))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))
            if name.endswith("layer_scalar"):
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))


_CLASSES = {
    "Gemma3Text": "Gemma3ForCausalLM",
    "Gemma4Text": "Gemma4ForCausalLM",
    "GPT2": "GPT2LMHeadModel",
    "Llama4Text": "Llama4ForCausalLM",
    "Qwen3_5MoeText": "Qwen3_5MoeForCausalLM",
    "Qwen3_5Text": "Qwen3_5ForCausalLM",
}
_CENTRED = ("Gemma", "Nemotron", "Qwen3Next", "Qwen3_5")  # weights of norms that are added to 1
_NOT_CENTRED = ("Gemma4Text", "NemotronH")
_SHARP = ("mlp.gate.", "router", "shared_expert_gate", "q_proj", "k_proj", "qkv_proj")
_SHARP += ("query_key_value", "c_attn", "lm_head")


def _model(family: str, fields: dict[str, Any]) -> Any:
    import transformers

    config = getattr(transformers, f"{family}Config")(**fields)
    name = _CLASSES.get(family, f"{family}ForCausalLM")
    return getattr(transformers, name)(config).float()


def _random(
    name: str, like: torch.Tensor, generator: torch.Generator, *, centred: bool
) -> torch.Tensor:
    noise = torch.randn(like.shape, generator=generator)
    if name.endswith("bias"):
        return 0.3 * noise
    if like.dim() == 1:  # a norm; around 0 where the family adds 1 to it
        return (0.0 if centred else 1.0) + 0.3 * noise
    if any(part in name for part in ("embed", "wte", "wpe")):
        return 0.5 * noise
    gain = 2.5 if any(part in name for part in _SHARP) else 1.5
    return gain * noise / like.shape[-1] ** 0.5


def write_gguf(folder: Path, path: Path, kind: str = "F32", **numbers: int) -> Path:
    """Write a checkpoint directory of the llama family as a GGUF file.

    `kind` is the type of the matrices: F32, F16 or Q8_0. Rows of queries and keys are put in
    llama.cpp's order. `numbers` are further keys of the architecture.
    """
    import json

    import gguf
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_key_length(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])
    for key, number in numbers.items():
        writer.add_uint32(f"llama.{key}", number)
    for name, tensor in load_file(folder / "model.safetensors").items():
        if "q_proj" in name or "k_proj" in name:
            tensor = _interleave(tensor, heads if "q_proj" in name else kv_heads)
        _add_tensor(writer, _gguf_name(name), tensor, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _interleave(weight: torch.Tensor, heads: int) -> torch.Tensor:
    halves = weight.view(heads, 2, -1, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def _add_tensor(writer: Any, name: str, tensor: torch.Tensor, kind: str) -> None:
    import gguf

    stored = gguf.GGMLQuantizationType[kind if tensor.dim() == 2 else "F32"]
    values = gguf.quantize(tensor.float().contiguous().numpy(), stored)
    writer.add_tensor(name, values, raw_dtype=stored)


def _gguf_name(name: str) -> str:
    parts = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "model.layers": "blk",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    for theirs, ours in parts.items():
        name = name.replace(theirs, ours)
    return name
