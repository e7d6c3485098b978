"""The memory model: sequences counted by hand, conservation, its analytic twin, DRAMsim3."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from suffice.errors import InputError
from suffice_hw import _simulator, checks
from suffice_hw.dram import analytic, energy, patterns
from suffice_hw.dram import checks as dram_checks
from suffice_hw.dram.analytic import Pattern
from suffice_hw.dram.model import simulate, write_settings, write_trace
from suffice_hw.dram.part import PARTS, Part

HBM2 = Part.load("hbm2_8x128")
# One channel, no refresh within reach: what is left can be counted on paper.
LONE = dataclasses.replace(HBM2, channels=1, controller_ns=0, trefi_ns=100_000)
PAGE = LONE.page_bytes


def latencies(addresses: list[int], writes: list[bool] | None = None) -> list[float]:
    """Return the latency of requests that all come at once."""
    seen = simulate(LONE, [0.0] * len(addresses), addresses, writes, each_latency=True)
    assert seen.latencies_ns is not None
    return seen.latencies_ns.tolist()


def test_a_lone_read_takes_rcd_cl_and_the_burst() -> None:
    assert latencies([0]) == [14 + 14 + 2]


def test_a_row_hit_follows_a_burst_later() -> None:
    assert latencies([0, 64, 128]) == [30, 32, 34]


def test_another_row_of_the_bank_waits_for_the_row_cycle() -> None:
    other = PAGE * LONE.groups * LONE.banks
    # the first row stays open for tRAS, then tRP, tRCD, CL and the burst
    assert latencies([0, other]) == [30, 34 + 14 + 14 + 14 + 2]


def test_a_bank_of_another_group_needs_trrd_only() -> None:
    # the mapping's lowest field above the page is the bank, then the group
    assert latencies([0, PAGE * LONE.banks]) == [30, 34]
    assert latencies([0, PAGE]) == [30, 36], "in the same group it is tRRD_L"


def test_the_fifth_activation_waits_for_tfaw() -> None:
    banks = [PAGE * LONE.banks * (i % 4) + PAGE * (i // 4) for i in range(5)]
    assert latencies(banks) == [30, 34, 38, 42, 30 + 30]


def test_a_hit_overtakes_an_older_conflict() -> None:
    other = PAGE * LONE.groups * LONE.banks
    assert latencies([0, other, 64])[2] == 32


def test_a_read_after_a_write_waits_for_the_bus_to_turn() -> None:
    # the write comes at tRCD; CWL, its burst and tWTR_L later the read may
    read = latencies([0, 64], [True, False])[1]
    assert read == 14 + (4 + 2 + 8) + 14 + 2


def test_a_refresh_blocks_the_channel() -> None:
    part = dataclasses.replace(LONE, trefi_ns=3900)
    seen = simulate(part, [3900.0], [0], each_latency=True)
    assert seen.refreshes == 1
    assert seen.latencies_ns is not None
    assert seen.latencies_ns.tolist() == [260 + 30]


@pytest.mark.parametrize("name", sorted(path.stem for path in PARTS.glob("*.toml")))
def test_counts_are_conserved(name: str) -> None:
    part = Part.load(name)
    random = np.random.default_rng(1)
    times, places = patterns.chunks(part, 3000, 256, 0.4)
    writes = random.integers(0, 2, len(times))
    seen = simulate(part, times, places, writes)
    assert seen.reads + seen.writes == len(times)
    assert seen.writes == writes.sum()
    assert seen.hits + seen.closed + seen.conflicts == len(times)
    assert seen.activates >= seen.closed + seen.conflicts
    assert seen.ns >= len(times) * part.burst_bytes / part.peak_bytes_per_ns
    assert 0 < seen.active_ns <= part.channels * seen.ns


@pytest.mark.parametrize("name", sorted(path.stem for path in PARTS.glob("*.toml")))
@pytest.mark.parametrize("chunk_bytes", [64, 128, 256])
def test_the_analytic_twin_has_the_same_bandwidth(name: str, chunk_bytes: int) -> None:
    part = dataclasses.replace(Part.load(name), interleave_bytes=64, window=64)
    if part.mapping[-4:] in ("chcl", "bgcl"):  # spread over channels or groups, 64 bytes to each
        row_bursts = 64 // part.burst_bytes
    else:
        row_bursts = chunk_bytes // part.burst_bytes
    times, places = patterns.chunks(
        part, 6_000 * part.channels * part.burst_bytes // chunk_bytes, chunk_bytes
    )
    seen = simulate(part, times, places)
    twin = analytic.estimate(part, Pattern(len(times), row_bursts))
    assert seen.bytes_per_ns(part) == pytest.approx(twin.bytes_per_ns(part), rel=0.07)
    assert seen.activates == pytest.approx(twin.activates, rel=0.05)
    assert seen.refreshes == pytest.approx(twin.refreshes, rel=0.1)


COUNTED = [group for group in dram_checks.GROUPS if group is not dram_checks.speed]


@pytest.mark.parametrize("group", COUNTED, ids=lambda group: group.__name__)
def test_published_figures(
    group: Callable[[], list[checks.Check]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In fewer bursts than `hw validate` has."""
    monkeypatch.setattr(dram_checks, "BURSTS", 40_000)
    found = group()
    assert found
    assert [check for check in found if check.status == "miss"] == []


def test_the_simulators_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dram_checks, "BURSTS", 500)
    for seconds, ours, status in ((0.006, "40", "hit"), (0.024, "10", "miss")):
        clock = iter([5.0, 5.0 + seconds])
        monkeypatch.setattr(dram_checks.time, "process_time", lambda clock=clock: next(clock))
        (check,) = dram_checks.speed()
        assert (check.ours, check.status) == (ours, status)


def test_the_checks_bite(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = dataclasses.replace(HBM2, tfaw_ns=60)
    monkeypatch.setattr(dram_checks.Part, "load", lambda name: slow)
    monkeypatch.setattr(dram_checks, "BURSTS", 10_000)
    found = dram_checks.bandwidth()
    assert [check.status for check in found if check.group == "memory random"] == ["miss", "miss"]


def test_energy_of_one_burst_by_hand() -> None:
    seen = simulate(LONE, [0.0], [0])
    spent = energy.load("oconnor_hbm2").energy(LONE, seen)
    assert spent.activate_pj == 909 * 2  # a page is 2 KiB
    assert spent.transfer_pj == pytest.approx(512 * 3.48)
    spent = energy.load("idd_hbm2").energy(LONE, seen)
    assert spent.activate_pj == pytest.approx(1.2 * (65 * 48 - 55 * 34 - 40 * 14))
    assert spent.transfer_pj == pytest.approx(1.2 * 335 * 2)
    assert spent.background_pj == pytest.approx(1.2 * 55 * 30)


def test_energy_of_one_refresh_by_hand() -> None:
    seen = simulate(dataclasses.replace(LONE, trefi_ns=3900), [3900.0], [0])
    assert seen.refreshes == 1
    assert energy.load("oconnor_hbm2").energy(LONE, seen).refresh_pj == 58176
    spent = energy.load("idd_hbm2").energy(LONE, seen)
    assert spent.refresh_pj == pytest.approx(1.2 * (250 - 55) * 260)


def test_background_power_is_that_of_every_channel() -> None:
    seen = simulate(dataclasses.replace(LONE, channels=8), [0.0], [0])
    table = dataclasses.replace(energy.load("oconnor_hbm2"), background_mw=3)
    spent = table.energy(HBM2, seen)
    assert (HBM2.channels, seen.ns, spent.background_pj) == (8, 30, 3 * 8 * 30)
    spent = energy.load("idd_hbm2").energy(HBM2, seen)
    assert spent.background_pj == pytest.approx(1.2 * 30 * (55 + 7 * 40)), "one has an open row"


def test_half_a_channel_has_half_the_currents() -> None:
    table = energy.load("idd_hbm1")
    whole, halves = Part.load("hbm1_8x128"), Part.load("hbm2_16x64")
    assert (whole.bus_bits, halves.bus_bits) == (128, 64)
    per_bit = []
    for part in (whole, halves):
        spent = table.energy(part, simulate(part, *patterns.stream(part, 20_000)))
        per_bit.append(spent.pj_per_bit)
    assert per_bit[1] == pytest.approx(per_bit[0], rel=0.03)


def test_a_trace_for_dramsim3(tmp_path: Path) -> None:
    path = tmp_path / "reads.trace"
    part = Part.load("hbm2_16x64")
    write_trace(path, part, [0.0, 3.0], [0, 64], [False, True])
    # 64 bytes further lies the next channel, whose page follows the first one's
    assert path.read_text() == f"0x0 READ 0\n0x{part.page_bytes:X} WRITE 2\n"
    write_settings(tmp_path / "part.ini", part)
    lines = (tmp_path / "part.ini").read_text().splitlines()
    assert {"device_width = 64", "BL = 4", "columns = 64", "tFAW = 15", "tCK = 2"} <= set(lines)


def test_a_trace_keeps_places(tmp_path: Path) -> None:
    part = Part.load("hbm2_16x64")
    plain = dataclasses.replace(part, mapping="robgbachcocl", interleave_bytes=part.page_bytes)
    addresses = (np.random.default_rng(2).integers(0, part.size_bytes // 32, 50) * 32).tolist()
    write_trace(tmp_path / "t", part, [0.0] * 50, addresses)
    written = [int(line.split()[0], 16) for line in (tmp_path / "t").read_text().splitlines()]
    for ours, theirs in zip(addresses, written, strict=True):
        assert _simulator.locate(part.native, ours) == _simulator.locate(plain.native, theirs)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Part.load("hbm_8x128"), "unknown memory part 'hbm_8x128'. Did you mean 'hbm"),
        (lambda: Part.load("/none.toml"), "/none.toml: No such file or directory"),
        (lambda: dataclasses.replace(HBM2, tck_ns=0), "Part: tck_ns=0: must be in [0.1, 10]"),
        (lambda: dataclasses.replace(HBM2, channels=1.5), "channels=1.5: must be a whole number"),
        (lambda: dataclasses.replace(HBM2, mapping="rococh"), "must have each of ro, ba, bg, co"),
        (lambda: dataclasses.replace(HBM2, mapping="xx"), "unknown field of mapping 'xx'"),
        (
            lambda: dataclasses.replace(HBM2, interleave_bytes=96),
            "interleave_bytes=96: must divide",
        ),
        (lambda: dataclasses.replace(HBM2, queue=8), "Part: queue=8: must hold a window=32"),
        (
            lambda: dataclasses.replace(HBM2, trefi_ns=300),
            "trfc_ns=260: must be less than trefi_ns",
        ),
        (lambda: simulate(HBM2, [0.0], [1 << 40]), "address 1099511627776: must be in [0, "),
        (lambda: simulate(HBM2, [1.0, 0.0], [0, 0]), "arrivals: must ascend"),
        (
            lambda: simulate(HBM2, [0.0], [0, 64]),
            "1 arrivals, 2 addresses, no writes: numbers",
        ),
        (lambda: simulate(HBM2, [0.0], [0.5]), "addresses: must be whole numbers, in one"),
        (lambda: simulate(HBM2, ["soon"], [0]), "arrivals: must be finite numbers, in one"),
        (lambda: write_trace(Path("x"), HBM2, [0.0], [0, 64]), "1 arrivals, 2 addresses, no writ"),
        (
            lambda: write_trace(Path("x"), HBM2, [0.0, 1.0], [0, 64], [True]),
            "2 arrivals, 2 addresses, 1 writes: numbers must be equal",
        ),
        (lambda: analytic.mean_latency_ns(HBM2, 4, 0.95), "load=0.95: must be in (0, 0.933)"),
        (lambda: analytic.idle_latency_ns(HBM2, "it"), "met='it': must be hit, closed or conflict"),
        (lambda: energy.load("micron"), "unknown energy table 'micron'"),
        (
            lambda: write_settings(Path("x"), Part.load("hbm_24x64")),
            "channels=24: DRAMsim3 needs a power of two",
        ),
    ],
)
def test_bad_input_is_one_line(call: object, message: str) -> None:
    with pytest.raises(InputError) as raised:
        call()  # type: ignore[operator]
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_settings_file_with_a_misspelt_key(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    text = (PARTS / "hbm2_8x128.toml").read_text()
    path.write_text(text.replace("trcd_ns", "trcd_n"))
    with pytest.raises(InputError, match=r"unknown key of mine.toml 'trcd_n'. Did you mean 'trcd_"):
        Part.load(str(path))
    path.write_text(text.replace("trcd_ns = 14\n", ""))
    with pytest.raises(InputError, match=r"mine.toml: the key 'trcd_ns' is missing"):
        Part.load(str(path))
    path.write_text("a b")
    with pytest.raises(InputError, match=r"mine.toml: is not TOML: "):
        Part.load(str(path))


def test_a_part_of_the_table_must_exist() -> None:
    assert checks.of("dram") == dram_checks.GROUPS
