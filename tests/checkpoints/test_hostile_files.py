"""Damaged and hostile files of weights: one line each, and little memory.

Tests of gguf_header.py, stored_tensors.py and the checks of gguf_model.py and hf_folder.py.
"""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf_files
import json_mutations
import mutations
import tiny
from gguf_files import entry, header, llama_keys, llama_tensors, text, typed
from suffice.checkpoints.open import open_checkpoint
from suffice.errors import InputError

MOST_BYTES = 8 << 20  # that a refusal may take
MUTATIONS = 300
HUGE = 2**60


def refusal(model: Path) -> str:
    """Return the one line that a model is refused with, after few bytes of memory."""
    tracemalloc.start()
    try:
        with pytest.raises(InputError) as caught:
            list(open_checkpoint(model).tensors())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert "\n" not in message and len(message) < 1000
    assert peak < MOST_BYTES
    return message


def array(kind: int, count: int, entries: bytes = b"") -> bytes:
    return struct.pack("<IIQ", gguf_files.ARRAY, kind, count) + entries


def nested(depth: int) -> bytes:
    inner = struct.pack("<IQ", gguf_files.ARRAY, 1) * depth
    return struct.pack("<I", gguf_files.ARRAY) + inner + struct.pack("<IQI", 4, 1, 7)


def one_key(value: bytes, key: str = "k") -> bytes:
    return header([text(key) + value], [])


def one_tensor(*entries: bytes, keys: tuple[bytes, ...] = (), data: int = 4096) -> bytes:
    return header(keys, entries) + bytes(data)


ALIGN = text("general.alignment")
BLOCK = entry("x", [2, 32], 8, 0)  # 68 bytes of Q8_0

HEADERS: dict[str, tuple[bytes, str]] = {
    "nested arrays": (one_key(nested(5000)), "the key 'k' holds an array of arrays"),
    "a long array": (one_key(array(4, 1 << 21)), "its header is not readable"),
    "too long an array": (one_key(array(0, HUGE)), "its arrays have more than 4194304 entries"),
    "an array of 2^64 texts": (one_key(array(8, 2**64 - 1)), "more than 4194304 entries"),
    "texts that end early": (one_key(array(8, 1000, text("a") * 9)), "its header is not readable"),
    "an unknown type": (one_key(struct.pack("<I", 13)), "of 'k' has the unknown type 13"),
    "an unknown type in an array": (one_key(array(99, 3)), "of 'k' has the unknown type 99"),
    "a text of 2^60 bytes": (one_key(struct.pack("<IQ", 8, HUGE)), "its header is not readable"),
    "a text of 2^64 - 1 bytes": (
        one_key(struct.pack("<IQ", 8, 2**64 - 1)),
        "its header is not readable",
    ),
    "a key that is no UTF-8": (header([text(b"\xff\xfe")], []), "its header is not readable"),
    "a text that is no UTF-8": (
        one_key(struct.pack("<I", 8) + text(b"\xc3(")),
        "its header is not readable",
    ),
    "texts that are no UTF-8": (
        one_key(array(8, 2, text("a") + text(b"\xff"))),
        "its header is not readable",
    ),
    "a key twice": (header([text("k") + typed(1)] * 2, []), "the key 'k' occurs twice"),
    "2^60 keys": (b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE), "at most 65536"),
    "2^60 tensors": (b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0), "at most 65536"),
    "more keys than bytes": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 60_000) + bytes(99),
        "its header is not readable",
    ),
    "a tensor twice": (one_tensor(BLOCK, BLOCK), "the tensor 'x' occurs twice"),
    "a long name": (
        one_tensor(entry("n\n" * 5000, [2, 2**60], 8, 0)),
        "has no whole blocks",
    ),
    "no dimension": (one_tensor(entry("x", [], 8, 0)), "has 0 dimensions"),
    "2^32 - 1 dimensions": (
        one_tensor(text("x") + struct.pack("<I", 2**32 - 1)),
        "has 4294967295 dimensions",
    ),
    "a dimension of 0": (one_tensor(entry("x", [0, 32], 8, 0)), "has no whole blocks"),
    "a dimension of 2^60": (one_tensor(entry("x", [HUGE, 32], 8, 0)), "has no whole blocks"),
    "sizes that overflow": (
        one_tensor(entry("x", [2**31 - 1] * 3 + [2**30], 8, 0)),
        "is cut short: tensor 'x' ends at byte",
    ),
    "half a block": (one_tensor(entry("x", [2, 33], 8, 0)), "has no whole blocks"),
    "an offset of 2^63": (one_tensor(entry("x", [2, 32], 8, 2**63)), "is cut short: tensor 'x'"),
    "an offset that overflows": (
        one_tensor(entry("x", [2, 32], 8, 2**64 - 32)),
        "is cut short: tensor 'x'",
    ),
    "an offset in between": (one_tensor(entry("x", [2, 32], 8, 1)), "starts at byte 1"),
    "tensors that overlap": (
        one_tensor(BLOCK, entry("y", [2, 32], 8, 64)),
        "the tensors 'x' and 'y' overlap",
    ),
    "a type that is not known": (
        one_tensor(entry("x", [2, 32], 77, 0)),
        "unsupported ggml type 77",
    ),
    "an alignment of 0": (
        one_tensor(BLOCK, keys=(ALIGN + typed(0),)),
        "'general.alignment' = 0 must be a power of two",
    ),
    "an alignment of 2^40": (
        one_tensor(BLOCK, keys=(ALIGN + struct.pack("<IQ", gguf_files.UINT64, 2**40),)),
        "'general.alignment' = 1099511627776 must be a power of two",
    ),
    "an alignment that is a text": (
        one_tensor(BLOCK, keys=(ALIGN + typed("32"),)),
        "'general.alignment' = '32' must be a power of two",
    ),
}


@pytest.mark.parametrize("case", list(HEADERS))
def test_headers_of_gguf_files(case: str, tmp_path: Path) -> None:
    data, said = HEADERS[case]
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    assert said in refusal(path)


def test_long_arrays_cost_their_entries_and_no_more(tmp_path: Path) -> None:
    """Arrays may be as long together as one may be alone."""
    lines = [text(f"k{i}") + array(0, 1 << 20) + bytes(1 << 20) for i in range(5)]
    path = tmp_path / "x.gguf"
    path.write_bytes(header(lines, []))
    with pytest.raises(InputError, match="its arrays have more than 4194304 entries"):
        open_checkpoint(path)


MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "a million layers": (
        {"llama.block_count": 10**6},
        "'llama.block_count' = 1000000 layers, but only 20 weights are stored",
    ),
    "layers that are a text": ({"llama.block_count": "2"}, "= '2' must be a whole number"),
    "layers that are true": (
        {"llama.block_count": struct.pack("<I?", 7, True)},
        "= True must be a whole number",
    ),
    "no layers": ({"llama.block_count": 0}, "= 0 must be a whole number of at least 1"),
    "heads for each layer": (
        {"llama.attention.head_count": array(4, 2, struct.pack("<II", 2, 4))},
        "= [2, 4] must be a whole number",
    ),
    "an epsilon that is a text": (
        {"llama.attention.layer_norm_rms_epsilon": "small"},
        "= 'small' must be a number",
    ),
    "an epsilon that is no number": (
        {"llama.attention.layer_norm_rms_epsilon": float("nan")},
        "'rms_norm_eps' = nan must be a finite number",
    ),
    "a width of 2^63": (
        {"llama.embedding_length": struct.pack("<IQ", gguf_files.UINT64, 2**63)},
        "must be a whole number",
    ),
    "an architecture that is a list": (
        {"general.architecture": ["llama"]},
        "unknown GGUF architecture '['llama']'",
    ),
    "an architecture of two lines": (
        {"general.architecture": "lla\nma"},
        "unknown GGUF architecture 'lla\\nma'",
    ),
    "a part of a model": ({"split.count": "3"}, "is one of 3 parts of a split GGUF file"),
    "a scaling that is a list": (
        {"llama.rope.scaling.type": ["yarn"]},
        "unknown GGUF rope.scaling.type",
    ),
    "a factor that is a list": (
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": ["2"]},
        "= ['2'] must be a number",
    ),
    "another size of vocabulary": (
        {"tokenizer.ggml.tokens": ["a", "b", "c"]},
        "its vocabulary has 3 tokens, but its embedding has 4 rows",
    ),
}


@pytest.mark.parametrize("case", list(MODELS))
def test_metadata_of_gguf_models(case: str, tmp_path: Path) -> None:
    changes, said = MODELS[case]
    path = tmp_path / "x.gguf"
    gguf_files.write(path, llama_keys(), llama_tensors())
    list(open_checkpoint(path).tensors())  # the model without the change
    gguf_files.write(path, llama_keys(**changes), llama_tensors())
    assert said in refusal(path)


def safetensors(header: str | bytes, data: int = 64, length: int | None = None) -> bytes:
    found = header.encode() if isinstance(header, str) else header
    size = len(found) if length is None else length
    return struct.pack("<Q", size % 2**64) + found + bytes(data)


def table(**changes: Any) -> str:
    entry = {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]} | changes
    return json.dumps({"x": entry})


SAFETENSORS: dict[str, tuple[bytes, str]] = {
    "nested lists": (safetensors("[" * 5000 + "]" * 5000), "nested too deeply"),
    "nested objects": (safetensors('{"a":' * 5000 + "1" + "}" * 5000), "nested too deeply"),
    "a list": (safetensors("[]"), "its header is no JSON object"),
    "a number": (safetensors("12"), "its header is no JSON object"),
    "no JSON": (safetensors("{]"), "Expecting property name"),
    "no UTF-8": (safetensors(b'{"\xff": 1}'), "can't decode byte"),
    "UTF-16": (safetensors(table().encode("utf-16")), "can't decode byte"),
    "no header": (safetensors("", 0), "its header of 0 bytes does not fit"),
    "a header of 2^63 bytes": (safetensors(table(), length=2**63), "does not fit"),
    "a header of 2^64 - 1 bytes": (safetensors(table(), length=-1), "does not fit"),
    "a list for a tensor": (safetensors('{"x": [1, 2]}'), "lacks a type, a shape or an offset"),
    "a text for a shape": (safetensors(table(shape="4x4")), "lacks a type, a shape or an offset"),
    "a nested shape": (safetensors(table(shape=[[4], 4])), "lacks a type, a shape or an offset"),
    "a shape of truths": (safetensors(table(shape=[True, 16])), "lacks a type, a shape"),
    "a shape of fractions": (safetensors(table(shape=[4.0, 4])), "lacks a type, a shape"),
    "a type that is a list": (safetensors(table(dtype=["F32"])), "lacks a type, a shape"),
    "a negative size": (safetensors(table(shape=[-4, -4])), "lacks a type, a shape"),
    "a size of 2^60": (safetensors(table(shape=[HUGE, 4])), "its shape needs"),
    "sizes that overflow": (safetensors(table(shape=[2**32, 2**32])), "its shape needs"),
    "a thousand dimensions": (safetensors(table(shape=[1] * 1000)), "lacks a type, a shape"),
    "a negative offset": (safetensors(table(data_offsets=[-64, 0])), "lacks a type, a shape"),
    "one offset": (safetensors(table(data_offsets=[0])), "lacks a type, a shape"),
    "offsets in reverse": (safetensors(table(data_offsets=[64, 0])), "lies at bytes 64..0 of 64"),
    "an offset of 2^60": (safetensors(table(data_offsets=[0, HUGE])), "lies at bytes 0.."),
    "another type's size": (safetensors(table(dtype="F16")), "has 64 bytes; its shape needs 32"),
    "a name twice": (safetensors(table()[:-1] + "," + table()[1:]), "'x' occurs twice"),
    "bytes of no tensor": (safetensors(table(), 80), "its tensors have 64 bytes, the file 80"),
    "tensors that overlap": (
        safetensors(json.dumps({n: json.loads(table())["x"] for n in "xy"})),
        "'y' starts at byte 0, not where the last one ends",
    ),
    "a gap": (
        safetensors(table(shape=[3, 4], data_offsets=[16, 64])),
        "'x' starts at byte 16, not where the last one ends",
    ),
    "metadata of numbers": (
        safetensors('{"__metadata__": {"a": 1}}', 0),
        "its '__metadata__' is not a map of texts",
    ),
    "metadata that is a list": (safetensors('{"__metadata__": []}', 0), "is not a map of texts"),
    "a number that is none": (safetensors('{"x": NaN}'), "NaN is not a number"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("folder"), "llama", num_hidden_layers=1)


@pytest.mark.parametrize("case", list(SAFETENSORS))
def test_headers_of_safetensors(case: str, folder: Path, tmp_path: Path) -> None:
    data, said = SAFETENSORS[case]
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    message = refusal(tmp_path)
    assert message.startswith(f"{path} is not a valid safetensors file: ") and said in message


def test_layers_of_a_folder_are_bounded_by_its_weights(folder: Path, tmp_path: Path) -> None:
    raw = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": 10**6}
    raw.pop("layer_types", None)
    (tmp_path / "config.json").write_text(json.dumps(raw))
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    assert refusal(tmp_path) == (
        f"{tmp_path / 'config.json'}: 'num_hidden_layers' = 1000000 layers, "
        "but only 12 weights are stored"
    )


SHARDS = [
    "../secret.safetensors",
    "/etc/passwd",
    "a/b.safetensors",
    "a\\b.safetensors",
    "..",
    "",
    "x.bin",
    "x\0.safetensors",
    "\ud800.safetensors",
    "x\n.safetensors",
    None,
    3,
    ["x.safetensors"],
    {"a": 1},
]


@pytest.mark.parametrize("file", SHARDS, ids=repr)
def test_shards_are_files_of_the_folder(file: object, folder: Path, tmp_path: Path) -> None:
    inner = tmp_path / "model"
    inner.mkdir()
    (inner / "config.json").write_text((folder / "config.json").read_text())
    index = inner / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": file}}))
    (tmp_path / "secret.safetensors").write_bytes(safetensors(table()))
    message = refusal(inner)
    assert message.startswith(f"{index}: weight 'x' is in ")
    assert message.endswith("must be the name of a .safetensors file of this folder")


@pytest.mark.parametrize("content", ["[" * 5000, '{"a":' * 5000, "[]", "\udcff", ""])
def test_json_of_a_folder(content: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content.encode(errors="surrogateescape"))
    assert refusal(tmp_path).startswith(f"{path} ")


Damage = Iterator[tuple[str, Path]]


def gguf_mutants(folder: Path, count: int) -> Damage:
    """Yield damaged models in a GGUF file."""
    keys = llama_keys(**{"tokenizer.ggml.tokens": list("abcd"), "general.alignment": 32})
    path = gguf_files.write(folder / "x.gguf", keys, llama_tensors())
    data = path.read_bytes()
    numbers, names = gguf_files.spots(data)
    extra = {"numbers": mutations.numbers_at(numbers), "names": mutations.names_at(names)}
    for name, damaged in mutations.mutants(data, count, extra=extra):
        path.write_bytes(damaged)
        yield name, path


def folder_mutants(folder: Path, count: int) -> Damage:
    """Yield damaged models in a folder: bytes of the weights, or values of their header."""
    tiny.make(folder, "llama", num_hidden_layers=1)
    path = folder / "model.safetensors"
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    bytes_damaged = mutations.mutants(data, count // 2)
    for name, damaged in bytes_damaged:
        path.write_bytes(damaged)
        yield name, folder
    header = json.loads(data[8:end])
    for seed in range(count - count // 2):
        head = json_mutations.mutated(header, seed).encode(errors="surrogatepass")
        path.write_bytes(struct.pack("<Q", len(head)) + head + data[end:])
        yield f"header {seed}", folder


@pytest.mark.parametrize("mutants", [gguf_mutants, folder_mutants])
def test_mutations_are_refused_in_one_line(
    mutants: Callable[[Path, int], Damage], tmp_path: Path
) -> None:
    """Whatever is changed, a model is read or refused by `InputError`; any other error is seen."""
    said = set()
    for name, model in mutants(tmp_path, MUTATIONS):
        try:
            for _, weight in open_checkpoint(model).tensors():
                assert np.isfinite(weight.astype(np.float32)).all(), name
        except InputError as error:
            message = str(error)
            assert "\n" not in message and len(message) < 2000, name
            said.add(message)
    assert len(said) > MUTATIONS / 6  # they reach many checks
