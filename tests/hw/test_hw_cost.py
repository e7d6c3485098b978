"""Area and power: sums by hand, the fit's limits, the papers' tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from suffice.errors import InputError
from suffice_hw.checks import Check
from suffice_hw.cost import checks, sram
from suffice_hw.cost.logic import GATES, SCROOGE, Technology
from suffice_hw.cost.sram import Sram


def test_a_unit_is_the_sum_of_its_blocks() -> None:
    technology = Technology({"fp16_add": 900, "fp16_multiply": 1300}, 0.5, 1.0)
    assert technology.area_um2(SCROOGE["exponent"]) == 0.5 * 5 * 2200
    assert technology.power_mw(SCROOGE["exponent"], ghz=2, busy=0.25) == 11 * 2 * 0.25


def test_the_gates_energy_is_that_of_the_multiplier_array() -> None:
    power = 1024 * Technology.load().power_mw(SCROOGE["multiplier"], ghz=1)
    assert power == pytest.approx(1405.2, rel=0.01)


def test_the_fit_is_as_good_as_it_says() -> None:
    worst = sram.worst_error()
    assert worst["area"] < 0.55
    assert worst["read"] < 0.5
    assert worst["leakage"] < 0.2


def test_memories_grow_with_bytes_and_ports() -> None:
    small, large, wide = Sram(8192, 64), Sram(32768, 64), Sram(32768, 2048)
    assert small.area_mm2 < large.area_mm2 < wide.area_mm2
    assert small.read_pj < large.read_pj < wide.read_pj
    assert small.leakage_mw < large.leakage_mw == wide.leakage_mw


def by_name(found: list[Check], name: str) -> Check:
    (check,) = [check for check in found if name in check.what]
    return check


def test_64_bins_have_the_area_that_is_published_for_256() -> None:
    blocks = Technology.load().blocks
    assert blocks["index_counter_64"] * 0.49 == pytest.approx(0.271e6 / 32, rel=0.01)


def test_hits_and_misses_of_the_areas() -> None:
    found = checks.areas()
    hits = {check.what for check in found if check.status == "hit"}
    assert len(found) == 9
    assert {check.status for check in found} == {"hit", "known miss"}
    assert {what.split(" (")[0] for what in hits} == {
        *("KLLM Concat", "KLLM Orizuru, 16 inputs"),
        *("Scrooge multiplier + adder", "Scrooge Max & Sum"),
    }
    assert by_name(found, "ETU and VSU").ours == "3610 (-28 %)", "beyond the bar of 25 %"
    assert by_name(found, "index counter").ours == "31293 (+270 %)"


def test_dividers_alone_are_no_softmax() -> None:
    (check,) = checks.softmax()
    divider = 5851 - 2 * 783 - 2 * 1157 - 121
    assert (check.published, check.status) == ("2176000", "known miss")
    assert check.ours == f"{16 * divider * 0.49:.0f} (-99 %)"


def test_kllms_powers_do_not_add_up() -> None:
    check = by_name(
        [check for check in checks.tables() if check.group == "kllm printed totals"], "power"
    )
    assert (check.published, check.ours, check.status) == ("8.96", "8.388", "known miss")


@pytest.mark.parametrize("group", checks.GROUPS, ids=lambda group: group.__name__)
def test_published_figures(group: Callable[[], list[Check]]) -> None:
    found = group()
    assert found
    assert [check for check in found if check.status == "miss"] == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Sram(100, 64), "Sram: size_bytes=100: must be in [512, 6.71089e+07]"),
        (
            lambda: Sram(1024, 8192, 2),
            "Sram: port_bits=8192: must be at most 4096, the bits of a bank",
        ),
        (
            lambda: sram.port_for(2048, 1, 100),
            "area_mm2=100: larger than with a port of 16384 bits",
        ),
        (lambda: Technology.load().gates({"fp16_ad": 1}), "unknown block 'fp16_ad'. Did you mean"),
        (lambda: Technology.load().power_mw({}, 1.0, 2), "busy=2: must be in [0, 1]"),
        (
            lambda: Technology({"a": float("nan")}, 0.5, 1),
            "Technology: a=nan: must be a number above 0, in GE",
        ),
        (
            lambda: Technology({"a": -1}, 0.5, 1),
            "Technology: a=-1: must be a number above 0, in GE",
        ),
    ],
)
def test_bad_input_is_one_line(call: Any, message: str) -> None:
    with pytest.raises(InputError) as raised:
        call()
    assert str(raised.value).startswith(message)


def test_a_technology_with_an_unknown_key(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GATES.read_text().replace("um2_per_ge", "um_per_ge"))
    with pytest.raises(InputError, match=r"unknown key of mine.toml 'um_per_ge'"):
        Technology.load(path)
