"""`suffice hw dram`: what happened in a memory, and the same for DRAMsim3."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import Cli, complaint


def printed(out: str) -> dict[str, str]:
    cells = [[cell.strip() for cell in line.split("|")[1:3]] for line in out.splitlines()]
    return dict(cells)


def test_what_happened_and_its_trace(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out"
    given = ("--pattern", "chunks", "--requests", "1001", "--load", "0.5", "--emit", str(out))
    ran = cli("hw", "dram", "hbm2_16x64", *given)
    assert ran.code == 0, ran.err
    rows = printed(ran.out)
    assert rows["reads"] == "1001"
    met = [int(rows[name]) for name in ("row open", "no row open", "another row open")]
    assert sum(met) == 1001
    assert 0.3 < float(rows["share of the peak"]) < 0.6
    lines = (out / "requests.trace").read_text().splitlines()
    assert len(lines) == 1001
    assert all(line.split()[1] == "READ" for line in lines)
    assert "channels = 16" in (out / "part.ini").read_text()
    assert sorted(path.name for path in out.iterdir()) == ["part.ini", "requests.trace"]


def test_patterns_differ(cli: Cli) -> None:
    shares = {}
    for pattern in ("stream", "random"):
        ran = cli("hw", "dram", "hbm_24x64", "--pattern", pattern, "--requests", "20000")
        shares[pattern] = float(printed(ran.out)["share of the peak"])
    assert shares["random"] < shares["stream"] / 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hbm2"], "unknown memory part 'hbm2'."),
        (["hbm2_16x64", "--pattern", "steam"], "unknown pattern 'steam'. Did you mean 'stream'?"),
        (["hbm2_16x64", "--requests", "0"], "--requests 0: must be in [1, 10000000]"),
        (
            ["hbm2_16x64", "--load", "0.5"],
            "--load 0.5: must be in (0, 1], with --pattern random or chunks",
        ),
        (
            ["hbm2_16x64", "--pattern", "random", "--load", "nan"],
            "--load nan: must be in (0, 1], with --pattern random or chunks",
        ),
        (["hbm_24x64", "--emit", "OUT"], "channels=24: DRAMsim3 needs a power of two"),
        (["hbm2_16x64", "--emit", "OUT/a"], "--emit 'OUT/a': must be a folder, or a new one in a"),
        (["hbm2_16x64", "--emit", ""], "--emit '': must be a folder, or a new one in a folder"),
    ],
)
def test_bad_input_is_one_line(
    cli: Cli, tmp_path: Path, arguments: list[str], message: str
) -> None:
    out = str(tmp_path / "out")
    ran = cli("hw", "dram", *(each.replace("OUT", out) for each in arguments))
    assert complaint(ran).startswith(message.replace("OUT", out))
    assert not Path(out).exists()
