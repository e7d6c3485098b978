"""Tests of the layouts of codes: their sizes, and those that do not exist."""

from __future__ import annotations

from typing import Any

import pytest

from suffice.errors import InputError
from suffice.quant.code_layout import CodeLayout


@pytest.mark.parametrize(
    ("layout", "groups", "header"),
    [
        (CodeLayout(4, 32), 2, 64),
        (CodeLayout(4, 32, "bfloat16"), 2, 64),
        (CodeLayout(4, 32, minima="float16"), 2, 128),
        (CodeLayout(4, 128, minima="zero"), 4, 192),
        (CodeLayout(8, 64, "float32"), 2, 128),
        (CodeLayout(4, 64, "float32", "zero"), 4, 320),
        (CodeLayout(4, 32, "power"), 4, 64),
        (CodeLayout(6, 16, "nested"), 16, 320),
        (CodeLayout(4, 32, "nested", "nested"), 8, 320),
    ],
)
def test_headers(layout: CodeLayout, groups: int, header: int) -> None:
    assert (layout.groups_in_span, layout.header_bytes) == (groups, header)
    assert layout.span == groups * layout.group
    units = layout.span // 32
    assert layout.panel_bytes(layout.span) == header + units * 64 * layout.bits
    # one more column: another header, and a unit
    assert layout.panel_bytes(layout.span + 1) == 2 * header + (units + 1) * 64 * layout.bits


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((7, 32), "codes of 7 bits cannot be stored; allowed: 2..6, 8"),
        ((4, 48), "group=48: must be a multiple of 32"),
        ((4, 32, "float32", "float16"), "float32 scales go with zero points or no minima"),
        ((4, 32, "power", "zero"), "power scales, which are bytes, go without minima"),
        ((4, 32, "float16", "nested"), "nested minima go with nested scales"),
        ((4, 32, "float64"), "no codes with float64 scales and none minima"),
    ],
)
def test_layouts_that_do_not_exist(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError) as caught:
        CodeLayout(*arguments)
    assert str(caught.value) == message
