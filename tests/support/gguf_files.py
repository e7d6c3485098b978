"""GGUF files written value by value: valid ones, and any that a writer would refuse to make."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from mutations import Spot

ALIGNMENT = 32
UINT32, FLOAT32, STRING, ARRAY, UINT64 = 4, 6, 8, 9, 10
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of scalars


def text(value: str | bytes) -> bytes:
    """Return a string after its length."""
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def typed(value: Any) -> bytes:
    """Return a metadata value after its type, both from Python's type; bytes are put in as is."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return struct.pack("<I", STRING) + text(value)
    if isinstance(value, float):
        return struct.pack("<If", FLOAT32, value)
    if isinstance(value, int):
        return struct.pack("<II", UINT32, value)
    if all(isinstance(each, int) for each in value):
        kind, entries = UINT32, struct.pack(f"<{len(value)}I", *value)
    else:
        kind, entries = STRING, b"".join(text(each) for each in value)
    return struct.pack("<IIQ", ARRAY, kind, len(value)) + entries


def entry(name: str | bytes, shape: Sequence[int], kind: int, offset: int) -> bytes:
    """Return a line of the table of tensors, for a shape [N, K]."""
    sizes = struct.pack(f"<{len(shape)}Q", *reversed(shape))
    return text(name) + struct.pack("<I", len(shape)) + sizes + struct.pack("<IQ", kind, offset)


def header(keys: Sequence[bytes], entries: Sequence[bytes], version: int = 3) -> bytes:
    """Return all before the data, for lines as `text(key) + typed(value)` and `entry` make them."""
    start = b"GGUF" + struct.pack("<IQQ", version, len(entries), len(keys))
    whole = start + b"".join(keys) + b"".join(entries)
    return whole + bytes(-len(whole) % ALIGNMENT)


def write(path: Path, keys: Mapping[str, Any], tensors: Mapping[str, Any]) -> Path:
    """Write a file of float32 arrays, and of pairs of stored rows [N, bytes] and their ggml type.

    Bytes among `keys` are values with their type.
    """
    entries, data = [], b""
    for name, tensor in tensors.items():
        stored, kind = tensor if isinstance(tensor, tuple) else (tensor, "F32")
        number = gguf.GGMLQuantizationType[kind]
        values, size = gguf.GGML_QUANT_SIZES[number]
        stored = np.ascontiguousarray(stored)
        shape = list(stored.shape)
        if isinstance(tensor, tuple):
            shape[-1] = shape[-1] // size * values
        entries.append(entry(name, shape, number, len(data)))
        data += stored.tobytes() + bytes(-stored.nbytes % ALIGNMENT)
    lines = [text(key) + typed(value) for key, value in keys.items()]
    path.write_bytes(header(lines, entries) + data)
    return path


def write_random(path: Path, keys: Mapping[str, Any], shapes: Mapping[str, Any]) -> Path:
    """Write a file of random bytes, for tensors given by a shape [N, K] and a ggml type.

    Bytes are below 64, so that scales are finite. The file may be larger than memory.
    """
    tile = np.random.default_rng(0).integers(0, 64, 1 << 20, np.uint8).tobytes()
    entries, sizes, at = [], [], 0
    for name, (shape, kind) in shapes.items():
        number = gguf.GGMLQuantizationType[kind]
        values, size = gguf.GGML_QUANT_SIZES[number]
        entries.append(entry(name, shape, number, at))
        sizes.append(-(-math.prod(shape) // values * size // ALIGNMENT) * ALIGNMENT)
        at += sizes[-1]
    with path.open("wb") as file:
        file.write(header([text(key) + typed(value) for key, value in keys.items()], entries))
        for size in sizes:
            for start in range(0, size, len(tile)):
                file.write(tile[: size - start])
    return path


def llama_keys(**changes: Any) -> dict[str, Any]:
    """Return the metadata of a llama with 2 layers, heads of 16 and a vocabulary of 4."""
    keys: dict[str, Any] = {
        "context_length": 64,
        "embedding_length": 32,
        "block_count": 2,
        "feed_forward_length": 32,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 1e4,
    }
    named = {f"llama.{key}": value for key, value in keys.items()}
    return {"general.architecture": "llama", **named, **changes}


def llama_tensors(kind: str = "Q8_0") -> dict[str, Any]:
    """Return the weights of that llama, matrices in a block type, from random numbers."""
    numbers = np.random.default_rng(0)

    def matrix(rows: int) -> tuple[Any, str]:
        number = gguf.GGMLQuantizationType[kind]
        values = numbers.standard_normal((rows, 32)).astype(np.float32)
        return gguf.quantize(values, number).view(np.uint8), kind

    norm = np.ones(32, np.float32)
    found: dict[str, Any] = {"token_embd.weight": matrix(4), "output_norm.weight": norm}
    rows = {"attn_q": 32, "attn_k": 16, "attn_v": 16, "attn_output": 32}
    rows |= {"ffn_gate": 32, "ffn_up": 32, "ffn_down": 32}
    for layer in range(2):
        for name in ("attn_norm", "ffn_norm"):
            found[f"blk.{layer}.{name}.weight"] = norm
        for name, count in rows.items():
            found[f"blk.{layer}.{name}.weight"] = matrix(count)
    return found


def spots(data: bytes) -> tuple[list[Spot], list[Spot]]:
    """Return where a valid file's header has numbers (lengths, types, offsets, ...) and texts."""
    numbers, names = [Spot(4, 4), Spot(8, 8), Spot(16, 8)], list[Spot]()
    at = 24

    def number(size: int) -> int:
        nonlocal at
        numbers.append(Spot(at, size))
        at += size
        return int.from_bytes(data[at - size : at], "little")

    def text() -> None:
        nonlocal at
        size = number(8)
        names.append(Spot(at, size))
        at += size

    def value(kind: int) -> None:
        nonlocal at
        if kind == STRING:
            text()
        elif kind == ARRAY:
            inner, count = number(4), number(8)
            for _ in range(count):
                value(inner)
        else:
            number(_SIZES[kind])

    tensors, keys = struct.unpack_from("<QQ", data, 8)
    for _ in range(keys):
        text()
        value(number(4))
    for _ in range(tensors):
        text()
        for _ in range(number(4)):
            number(8)
        number(4)
        number(8)
    return numbers, names
