"""KLLM as a command: its files, its energies by hand, baselines that are what bounds them."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path

import pytest

from commands import Cli, complaint
from suffice.errors import InputError
from suffice_hw.kllm.baselines import BASELINES, Baselines, Roofline
from suffice_hw.kllm.design import DESIGNS, LLAMA_2_7B, MODELS, Design
from suffice_hw.kllm.energy import (
    ENERGIES,
    Energies,
    found_counts,
    product_counts,
    step_counts,
    step_pj,
)
from suffice_hw.kllm.report import FILES, Run

A4 = Design.load()


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_files_agree_with_each_other(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out"
    given = ("--shape", "mistral-7b", "--batch", "4", "--tokens", "512")
    ran = cli("hw", "run", "kllm", *given, "-o", str(out))
    assert ran.code == 0, ran.err
    assert sorted(path.name for path in out.iterdir()) == sorted(FILES)
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["model"], summary["precision"], summary["batch"]) == ("mistral-7b", "W4A4", 4)
    cycles = sum(
        float(row[name])
        for row in rows(out / "layers.csv")
        for name in ("products", "attention", "outliers", "head")
    )
    assert summary["ms_per_step"] == pytest.approx(cycles / 0.5 / 1e6)
    joules = sum(float(row["pj"]) for row in rows(out / "energy.csv")) / 1e12
    assert summary["joules_per_token"] == pytest.approx(joules / 4)
    assert summary["tokens_per_second"] == pytest.approx(4e3 / summary["ms_per_step"])
    by_name = {row["baseline"]: row for row in rows(out / "baselines.csv")}
    assert {row["published_speed"] for row in by_name.values()} == {""}, "not at batch 4"
    theirs = float(by_name["a100"]["ms_per_step"])
    assert float(by_name["a100"]["speed"]) == pytest.approx(theirs / summary["ms_per_step"])
    sweep = [row for row in rows(out / "sweeps.csv") if row["design"] == "A4"]
    at_four = next(row for row in sweep if (row["sweep"], row["value"]) == ("batch", "4"))
    assert float(at_four["tokens_per_second"]) == pytest.approx(summary["tokens_per_second"])
    assert json.loads((out / "provenance.json").read_text())["design"]["macs"] == 32
    assert "| ms_per_step " in ran.out
    other = cli("hw", "run", "kllm", "-o", str(tmp_path / "b"))
    assert other.code == 0
    published = {r["baseline"]: r["published_speed"] for r in rows(tmp_path / "b/baselines.csv")}
    assert (published["a100"], published["fp16"]) == ("8.66", "")
    ran = cli("hw", "compare", str(out), str(tmp_path / "b"))
    assert "| model             | mistral-7b | llama-2-7b |" in ran.out


def test_provenance_identifies_a_run() -> None:
    memory = dataclasses.replace(A4, memory="hbm2_16x64")
    runs = [Run(A4, LLAMA_2_7B), Run(A4, LLAMA_2_7B, 1024), Run(A4, LLAMA_2_7B, batch=2)]
    found = [run.provenance() for run in (*runs, Run(memory, LLAMA_2_7B), runs[0])]
    assert found[0] == found[-1]
    assert len({each["settings_sha256"] for each in found}) == 4
    assert (found[0]["tokens"], found[0]["memory"]["channels"]) == (2048, 24)


def test_a_changed_design(cli: Cli, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(
        (DESIGNS / "kllm.toml").read_text().replace("activation_bits = 4", "activation_bits = 3")
    )
    assert cli("hw", "run", "kllm", "--config", str(mine), "-o", str(tmp_path / "o")).code == 0
    summary = json.loads((tmp_path / "o" / "summary.json").read_text())
    assert summary["precision"] == "W4A3"


def test_a_model_must_fit_the_memory(cli: Cli, tmp_path: Path) -> None:
    weights = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 32000 * 4096
    assert A4.held_bytes(LLAMA_2_7B, 10, 3) == weights / 2 + 2 * 32 * 4096 * 10 * 3 / 2
    mine, out = tmp_path / "mine.toml", tmp_path / "o"
    mine.write_text((DESIGNS / "kllm.toml").read_text().replace("hbm_24x64", "hbm2_16x64"))
    given = ("hw", "run", "kllm", "--config", str(mine), "-o", str(out))
    assert complaint(cli(*given, "--shape", "llama-2-70b")) == (
        "llama-2-70b, tokens=2048, batch=1: takes 32.2 GiB of weights, keys and values: "
        "must be at most 4.0, the size of hbm2_16x64"
    )
    assert not out.exists()
    small = Run(dataclasses.replace(A4, memory="hbm2_16x64"), LLAMA_2_7B)
    swept = {row["value"] for row in small.sweeps() if row["sweep"] == "batch"}
    assert swept == {1, 2}, "a batch of 4 has no room"
    for shape in MODELS.values():
        Run(A4, shape)


def test_a_batch_shares_weights_and_nothing_else() -> None:
    one, four = A4.wave_cycles(4096), A4.wave_cycles(4096, 4)
    assert (one, four) == (11, 44)
    three = dataclasses.replace(A4, activation_bits=3)
    assert three.wave_cycles(4096, 4) == 4 * 8, "no more bound by memory"
    assert A4.found_cycles(LLAMA_2_7B, 4) == A4.found_cycles(LLAMA_2_7B, 1)
    alone = dataclasses.replace(A4, pipelined_outliers=False)
    assert alone.found_cycles(LLAMA_2_7B, 4) == 4 * A4.found_cycles(LLAMA_2_7B, 1)
    bits = [step_counts(A4, LLAMA_2_7B, 100, batch)["hbm bits"] for batch in (1, 2)]
    keys = 2 * 100 * 32 * 4096 * 4
    assert bits[1] - bits[0] == keys


def test_energies_are_those_of_the_published_product() -> None:
    table = Energies.load()
    counts = product_counts(A4, 4096, 4096) | found_counts(A4, 4096)
    assert counts["concat"] == 2**24
    assert counts["reduction"] == 4096 * 256
    assert counts["outliers"] == 4096 * 41
    assert counts["orizuru"] == 1.5 * 4096 + 2 * 21 * 12
    spent = {name: table.operation_pj[name] * count for name, count in counts.items()}
    assert sum(spent.values()) == pytest.approx(table.product_pj)
    lanes = table.product_pj - spent["orizuru"] - spent["quantization"]
    assert lanes == pytest.approx(5.73e3 * 2816 * 2), "5.73 W for 2816 cycles of 2 ns"


def test_memory_is_most_of_a_tokens_energy() -> None:
    spent = step_pj(A4, LLAMA_2_7B, 1)
    weights = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 32000 * 4096
    assert spent["hbm"] == pytest.approx((weights * 4 + 2 * 32 * 4096 * 4) * 1.96)


def test_a_roofline_is_its_longer_side() -> None:
    line = Roofline("x", "gpu", 1000.0, 1e9, 2.0, 2.0, 100.0, 0.0, 0.0)
    weights = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 32000 * 4096
    ns, pj = line.step(LLAMA_2_7B, 1)
    assert ns == pytest.approx((weights * 2 + 2 * 32 * 4096 * 2) / 1000)
    assert pj == pytest.approx(ns * 100 * 1e3)
    slow = dataclasses.replace(line, products_per_ns=1.0)
    assert slow.step(LLAMA_2_7B, 1)[0] == weights + 2 * 32 * 4096
    assert slow.step(LLAMA_2_7B, 1, 3)[0] == 3 * slow.step(LLAMA_2_7B, 1)[0]


def test_every_published_ratio_has_a_baseline() -> None:
    table = Baselines.load()
    assert set(table.published["a4"]["speed"]) <= set(table.rooflines)
    assert table.rooflines["olive"].weight_bytes == 0.5
    assert set(MODELS) == {
        *("llama-7b", "llama-13b", "llama-30b", "llama-2-7b", "llama-2-13b", "llama-2-70b"),
        "mistral-7b",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "llama-7"], "unknown model 'llama-7'. Did you mean 'llama-7b'?"),
        (["--batch", "0"], "batch=0: must be in [1, 1024]"),
        (["--tokens", "0"], "tokens=0: must be in [1, 131072]"),
        (["--config", "scrooge"], "unknown design 'scrooge'. Known: kllm"),
        (["--trace", "t.npz"], "--trace: is a flag of scrooge, not of kllm"),
        (["--key-share", "0.5"], "--key-share: is a flag of scrooge, not of kllm"),
        (["--sampled-heads", "2"], "--sampled-heads: is a flag of scrooge, not of kllm"),
    ],
)
def test_bad_runs_write_nothing(
    cli: Cli, tmp_path: Path, arguments: list[str], message: str
) -> None:
    out = tmp_path / "out"
    assert complaint(cli("hw", "run", "kllm", *arguments, "-o", str(out))).startswith(message)
    assert not out.exists()


def test_bad_files_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    for text, old, new, message in (
        (BASELINES, "[gpus.a100]", "[gpus.a10]", "unknown baseline of mine.toml 'a100'."),
        (BASELINES, "pe_um2 = 984.0", "pe_um = 1.0", "unknown key of mine.toml, spatten 'pe_um'"),
        (BASELINES, "area_mm2 = 16.87", "area_mm2 = -1.0", "Chip: area_mm2=-1.0: must be in"),
        (ENERGIES, "concat = 0.3346", "concat = 0.9", "Energies: shares: add up to 1.5654: must"),
        (ENERGIES, "concat = 0.3346", "concat = nan", "Energies: concat=nan: must be a number in"),
        (ENERGIES, "concat =", "concats =", "Energies: shares: must have each of concat,"),
        (ENERGIES, "lane_watts", "lane_watt", "unknown key of mine.toml 'lane_watt'."),
    ):
        path.write_text(text.read_text().replace(old, new))
        kind = Baselines if text == BASELINES else Energies
        with pytest.raises(InputError) as raised:
            kind.load(path)
        assert str(raised.value).startswith(message)
    with pytest.raises(InputError, match="must be in"):
        Run(A4, LLAMA_2_7B, 2048, 0)


def test_figures_of_a_run(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out, picture = tmp_path / "out", tmp_path / "k.svg"
    assert cli("hw", "run", "kllm", "-o", str(out)).code == 0
    ran = cli("hw", "plot", str(out), "-o", str(picture))
    assert (ran.code, ran.out) == (0, f"{picture}\n"), ran.err
    assert "<svg" in picture.read_text()
    ran = cli("hw", "plot", str(out), str(out), "-o", str(picture))
    assert complaint(ran) == "2 runs of kllm: give one, whose sweeps are plotted"
    (out / "sweeps.csv").write_text("a,b\n1\n")
    ran = cli("hw", "plot", str(out), "-o", str(picture))
    assert complaint(ran).endswith(
        "sweeps.csv: must be a table with a header and rows of equal length"
    )
