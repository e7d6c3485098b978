from __future__ import annotations

import dataclasses
import errno
import gc
import mmap
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from draws import normal
from suffice.backends.cpu.linear import native_linear
from suffice.backends.cpu.packing import pack
from suffice.decoder import pages
from suffice.quant import QUANTS, PackedLinear


def packed(rows: int, columns: int, quant: str) -> PackedLinear:
    return pack(QUANTS.build(quant), normal(rows, columns), None, np.empty)


@pytest.mark.parametrize(
    "quant", ["int8", "none:dtype=bfloat16", "none:dtype=float32", "rtn:bits=4"]
)
def test_gathered_weights_are_the_same_one_after_the_other(quant: str) -> None:
    weights: dict[str, PackedLinear | np.ndarray] = {
        "embed": packed(3200, 1024, quant),
        "norm": normal(1024),
        "layers.0.q": packed(20, 36 if quant != "rtn:bits=4" else 64, quant),
    }
    embed = weights["embed"]
    assert isinstance(embed, PackedLinear)
    weights["head"] = dataclasses.replace(embed, data=embed.data.copy())
    before = dict(weights)
    pages.to_huge_pages(weights)
    assert list(weights) == list(before)
    assert weights["norm"] is before["norm"]
    end = None
    x, y = normal(3, 1024), [np.empty((3, 3200), np.float32) for _ in range(2)]
    for name, each in weights.items():
        if not isinstance(each, PackedLinear):
            continue
        old = before[name]
        assert isinstance(old, PackedLinear)
        assert type(each) is type(old)
        assert np.array_equal(each.data, old.data)
        at = each.data.ctypes.data
        assert at % pages.LINE == 0
        assert end is None or 0 <= at - end < pages.LINE
        end = at + each.data.nbytes
        if each.columns == 1024:
            for weight, to in zip((old, each), y, strict=True):
                native_linear(weight)(x, to)
            assert np.array_equal(*y)


def test_weights_that_fill_no_page_stay() -> None:
    weights: dict[str, PackedLinear | np.ndarray] = {"q": packed(64, 64, "int8")}
    before = weights["q"]
    pages.to_huge_pages(weights)
    assert weights["q"] is before


def test_arrays_lie_one_after_the_other_until_a_mapping_is_full() -> None:
    """Each begins a line of the cache, in the type asked for; the first begins a huge page."""
    allocate = pages.HugePages()
    shapes = [(3, 5), (1 << 20,), (20 << 20,), (7,), (30 << 20,)]
    kinds = [np.float32, np.int8, ml_dtypes.bfloat16, np.uint8, np.int8]
    arrays = [allocate(s, np.dtype(k)) for s, k in zip(shapes, kinds, strict=True)]
    starts = [array.ctypes.data for array in arrays]
    assert [(a.shape, a.dtype.type) for a in arrays] == list(zip(shapes, kinds, strict=True))
    assert starts[0] % pages.HUGE == 0 and all(start % pages.LINE == 0 for start in starts)
    ends = [start + array.nbytes for start, array in zip(starts, arrays, strict=True)]
    assert all(0 <= b - a < pages.LINE for a, b in zip(ends[:3], starts[1:4], strict=True))
    assert starts[4] % pages.HUGE == 0  # more than is left
    for number, array in enumerate(arrays):
        array[...] = number
    assert all((array == number).all() for number, array in enumerate(arrays))


def test_an_array_outlives_what_made_it() -> None:
    array = pages.HugePages()((1000,), np.dtype(np.int8))
    array[...] = 7
    gc.collect()
    assert (array == 7).all()


def test_packing_takes_no_second_copy() -> None:
    """What packs writes where the weight stays; only a row block is held more."""
    ran = subprocess.run(
        [sys.executable, "-c", PACKING], check=True, capture_output=True, text=True
    )
    int8, none = map(int, ran.stdout.split())
    assert int8 < (32 << 20) + (24 << 20)  # the packed weight, and little
    assert none < (64 << 20) + (24 << 20)


PACKING = """
import numpy as np
from suffice.backends.cpu.packing import pack
from suffice.decoder.pages import HugePages
from suffice.quant import QUANTS
def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))
weight = np.zeros((1 << 13, 1 << 12), np.float16)
weight[:, ::7] = 3
for name in ("int8", "none"):
    pack(QUANTS.build(name), weight[:16], None, HugePages())
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak is what is held now
    before = peak()
    packed = pack(QUANTS.build(name), weight, None, HugePages())
    print(peak() - before)
    del packed
"""


def test_a_system_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(mmap.mmap):
        def madvise(self, *args: int) -> None:
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(pages.mmap, "mmap", Refusing)
    array = pages.HugePages()((1 << 20,), np.dtype(np.float32))
    array[...] = 1
    assert array.base is None


FREEING = """
import sys
from suffice.decoder.pages import trim_heap
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
for size in range(2, 24):  # each that is freed would raise the threshold
    bytes([1]) * (size << 20)
pairs = [(bytes([1]) * (2 << 20), bytes([1]) * (64 << 10)) for _ in range(32)]
small, full = [small for _, small in pairs], resident()
del pairs
if sys.argv[1] == "returned":
    trim_heap()
print(full - resident())
"""


def test_what_is_freed_goes_back() -> None:
    """64 MiB between small blocks that stay; the C library alone would keep them."""

    def given_back(how: str) -> int:
        ran = subprocess.run(
            [sys.executable, "-c", FREEING, how], check=True, capture_output=True, text=True
        )
        return int(ran.stdout)

    assert given_back("returned") > 60 << 20
    assert given_back("kept") < 8 << 20
