"""Units in hardware: gates against models bit for bit, models against what they stand for.

Also tests emit.py and fp16.py.
"""

from __future__ import annotations

import csv
import dataclasses
import random
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("amaranth", reason="needs suffice[rtl]")

from commands import Cli, complaint
from suffice_hw.rtl import checks, fp16_model, scrooge_units
from suffice_hw.rtl.kllm_units import LEVELS
from suffice_hw.rtl.simulate import differs
from suffice_hw.rtl.unit import Lanes, Registered, joined
from suffice_hw.rtl.units import UNITS
from suffice_hw.rtl.yosys import Netlist

# `hw validate rtl` runs all; here those of many ports see the first of their sweep
SOME = {
    "index_counter_256": 40,
    "index_counter_64": 100,
    "max_and_sum_16": 80,
    "multiplier_lane_16": 50,
    "adder_tree_16": 60,
    "exponent": 300,
    "etu": 200,
    "orizuru_16": 300,
    "exaq_lut": 600,
}
YOSYS = shutil.which("yosys")  # starts at once, where there is one


def test_every_lane_of_exaqs_unit_meets_all_numbers() -> None:
    unit = UNITS["exaq_lut"]
    met = [Lanes(4, 16).split(vector["x"]) for vector in unit.vectors()]
    for lane in zip(*met, strict=True):
        assert set(lane) == {0, *range(0x8000, 0xFC00)}


@pytest.mark.parametrize("name", UNITS)
def test_gates_equal_the_model(name: str) -> None:
    unit = UNITS[name]
    most = SOME.get(name, None if unit.exhaustive else 600)
    cycles, difference = differs(unit, most)
    assert difference is None
    assert cycles == most or (unit.exhaustive and cycles >= 256)


@pytest.mark.parametrize("name", ["fp16_add", "vsu"])
def test_the_comparison_bites(name: str) -> None:
    unit = UNITS[name]
    wrong = Registered(lambda **ports: dict.fromkeys(unit.outputs, 1))
    cycles, difference = differs(dataclasses.replace(unit, model=lambda: wrong), 500)
    assert difference is not None
    assert difference.cycle == cycles - 1
    assert difference.gates != difference.model


@pytest.mark.parametrize("seed", range(5))
def test_orizuru_pops_in_order(seed: int) -> None:
    source = random.Random(seed)
    values = [source.randrange(0x7C00) | source.randrange(2) << 15 for _ in range(16)]
    model = UNITS["orizuru_16"].model()
    idle = {"values": 0, "load": 0, "pop_max": 0, "pop_min": 0}
    model.step(idle | {"values": Lanes(16, 16).join(values), "load": 1})
    largest, smallest = [], []
    for _ in range(16):
        for _ in range(LEVELS):
            found = model.step(idle)
        assert not found["max_none"] and not found["min_none"]
        assert values[found["max_place"]] == found["max_value"]
        largest.append(found["max_value"])
        smallest.append(found["min_value"])
        model.step(idle | {"pop_max": 1, "pop_min": 1})
    order = sorted(values, key=fp16_model.key)
    assert largest == order[::-1]
    assert smallest == order
    for _ in range(LEVELS):
        found = model.step(idle)
    assert found["max_none"] and found["min_none"]


def test_counts_are_those_of_a_histogram() -> None:
    model, lanes = UNITS["index_counter_64"].model(), Lanes(16, 8)
    pairs = [random.Random(1).randrange(64) for _ in range(16)]
    model.step({"pairs": 0, "clear": 1, "enable": 0})
    found = model.step({"pairs": lanes.join(pairs), "clear": 0, "enable": 1})
    counts = Lanes(64, 12).split(found["counts"])
    assert counts == [pairs.count(i) for i in range(64)]


def test_early_termination_as_in_figure_3() -> None:
    model, half = UNITS["etu"].model(), scrooge_units.half
    names = ("known", "greatest", "others", "unknown", "threshold")
    for known, others, unknown, stop in ((1.0, 2, 3, 0), (1.05, 4, 1, 1), (1.2, 4, 1, 0)):
        ports = (known, 0.6, others, unknown, 0.9)
        given = {name: half(value) for name, value in zip(names, ports, strict=True)}
        rest = (known - 0.6) / others * unknown
        assert stop == int((known + rest) * 0.9 <= known)
        for _ in range(scrooge_units.ETU_CYCLES):
            found = model.step(given)
        assert found == {"stop": stop, "sum": half(known)}


def test_half_is_the_nearest_number() -> None:
    assert scrooge_units.half(1.0) == 0x3C00
    assert scrooge_units.half(0.9) == 0x3B33
    assert scrooge_units.half(0) == 0


def test_a_tree_joins_neighbours() -> None:
    assert joined(lambda a, b: f"({a}{b})", list("abcd")) == "((ab)(cd))"


def test_both_are_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    (equal,) = checks._equal("concat")()
    assert (equal.group, equal.ours, equal.status) == (
        "units against models",
        "equal in 256 cycles",
        "hit",
    )
    for gates, status in ((45.4, "hit"), (60.0, "miss")):
        net = Netlist("concat", gates, 8, 8)
        monkeypatch.setattr("suffice_hw.rtl.yosys.synthesise", lambda unit, net=net: net)
        (area,) = checks._area("concat")()
        assert (area.published, area.status) == ("45.36", status)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["area", "etuu", "--yosys", "yosys"], "unknown unit 'etuu'. Did you mean 'etu'?"),
        (["area", "etu", "--output", "html"], "unknown output 'html'."),
        (["area", "etu", "--yosys", "/none"], "--yosys /none: no such program"),
        (
            ["rtl", "vsuu", "--emit", "{}", "--yosys", "y"],
            "unknown unit 'vsuu'. Did you mean 'vsu'?",
        ),
        (
            ["rtl", "vsu", "--emit", "{}", "--yosys", "y", "--vectors", "0"],
            "--vectors 0: must be at least 1",
        ),
        (
            ["rtl", "vsu", "--emit", "{}/a/b", "--yosys", "y"],
            "--emit {}/a/b: there is no folder {}/a",
        ),
        (["rtl", "vsu", "--emit", "{}", "--yosys", "/none"], "--yosys /none: no such program"),
    ],
)
def test_bad_input_is_one_line(
    cli: Cli, tmp_path: Path, arguments: list[str], message: str
) -> None:
    out = str(tmp_path / "out")
    given = [each.format(out) for each in arguments]
    assert complaint(cli("hw", *given)).startswith(message.format(out, out))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(YOSYS is None, reason="needs yosys on the PATH: the extra's starts in minutes")
def test_gates_are_counted(cli: Cli) -> None:
    ran = cli("hw", "area", "concat", "fp16_compare", "--output", "csv", "--yosys", "yosys")
    assert ran.code == 0, ran.err
    first, second = csv.DictReader(ran.out.splitlines())
    assert (first["unit"], first["GE"], first["um2"]) == ("concat", "45", "22")
    assert (first["cells"], first["flip-flops"]) == ("8", "8")
    assert (second["unit"], second["flip-flops"]) == ("fp16_compare", "0")


@pytest.mark.skipif(
    YOSYS is None or shutil.which("iverilog") is None, reason="needs yosys and iverilog"
)
def test_verilog_runs_in_icarus(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "v"
    ran = cli("hw", "rtl", "concat", "vsu", "--emit", str(out), "--yosys", "yosys")
    assert ran.code == 0, ran.err
    assert ran.out.startswith(f"{out}: 2 units")
    made = subprocess.run(["make", "-s"], cwd=out, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    assert "PASS concat: 256 vectors" in made.stdout
    lines = (out / "vsu.out.hex").read_text().splitlines()
    lines[7] = f"{int(lines[7], 16) ^ 1:x}"
    (out / "vsu.out.hex").write_text("\n".join(lines) + "\n")
    made = subprocess.run(["make", "-s", "vsu"], cwd=out, capture_output=True, check=False)
    assert made.returncode != 0, "one wrong bit"
