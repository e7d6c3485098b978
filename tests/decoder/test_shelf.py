"""Packed weights in memory that processes share: shelf.py, and what `engine.load` keeps there."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from suffice.decoder.pages import HUGE
from suffice.decoder.shelf import (
    Shelf,
    can_share,
    has_huge_pages,
    huge_shared_bytes,
    is_closed,
    new_memory,
)
from suffice.engine.config import Config
from suffice.engine.load import load
from suffice.engine.runner import Runner
from suffice.errors import InputError
from suffice.quant import QUANTS, PackedLinear

pytestmark = pytest.mark.skipif(not can_share(), reason="memory is shared on Linux")
PROMPT = [5, 9, 77, 3, 120, 64, 7]
# `kllm` needs a calibration of its inputs, and comes in files of `suffice quantize`.
METHODS = [name for name in QUANTS.names() if name != "kllm"]
CASES = [("llama-bias", name) for name in METHODS] + [(name, None) for name in ("opt", "gemma3")]


@pytest.fixture
def memory() -> Iterator[int]:
    found = new_memory()
    yield found
    os.close(found)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("llama"), "llama", tokenizer=True)


def logits(runner: Runner) -> np.ndarray:
    """A prompt's and three steps' logits."""
    sequence = runner.open("x", 32)
    found = [runner.prefill(sequence, PROMPT)]
    for _ in range(3):
        runner.reserve(sequence)
        found.append(runner.step([sequence], [int(found[-1].argmax())])[0])
    runner.close(sequence)
    return np.stack(found)


def arrays(weights: Any) -> list[np.ndarray]:
    """All arrays among weights, those of the parts of packed ones too."""
    found = []
    for each in weights.values():
        parts = vars(each).values() if isinstance(each, PackedLinear) else [each]
        found += [part for part in parts if isinstance(part, np.ndarray)]
    return found


@pytest.mark.parametrize(("variant", "method"), CASES)
def test_who_attaches_has_the_same_bits(
    variant: str, method: str | None, memory: int, tmp_path: Path
) -> None:
    folder = tiny.make(tmp_path, variant, tokenizer=True)
    config = Config.create(str(folder), quantization=method, threads=1)
    alone = load(config)[1]
    first = Shelf(memory)
    packed = load(config, first)[1]
    assert not is_closed(memory)
    first.close()
    assert is_closed(memory)
    for file in folder.iterdir():
        file.unlink()  # nobody needs it any more
    _, attached, tokenizer = load(config, Shelf(memory))
    for runner in (packed, attached):
        np.testing.assert_array_equal(logits(runner), logits(alone))
    assert attached.weight_bytes == alone.weight_bytes and attached.stamp == alone.stamp
    assert tokenizer.decode(tokenizer.encode("hello there")) == "hello there"
    for array in arrays(attached.decoder.weights):
        assert not array.flags.writeable
    for array in arrays(packed.decoder.weights):
        if array.nbytes > 4096:
            assert not writes(array), "the first process cannot write either"


def writes(array: np.ndarray) -> bool:
    """Whether memory can be written: the system reads a byte, the one that is there, into it."""
    address = array.__array_interface__["data"][0]
    reading, writing = os.pipe()
    os.write(writing, ctypes.string_at(address, 1))
    read = ctypes.CDLL(None, use_errno=True).read
    count = read(reading, ctypes.c_void_p(address), ctypes.c_size_t(1))
    assert count == 1 or ctypes.get_errno() == errno.EFAULT
    os.close(reading)
    os.close(writing)
    return bool(count == 1)


def test_memory_that_is_attached_cannot_be_written_or_mapped_for_it(
    llama: Path, memory: int
) -> None:
    import mmap

    config = Config.create(str(llama), threads=1)
    first = Shelf(memory)
    load(config, first)
    first.close()
    runner = load(config, Shelf(memory))[1]
    data = runner.decoder.matrix("layers.0.q").data
    assert not writes(data) and writes(data.copy())
    with pytest.raises(PermissionError):
        mmap.mmap(memory, HUGE)
    with pytest.raises(PermissionError):
        os.write(memory, b"x")
    with pytest.raises(PermissionError):
        os.ftruncate(memory, 0)


def test_who_dies_while_it_packs_leaves_the_next_one_to_pack(llama: Path, memory: int) -> None:
    config = Config.create(str(llama), threads=1)
    load(config, Shelf(memory))  # and never closes
    again = Shelf(memory)
    assert not again.attached
    runner = load(config, again)[1]
    again.close()
    assert Shelf(memory).attached
    np.testing.assert_array_equal(logits(load(config, Shelf(memory))[1]), logits(runner))


def test_drafts_find_their_weights_there_too(llama: Path, memory: int) -> None:
    config = Config.create(
        str(llama),
        threads=1,
        speculative_config="self:quantization=4bit,num_speculative_tokens=2",
    )
    first = Shelf(memory)
    load(config, first)
    first.close()
    second = Shelf(memory)
    load(config, second)
    (name,) = [name for name in second._kept if name.startswith("self")]
    draft = second._kept[name]
    assert draft.matrix("layers.0.q").dtype == "codes"
    assert not draft.matrix("layers.0.q").data.flags.writeable
    model = next(each for own, each in second._kept.items() if own != name)
    assert draft.matrix("embed") is model.decoder.matrix("embed"), "what they share exists once"


def test_options_that_do_not_suit_are_refused_by_who_attaches(llama: Path, memory: int) -> None:
    first = Shelf(memory)
    load(Config.create(str(llama), threads=1), first)
    first.close()
    with pytest.raises(InputError, match="max_model_len=999"):
        load(Config.create(str(llama), threads=1, max_model_len=999), Shelf(memory))


def test_arrays_keep_their_types_places_and_identity(memory: int) -> None:
    first = Shelf(memory)
    big = first.kept("big", lambda allocate: allocate((1000, 33), np.dtype(np.int16)))
    big[...] = np.arange(33000, dtype=np.int16).reshape(1000, 33)
    odd = np.arange(24.0).reshape(4, 6)[:, ::2]
    both = first.kept("both", lambda allocate: {"big": big, "odd": odd, "none": None, "x": 0.1})
    first.close()
    second = Shelf(memory)
    found = second.kept("both", lambda allocate: pytest.fail("it is there"))
    np.testing.assert_array_equal(found["odd"], both["odd"])
    np.testing.assert_array_equal(found["big"], big)
    assert found["big"].ctypes.data == second._kept["big"].ctypes.data, "it lies there once"
    assert found["big"].dtype == np.int16
    assert found["big"].ctypes.data % 64 == 0 and found["x"] == 0.1


CHILD = """
import os, sys
from suffice.engine.config import Config
from suffice.engine.load import load
from suffice.decoder.shelf import Shelf
runner = load(Config.create(sys.argv[2], threads=1, dtype="float32"), Shelf(int(sys.argv[1])))[1]
sequence = runner.open("x", 32)
runner.prefill(sequence, [5, 9, 77])
lines = [line.split() for line in open("/proc/self/smaps_rollup")]
print(sum(int(size) for name, size, *_ in lines if name in ("Private_Dirty:", "Private_Clean:")))
print([int(size) for name, size, *_ in lines if name == "Pss_Shmem:"][0])
"""


def test_weights_exist_once(tmp_path: Path, memory: int) -> None:
    """A second process has little memory of its own, whatever the weights' size."""
    size = {"hidden_size": 512, "intermediate_size": 4096, "num_hidden_layers": 8}
    folder = tiny.make(tmp_path, "llama", tokenizer=True, **size)
    config = Config.create(str(folder), threads=1, dtype="float32")
    first = Shelf(memory)
    runner = load(config, first)[1]
    first.close()
    weights = runner.weight_bytes >> 10
    assert weights > 150 << 10, "KiB"
    child = [sys.executable, "-c", CHILD, str(memory), str(folder)]
    ran = subprocess.run(child, pass_fds=[memory], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    own, shared = map(int, ran.stdout.split())
    assert own < 150 << 10
    assert weights / 2 * 0.9 < shared < weights / 2 * 1.1, "half of what two have mapped"


def test_shared_memory_has_huge_pages_where_the_system_can(memory: int) -> None:
    """Linux gives them on demand since 6.1, unless they are denied."""
    setting = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    version = tuple(int(part) for part in os.uname().release.split(".")[:2])
    if version < (6, 1) or not setting.exists() or "[deny]" in setting.read_text():
        pytest.skip("this system gives none on demand")
    if not has_huge_pages():
        pytest.skip("no huge page is free now")
    shelf = Shelf(memory)
    array = shelf.kept("a", lambda allocate: allocate((3 * HUGE,), np.dtype(np.uint8)))
    array[:] = 1
    shelf.close()
    assert huge_shared_bytes(shelf.kept("a", lambda allocate: array)) >= 3 * HUGE
    second = Shelf(memory).kept("a", lambda allocate: array)
    assert second.sum() == 3 * HUGE
    assert huge_shared_bytes(second) >= 3 * HUGE, "who attaches has them, too"
