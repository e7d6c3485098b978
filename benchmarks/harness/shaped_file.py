"""Writes a GGUF file of a model's shape with random codes.

Text that such a model makes means nothing, but reading, packing and running it is the work of any
file of that shape. A tensor is made, written and forgotten, so the model never exists in memory.
The vocabulary has a token for each byte and one for each of many pairs of bytes.
"""

from __future__ import annotations

import math
import shutil
from itertools import islice, product
from pathlib import Path

import gguf
import numpy as np
from tokenizers import pre_tokenizers

from suffice.errors import InputError
from suffice.paths import write_whole
from suffice_hw.kllm.design import MODELS, Shape

SHAPES = {name: MODELS[name] for name in ("llama-2-7b", "mistral-7b")}
TINY = Shape("tiny", layers=2, width=64, hidden=96, heads=4, kv_heads=2, vocabulary=320)
# The standard deviation of weights of random codes whose scale is 1, by the type of a block; nested
# scales are random, too.
SPREAD = {"Q4_0": 4.61, "Q8_0": 73.9, "Q4_K": 258.0, "Q6_K": 1366.0}
SCALE_AT = {"Q6_K": 208}  # bytes before the scale of a block; else 0
MINIMA = {"Q4_K": 7.5}  # the scale of the minima, over the scale: the mean of the codes
MIXED = "Q4_K_M"
TYPES = ("Q4_0", "Q8_0", MIXED)  # of files
CONTEXT = 4096
PROMPT = "H"  # one token
SPARE_BYTES = 2 << 30  # of the disk, for others
_MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def tensors(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Return the name and the shape of each tensor, in the order of the file."""
    vocabulary = (shape.vocabulary, shape.width)
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": vocabulary}
    for layer in range(shape.layers):
        for norm in ("attn_norm", "ffn_norm"):
            found[f"blk.{layer}.{norm}.weight"] = (shape.width,)
        for name, size in zip(_MATRICES, shape.linears, strict=True):
            found[f"blk.{layer}.{name}.weight"] = size
    return found | {"output_norm.weight": (shape.width,), "output.weight": vocabulary}


def weight_count(shape: Shape) -> int:
    """Return the number of weights."""
    return sum(map(math.prod, tensors(shape).values()))


def types(shape: Shape, kind: str) -> dict[str, str]:
    """Return the type of each tensor in a file of type `kind`.

    Q4_K_M is Q4_K, with Q6_K for the head and, in a half of the layers (the first and the last
    eighth, and of those between every third), for the values and the way down.
    """
    found = {name: kind if len(size) == 2 else "F32" for name, size in tensors(shape).items()}
    if kind != MIXED:
        return found
    eighth = shape.layers // 8
    for name in (name for name in found if found[name] == MIXED):
        part = name.split(".")
        layer = int(part[1]) if part[0] == "blk" else -1
        better = layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2
        mixed = part[0] == "output" or (better and part[-2] in ("attn_v", "ffn_down"))
        found[name] = "Q6_K" if mixed else "Q4_K"
    return found


def tensor_bytes(kind: str, size: tuple[int, ...]) -> int:
    """Return the bytes of a tensor of a type of block, or of floats."""
    values, block = _block(kind)
    return math.prod(size) // values * block


def data_bytes(shape: Shape, kind: str) -> int:
    """Return the bytes of all tensors of a file."""
    type_of = types(shape, kind)
    return sum(tensor_bytes(type_of[name], size) for name, size in tensors(shape).items())


def write(path: Path, shape: Shape, kind: str) -> Path:
    """Write a file whose matrices have type `kind`, and return its path.

    Q4_0, Q8_0 and Q4_K_M are types; of the last, widths must be multiples of 256.

    Raises:
        InputError: The disk has no room.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    needed, free = data_bytes(shape, kind) + SPARE_BYTES, shutil.disk_usage(path.parent).free
    if free < needed:
        raise InputError(
            f"{path.name}: needs {needed / 2**30:.1f} GiB of disk, some to spare included; "
            f"{free / 2**30:.1f} GiB are free"
        )
    random = np.random.default_rng(0)
    with write_whole(path) as part:
        writer = gguf.GGUFWriter(part, "llama")
        _add_sizes(writer, shape)
        _add_tokenizer(writer, shape.vocabulary)
        type_of = types(shape, kind)
        for name, size in tensors(shape).items():
            stored = gguf.GGMLQuantizationType[type_of[name]]
            counted = tensor_bytes(type_of[name], size)
            writer.add_tensor_info(name, size, np.dtype(np.float32), counted, stored)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name, size in tensors(shape).items():
            norm = len(size) == 1
            data = np.ones(size, "f4") if norm else _blocks(type_of[name], size, random)
            writer.write_tensor_data(data)
        writer.close()
    return path


def _block(kind: str) -> tuple[int, int]:
    """Return the weights and the bytes of a block of a type."""
    values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    return int(values), int(size)


def _blocks(kind: str, size: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """Return a matrix [N, K] as blocks of random codes, scaled to a variance of 1 / K."""
    _, block = _block(kind)
    data = random.integers(0, 256, tensor_bytes(kind, size), np.uint8).reshape(-1, block)
    scale = size[1] ** -0.5 / SPREAD[kind]
    at = SCALE_AT.get(kind, 0)
    data[:, at : at + 2] = _bytes_of(scale)
    if kind in MINIMA:
        data[:, at + 2 : at + 4] = _bytes_of(scale * MINIMA[kind])
    return data


def _bytes_of(value: float) -> np.ndarray:
    """Return the two bytes of a float16."""
    return np.frombuffer(np.float16(value).tobytes(), np.uint8)


def _add_sizes(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_vocab_size(shape.vocabulary)


def _add_tokenizer(writer: gguf.GGUFWriter, vocabulary: int) -> None:
    """Add a byte-level tokenizer of exactly `vocabulary` tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    least, most = 1 + len(letters), 1 + len(letters) + len(letters) ** 2
    if not least <= vocabulary <= most:
        raise InputError(f"vocabulary={vocabulary}: must be from {least} to {most} tokens")
    pairs = list(islice(product(letters, repeat=2), vocabulary - least))
    tokens = ["<eos>", *letters, *map("".join, pairs)]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([control] + [normal] * (vocabulary - 1))
    writer.add_token_merges([f"{left} {right}" for left, right in pairs])
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)
