"""Kernels of one instruction set must not replace those of another when the extension is linked.

A weak symbol is one that the linker may merge with others of its name: an inline function compiled
for AVX-512 could so be called on a CPU that lacks it.
"""

from __future__ import annotations

import shutil
import subprocess

import pytest

from suffice import _native, native

NAMESPACES = tuple(f"suffice::{isa}::" for isa in native.ISAS)


def shared(listing: str) -> list[str]:
    """Return the symbols of kernels, of what `nm -C` prints, that the linker can see."""
    found = []
    for line in listing.splitlines():
        _, _, rest = line.partition(" ") if line[:1].strip() else ("", "", line.strip())
        kind, _, name = rest.strip().partition(" ")
        if any(space in name for space in NAMESPACES) and (kind.isupper() or kind in "uvw"):
            found.append(name)
    return found


def test_kernels_are_internal_to_the_extension() -> None:
    nm = shutil.which("nm")
    if nm is None or _native.__file__ is None:
        pytest.skip("nm is not installed")
    listing = subprocess.run(
        [nm, "-C", _native.__file__], capture_output=True, text=True, check=True
    )
    names = {space for space in NAMESPACES if space in listing.stdout}
    assert "suffice::base::" in names, "the extension was stripped"
    assert shared(listing.stdout) == []


def test_a_weak_symbol_is_seen() -> None:
    listing = (
        "0000000000012345 t suffice::v4::(anonymous namespace)::linear(suffice::Linear const&)\n"
        "0000000000012346 W suffice::v4::sum_of(float)\n"
        "                 w suffice::base::rotate()\n"
        "0000000000012347 W suffice::KVCache::bytes() const\n"
    )
    assert shared(listing) == ["suffice::v4::sum_of(float)", "suffice::base::rotate()"]
