"""Tests of kernels run under every instruction set that can run: the others are shown here."""

from __future__ import annotations

import pytest

from suffice import native


@pytest.mark.parametrize("isa", native.ISAS)
def test_a_set_is_tested(isa: str) -> None:
    if isa not in native.isas():
        pytest.skip(f"this CPU, or this build, lacks {isa}: its kernels are not tested")
    before = native.isa()
    native.use_isa(isa)
    now = native.isa()
    native.use_isa(before)
    assert now == isa
