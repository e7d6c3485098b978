from __future__ import annotations

import errno
import mmap
import subprocess
import sys

import pytest
import torch

from suffice.backends.cpu.linear import native_linear
from suffice.models import pages
from suffice.quant import QUANTS, PackedLinear


def packed(rows: int, columns: int, quant: str) -> PackedLinear:
    return QUANTS.build(quant).pack(torch.randn(rows, columns))


@pytest.mark.parametrize("quant", ["int8", "none:dtype=bfloat16", "none:dtype=float32", "kmeans"])
def test_gathered_weights_are_the_same_one_after_the_other(quant: str) -> None:
    torch.manual_seed(0)
    weights: dict[str, PackedLinear | torch.Tensor] = {
        "embed": packed(3200, 1024, quant),
        "norm": torch.randn(1024),
        "layers.0.q": packed(20, 36 if quant != "kmeans" else 64, quant),
        "head": packed(3200, 1024, quant),
    }
    before = dict(weights)
    pages.to_huge_pages(weights)
    assert list(weights) == list(before)
    assert weights["norm"] is before["norm"]
    end = None
    x, y = torch.randn(3, 1024), [torch.empty(3, 3200) for _ in range(2)]
    for name, each in weights.items():
        if not isinstance(each, PackedLinear):
            continue
        old = before[name]
        assert isinstance(old, PackedLinear)
        assert type(each) is type(old)
        assert torch.equal(each.data, old.data)
        at = each.data.data_ptr()
        assert at % pages.LINE == 0
        assert end is None or 0 <= at - end < pages.LINE
        end = at + each.data.nbytes
        if each.columns == 1024:
            for weight, to in zip((old, each), y, strict=True):
                native_linear(weight)(x, to)
            assert torch.equal(*y)


def test_weights_that_fill_no_page_stay() -> None:
    weights: dict[str, PackedLinear | torch.Tensor] = {"q": packed(64, 64, "int8")}
    before = weights["q"]
    pages.to_huge_pages(weights)
    assert weights["q"] is before


def test_a_system_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(mmap.mmap):
        def madvise(self, *args: int) -> None:
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(pages.mmap, "mmap", Refusing)
    weights: dict[str, PackedLinear | torch.Tensor] = {"q": packed(3200, 1024, "int8")}
    before = weights["q"]
    pages.to_huge_pages(weights)
    assert weights["q"] is before


FREEING = """
import sys
from suffice.models.pages import trim_heap
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
