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
    technology = Technology({"etu": 900, "vsu": 1300}, 0.5, 1.0)
    assert technology.area_um2(SCROOGE["etu and vsu"]) == 0.5 * 2200
    assert technology.power_mw(SCROOGE["etu and vsu"], ghz=2, busy=0.25) == 2.2 * 2 * 0.25


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
        *("Scrooge multiplier array, each", "Scrooge Max & Sum"),
        *("Scrooge ETU and VSU", "Scrooge exponent, each"),
    }
    assert by_name(found, "adder tree").ours == "17130 (-29 %)", "beyond the bar of 25 %"
    assert by_name(found, "index counter").ours == "31293 (+270 %)"


def test_dividers_alone_are_no_softmax() -> None:
    (check,) = checks.softmax()
    assert (check.published, check.status) == ("2176000", "known miss")
    assert check.ours == f"{16 * 3253 * 0.49:.0f} (-99 %)"


def test_the_whole_accelerator_is_table_iiis_but_for_softmax() -> None:
    blocks, found = Technology.load().blocks, checks.whole()
    logic = 64 * blocks["multiplier_lane_16"] + 16 * blocks["exponent"] + blocks["adder_tree_16"]
    logic += (
        blocks["max_and_sum_16"] + blocks["etu"] + blocks["vsu"] + blocks["top_level_control_16x64"]
    )
    area, power, with_softmax, _ = found
    ours, published = logic * 0.49e-6, 1.138 + 0.024 + 0.116 + 0.009 + 0.005
    assert area.ours == f"{ours:.4g} ({100 * (ours / published - 1):+.0f} %)"
    assert (area.published, area.status, power.status) == (f"{published:.4g}", "hit", "hit")
    assert with_softmax.status == "known miss" and "softmax" in with_softmax.expected
    assert with_softmax.ours.startswith(f"{ours + 16 * 3253 * 0.49e-6:.4g} ")


def test_a_top_level_in_one_piece_is_about_the_sum_of_its_parts() -> None:
    (check,) = checks.pieces()
    assert check.status == "hit"
    assert 1 < float(check.ours.split()[0]) / float(check.published) < 1.1


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
