"""Writes a GGUF file of a model's shape with random codes.

Text that such a model makes means nothing, but reading, packing and running it is the work of any
file of that shape. A tensor is made, written and forgotten, so the model never exists in memory.
Matrices have a variance of 1 / K, but the embedding 1, as large as what the layers add to it: what
follows depends on the token, and streams do not all fall into the same text.
The vocabulary has a token for each byte and one for each of many pairs of bytes, and if these are
not enough, of many triples.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from itertools import chain, islice, product
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import gguf
import ml_dtypes
import numpy as np
from tokenizers import pre_tokenizers

from suffice.errors import InputError
from suffice.paths import write_whole
from suffice_hw.kllm.design import MODELS, Shape

SHAPES = {name: MODELS[name] for name in ("llama-2-7b", "mistral-7b")}
TINY = Shape("tiny", layers=2, width=64, hidden=96, heads=4, kv_heads=2, vocabulary=320)
# The standard deviation of weights of random codes whose scale is 1, by the type of a block; nested
# scales are random, too.
SPREAD = {"Q4_0": 4.18, "Q8_0": 73.9, "Q4_K": 258.0, "Q6_K": 1366.0}
SPREAD |= {"IQ2_XXS": 53.4, "IQ3_S": 140.0, "TQ2_0": 0.707, "NVFP4": 2.93}
SCALE_AT = {"Q6_K": 208, "TQ2_0": 64}  # bytes before the scale of a block; else 0
MINIMA = {"Q4_K": 7.5}  # the scale of the minima, over the scale: the mean of the codes
MIXED = "Q4_K_M"
TYPES = ("Q4_0", "Q8_0", MIXED)  # of files
LOW = ("IQ2_XXS", "IQ3_S", "TQ2_0", "NVFP4")  # of files whose weights have few bits
CONTEXT = 4096
PROMPT = "H"  # one token
SPARE_BYTES = 2 << 30  # of the disk, for others
Tensors = dict[str, tuple[int, ...]]  # sizes by name, in the order of the file
_WIDE = 256  # values of a block of a K format
EMBEDDING, HEAD, ROUTER = "token_embd.weight", "output.weight", "ffn_gate_inp"
FLOATS = (ROUTER, "_norm.", "ssm_conv1d", "shortconv.conv.", "ssm_dt", ".ssm_a.", ".ssm_d.")
_BETTER = ("attn_v", "ffn_down", "ffn_down_exps")  # in a part of a mixed file's layers
_MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


class Sizes(Protocol):
    """What the metadata says of a shape of any architecture."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int


def tensors(shape: Shape) -> Tensors:
    """Return the name and the shape of each tensor."""
    vocabulary = (shape.vocabulary, shape.width)
    found: Tensors = {EMBEDDING: vocabulary}
    for layer in range(shape.layers):
        for norm in ("attn_norm", "ffn_norm"):
            found[f"blk.{layer}.{norm}.weight"] = (shape.width,)
        for name, size in zip(_MATRICES, shape.linears, strict=True):
            found[f"blk.{layer}.{name}.weight"] = size
    return found | {"output_norm.weight": (shape.width,), HEAD: vocabulary}


def weight_count(shape: Shape) -> int:
    """Return the number of weights."""
    return sum(map(math.prod, tensors(shape).values()))


def types(sizes: Tensors, layers: int, kind: str) -> dict[str, str]:
    """Return the type of each tensor in a file of type `kind`; routers and norms are floats.

    Q4_K_M is Q4_K, with Q6_K for the head (the embedding, if there is no other) and, in a half of
    the layers (the first and the last eighth, and of those between every third), for the values and
    the way down. Matrices of narrower rows than its blocks are Q8_0.
    """
    found = {name: kind if coded(name, size) else "F32" for name, size in sizes.items()}
    if kind != MIXED:
        return found
    eighth, head = layers // 8, head_of(sizes)
    for name in (name for name in found if found[name] == MIXED):
        part = name.split(".")
        layer = int(part[1]) if part[0] == "blk" else -1
        better = layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2
        mixed = name == head or (better and part[-2] in _BETTER)
        whole = sizes[name][-1] % _WIDE == 0
        found[name] = ("Q6_K" if mixed else "Q4_K") if whole else "Q8_0"
    return found


def head_of(sizes: Tensors) -> str:
    """Return the name of the matrix that makes logits."""
    return HEAD if HEAD in sizes else EMBEDDING


def coded(name: str, size: tuple[int, ...]) -> bool:
    """Return whether a tensor has codes."""
    return len(size) > 1 and not any(part in f"{name}." for part in FLOATS)


def tensor_bytes(kind: str, size: tuple[int, ...]) -> int:
    """Return the bytes of a tensor of a type of block, or of floats."""
    values, block = _block(kind)
    return math.prod(size) // values * block


def data_bytes(shape: Shape, kind: str) -> int:
    """Return the bytes of all tensors of a file."""
    return bytes_of(tensors(shape), types(tensors(shape), shape.layers, kind))


def bytes_of(sizes: Tensors, type_of: dict[str, str]) -> int:
    """Return the bytes of tensors of these sizes and types."""
    return sum(tensor_bytes(type_of[name], size) for name, size in sizes.items())


def write(path: Path, shape: Shape, kind: str) -> Path:
    """Write a file whose matrices have type `kind`, and return its path.

    TYPES and LOW are types; of Q4_K_M, and of LOW but NVFP4, widths must be multiples of 256.

    Raises:
        InputError: The disk has no room.
    """
    sizes = tensors(shape)
    return write_tensors(
        path,
        "llama",
        lambda writer: add_sizes(writer, shape, shape.hidden),
        sizes,
        types(sizes, shape.layers, kind),
    )


def write_tensors(
    path: Path,
    architecture: str,
    add_facts: Callable[[gguf.GGUFWriter], None],
    sizes: Tensors,
    type_of: dict[str, str],
    given: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> Path:
    """Write a file of an architecture: random tensors of these sizes and types; return its path.

    `add_facts` adds the architecture's own metadata. Tensors that are `given` are not random.

    Raises:
        InputError: The disk has no room.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    needed = bytes_of(sizes, type_of) + SPARE_BYTES
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        raise InputError(
            f"{path.name}: needs {needed / 2**30:.1f} GiB of disk, some to spare included; "
            f"{free / 2**30:.1f} GiB are free"
        )
    random = np.random.default_rng(0)
    with write_whole(path) as part:
        writer = gguf.GGUFWriter(part, architecture)
        add_facts(writer)
        _add_tokenizer(writer, sizes[EMBEDDING][0])
        for name, size in sizes.items():
            stored = gguf.GGMLQuantizationType[type_of[name]]
            counted = tensor_bytes(type_of[name], size)
            writer.add_tensor_info(name, size, np.dtype(np.float32), counted, stored)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name, size in sizes.items():
            found = given.get(name)
            writer.write_tensor_data(
                _values(name, type_of[name], size, random) if found is None else found
            )
        writer.close()
    return path


def _values(name: str, kind: str, size: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    if coded(name, size):
        return _blocks(kind, size, random, 1.0 if name == EMBEDDING else size[-1] ** -0.5)
    if len(size) == 1:  # a norm
        return np.ones(size, np.float32)
    return random.standard_normal(size, np.float32) * np.float32(size[-1] ** -0.5)


def _block(kind: str) -> tuple[int, int]:
    """Return the weights and the bytes of a block of a type."""
    values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    return int(values), int(size)


def _blocks(
    kind: str, size: tuple[int, ...], random: np.random.Generator, spread: float
) -> np.ndarray:
    """Return matrices [..., N, K] as blocks of random codes of a standard deviation."""
    _, block = _block(kind)
    data = random.integers(0, 256, tensor_bytes(kind, size), np.uint8).reshape(-1, block)
    scale = spread / SPREAD[kind]
    if kind == "Q4_0":  # levels around zero: a mean would outgrow all else, layer by layer
        data[data % 16 == 0] += 8
        data[data < 16] += 128
    if kind == "TQ2_0":  # levels -1, 0 and 1: of two bits, both are never set
        data &= ~((data & data >> 1 & 0x55) << 1)
    if kind == "NVFP4":  # a scale of eight bits for each of four parts
        data[:, :4] = np.asarray(scale, ml_dtypes.float8_e4m3fn).view(np.uint8)
        return data
    at = SCALE_AT.get(kind, 0)
    data[:, at : at + 2] = _bytes_of(scale)
    if kind in MINIMA:
        data[:, at + 2 : at + 4] = _bytes_of(scale * MINIMA[kind])
    return data


def _bytes_of(value: float) -> np.ndarray:
    """Return the two bytes of a float16."""
    return np.frombuffer(np.float16(value).tobytes(), np.uint8)


def add_sizes(
    writer: gguf.GGUFWriter,
    shape: Sizes,
    hidden: int,
    context: int = CONTEXT,
    norm_eps: float = 1e-5,
) -> None:
    """Add the metadata that every architecture has; `hidden` is the feed-forward width."""
    writer.add_context_length(context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_layer_norm_rms_eps(norm_eps)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_vocab_size(shape.vocabulary)


def _add_tokenizer(writer: gguf.GGUFWriter, vocabulary: int) -> None:
    """Add a byte-level tokenizer of exactly `vocabulary` tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    least, most = 1 + len(letters), 1 + sum(len(letters) ** count for count in (1, 2, 3))
    if not least <= vocabulary <= most:
        raise InputError(f"vocabulary={vocabulary}: must be from {least} to {most} tokens")
    texts = chain(product(letters, repeat=2), product(letters, repeat=3))
    merged = [("".join(text[:-1]), text[-1]) for text in islice(texts, vocabulary - least)]
    tokens = ["<eos>", *letters, *map("".join, merged)]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([control] + [normal] * (vocabulary - 1))
    writer.add_token_merges([f"{left} {right}" for left, right in merged])
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)
