"""Tests of what reads quantized folders: packing by hand, and the settings that choose a reader."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quantized_folders import PROGRAMS
from suffice.checkpoints.formats.hf_awq import AWQ
from suffice.checkpoints.formats.hf_compressed import Compressed, Integers
from suffice.checkpoints.formats.hf_float8 import Float8
from suffice.checkpoints.formats.hf_gptq import GPTQ
from suffice.checkpoints.formats.hf_parts import Parts, Reader
from suffice.checkpoints.formats.hf_readers import reader_of
from suffice.checkpoints.stored_file import unpack_words
from suffice.errors import InputError
from suffice.native import core


def test_codes_of_3_bits_cross_words() -> None:
    # codes 1, 2, ..., 7, 0, 1, ...: code 10 has two bits in word 0 and one in word 1
    codes = [(i + 1) % 8 for i in range(32)]
    number = sum(code << 3 * i for i, code in enumerate(codes))
    words = np.array([[number >> 32 * i & 0xFFFFFFFF for i in range(3)]], np.uint32)
    assert unpack_words(words.view(np.int32), 3).tolist() == [codes]


@pytest.mark.parametrize(
    ("bits", "codes"),
    [
        (2, [0, 2, 3, 1, 2, 0, 1, 1, 3, 2, 3, 2, 1, 0, 2, 3]),
        (4, [1, 2, 15, 0, 8, 7, 3, 12]),
        (8, [255, 0, 128, 7]),
    ],
)
def test_the_first_code_has_the_lowest_bits(bits: int, codes: list[int]) -> None:
    word = sum(code << bits * i for i, code in enumerate(codes))
    words = np.array([[word], [0]], np.uint32).view(np.int32)
    assert unpack_words(words, bits).tolist() == [codes, [0] * len(codes)]


def test_codes_across_rows_have_places() -> None:
    word = sum(code << 4 * i for i, code in enumerate([10, 11, 12, 13, 14, 15, 1, 2]))
    words = np.array([[word, 0], [0, word]], np.uint32).view(np.int32)
    found = unpack_words(words, 4, (0, 4, 1, 5, 2, 6, 3, 7))
    assert found[:8].tolist() == [[c, 0] for c in (10, 14, 11, 15, 12, 1, 13, 2)]
    assert found[8:].tolist() == [[0, c] for c in (10, 14, 11, 15, 12, 1, 13, 2)]


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize(("rows", "count"), [(1, 3), (16, 6), (17, 9), (50, 33)])
def test_words_of_any_strides(bits: int, rows: int, count: int) -> None:
    words = np.random.default_rng(0).integers(-(2**31), 2**31, (count, rows), dtype=np.int32).T
    stream = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1, bitorder="little")
    codes = stream.reshape(rows, -1, bits) @ (1 << np.arange(bits))
    assert np.array_equal(unpack_words(words, bits), codes)
    assert np.array_equal(unpack_words(np.ascontiguousarray(words), bits), codes)


def test_what_cannot_be_unpacked() -> None:
    words, out = np.zeros((2, 2), np.int32), np.empty(32, np.uint8)
    with pytest.raises(ValueError, match="codes of 2, 3, 4 or 8 bits, not 5"):
        core.unpack_words(words, 5, [], out)
    with pytest.raises(ValueError, match="the words have no whole codes"):
        core.unpack_words(words, 3, [], out)
    with pytest.raises(ValueError, match="out has 31 bytes; 32 expected"):
        core.unpack_words(words, 4, [], out[:31])
    with pytest.raises(ValueError, match="a place for each code of a word"):
        core.unpack_words(words, 4, [0], out)
    with pytest.raises(ValueError, match="there is no place 8"):
        core.unpack_words(words, 4, [8] * 8, out)


@pytest.mark.parametrize(
    ("said", "reader"),
    [
        (PROGRAMS["gptq-3"].said, GPTQ(3, 32)),
        (PROGRAMS["gptq-row"].said, GPTQ(4, None)),
        (PROGRAMS["gptq-v2"].said, GPTQ(4, 32, shift=0)),
        (PROGRAMS["gptq-4"].said | {"dynamic": {"-:.*": {}}}, GPTQ(4, 32, overrides=True)),
        (PROGRAMS["awq"].said, AWQ(32)),
        (
            {"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "version": "GEMM"},
            AWQ(64),
        ),
        (PROGRAMS["compressed-4"].said, Compressed((Integers(4, 32),))),
        (PROGRAMS["compressed-bytes"].said, Compressed((Integers(8, None),))),
        (PROGRAMS["compressed-float8"].said, Compressed((), Float8(None))),
        (PROGRAMS["compressed-float8-blocks"].said, Compressed((), Float8((128, 128)))),
        (
            {
                "format": "pack-quantized",
                "config_groups": {
                    "a": {"weights": {"num_bits": 4, "group_size": 128, "strategy": "group"}},
                    "b": {"weights": {"num_bits": 8, "type": "float", "strategy": "tensor"}},
                    "c": {"weights": None},
                },
            },
            Compressed((Integers(4, 128),), Float8(None)),
        ),
        (PROGRAMS["fp8-tensor"].said, Float8(None)),
        (PROGRAMS["fp8-blocks"].said, Float8((128, 128))),
    ],
)
def test_settings_choose_the_reader(said: dict[str, Any], reader: Reader) -> None:
    assert reader_of({"quantization_config": said}, "folder") == reader
    assert reader_of({"compression_config": said}, "folder") == reader


def test_floats_in_blocks_of_several_sizes_are_refused() -> None:
    floats = {"num_bits": 8, "type": "float"}
    groups = {
        "a": {"weights": {**floats, "strategy": "block", "block_structure": [128, 128]}},
        "b": {"weights": {**floats, "strategy": "channel"}},
    }
    with pytest.raises(InputError) as caught:
        reader_of({"quantization_config": {"config_groups": groups}}, "folder")
    assert str(caught.value) == (
        "folder: compressed-tensors: 8-bit floats with scales for several sizes of blocks are not "
        "supported"
    )


class Stored:
    """Tensors of one layer, in memory."""

    where = "folder"

    def __init__(self, tensors: dict[str, np.ndarray]) -> None:
        self._tensors = tensors
        names = {"int32": "I32", "int64": "I64", "float32": "F32", "uint8": "F8_E4M3"}
        self.types = {name: names[each.dtype.name] for name, each in tensors.items()}

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def bytes(self, name: str) -> int:
        return self._tensors[name].nbytes

    def load(self, name: str) -> np.ndarray:
        return self._tensors[name]


@pytest.mark.parametrize(("groups", "group"), [(2, 32), (1, 64)])
def test_of_several_schemes_a_layer_has_the_one_that_its_scales_fit(
    groups: int, group: int
) -> None:
    stored = Stored(
        {
            "weight_packed": np.zeros((16, 8), np.int32),
            "weight_shape": np.array([16, 64]),
            "weight_scale": np.ones((16, groups), np.float32),
        }
    )
    parts = Parts(stored, "layer", {name: name for name in stored.types})
    for schemes in ((Integers(4, None), Integers(4, 32)), (Integers(4, 32), Integers(4, None))):
        assert Compressed(schemes).read(parts).layout.group == group


def test_scales_of_blocks_that_are_not_square() -> None:
    scale = np.float32([[1, 2], [3, 4]])  # for 32 rows and 128 columns each
    stored = Stored({"weight": np.zeros((64, 256), np.uint8), "weight_scale_inv": scale})
    found = Float8((32, 128)).read(Parts(stored, "layer", {name: name for name in stored.types}))
    assert np.array_equal(found.scales, np.repeat(scale, 32, 0))
