"""Tests of what reads quantized folders: packing by hand, and the settings that choose a reader."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quantized_folders import PROGRAMS
from suffice.errors import InputError
from suffice.models.formats.hf_awq import AWQ
from suffice.models.formats.hf_compressed import Compressed, Integers
from suffice.models.formats.hf_float8 import Float8
from suffice.models.formats.hf_gptq import GPTQ
from suffice.models.formats.hf_parts import Reader, codes_in
from suffice.models.formats.hf_readers import reader_of


def test_codes_of_3_bits_cross_words() -> None:
    # codes 1, 2, ..., 7, 0, 1, ...: code 10 has two bits in word 0 and one in word 1
    codes = [(i + 1) % 8 for i in range(32)]
    number = sum(code << 3 * i for i, code in enumerate(codes))
    words = np.array([[number >> 32 * i & 0xFFFFFFFF for i in range(3)]], np.uint32)
    assert codes_in(words.view(np.int32), 3).tolist() == [codes]


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
    assert codes_in(words, bits).tolist() == [codes, [0] * len(codes)]


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
