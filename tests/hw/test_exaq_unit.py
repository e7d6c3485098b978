"""EXAQ's unit: cycles by hand, tables, and the softmax that the engine computes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suffice.attention import exaq as engine
from suffice.errors import InputError
from suffice_hw.exaq import checks
from suffice_hw.exaq.unit import DESIGNS, Unit, quantize, saving, softmax, tables
from suffice_hw.scrooge.design import Design


def unit(**changed: Any) -> Unit:
    return dataclasses.replace(Unit.load(), **changed)


def test_an_element_by_hand() -> None:
    assert unit(bits=0).cycles(1) == 1 + 8 + 1 + 3
    assert unit(bits=2).cycles(1) == 1 + 3 + 1 + 3
    assert unit(bits=2).cycles(100) == 800
    assert unit(bits=2, width=16).cycles(100) == 7 * 8


def test_a_pipelined_unit_saves_latency_only() -> None:
    original, quantized = (unit(bits=bits, pipelined=True) for bits in (0, 2))
    assert original.cycles(1000) - quantized.cycles(1000) == 8 + 1 - 3 - 1
    assert saving(original, quantized, 100_000) < 0.001


@pytest.mark.parametrize(("bits", "group", "size"), [(2, 4, 520), (3, 2, 144), (3, 4, 8208)])
def test_the_tables_bytes(bits: int, group: int, size: int) -> None:
    assert unit(bits=bits, group=group).table_bytes == size
    assert sum(table.nbytes for table in tables(-4.0, bits, group)) == size


@pytest.mark.parametrize(("bits", "group"), [(2, 4), (2, 1), (3, 2), (4, 2)])
def test_codes_and_softmax_are_the_engines(bits: int, group: int) -> None:
    logits = np.random.default_rng(bits).normal(0, 2, 203).astype(np.float32)
    x = logits - logits.max()
    assert quantize(x, -4.5, bits).tolist() == engine.quantize(x, -4.5, bits).tolist()
    ours = softmax(logits, -4.5, unit(bits=bits, group=group))
    theirs = engine.softmax(logits, -4.5, bits)
    assert np.abs(ours / theirs - 1).max() < 2e-3, "the tables' FP16"


def test_what_it_replaces_in_scrooge() -> None:
    design = Design.load()
    quantized = dataclasses.replace(design, softmax_bits=2)
    assert design.pipe_cycles - quantized.pipe_cycles == design.exp_cycles - 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: unit(bits=5), "unknown bits of Unit '5'."),
        (lambda: unit(bits=4, group=4), "Unit: group=4: must be in [1, 3] for bits=4"),
        (lambda: unit(width=0), "Unit: width=0: must be in [1, 256]"),
        (lambda: unit().cycles(0), "elements=0: must be at least 1"),
        (lambda: tables(0.5, 2, 4), "clip=0.5: must be below 0"),
        (lambda: softmax(np.zeros(3, np.float32), -1, unit(bits=0)), "bits=0: the unit has no"),
    ],
)
def test_bad_input_is_one_line(call: Any, message: str) -> None:
    with pytest.raises(InputError) as raised:
        call()
    assert str(raised.value).startswith(message)


def test_a_unit_with_an_unknown_key(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text((DESIGNS / "exaq.toml").read_text().replace("bits =", "bit ="))
    with pytest.raises(InputError, match=r"unknown key of mine.toml 'bit'. Did you mean 'bits'"):
        Unit.load(str(path))


@pytest.mark.parametrize("group", checks.GROUPS, ids=lambda group: group.__name__)
def test_published_figures(group: Any) -> None:
    assert [check.status for check in group()].count("miss") == 0
