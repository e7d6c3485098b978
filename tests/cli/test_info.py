"""`suffice info`: quick, and without PyTorch."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import gguf_families
import tiny
from attention.test_calibration import GOOD
from commands import Cli, complaint, loaded_by
from draws import normal
from suffice.attention import ATTENTIONS, SOFTMAXES
from suffice.attention.calibration import read, write
from suffice.attention.rule import coded_rules
from suffice.backends.cpu.attention import attend
from suffice.backends.cpu.linear import native_linear
from suffice.backends.cpu.rules import native_rule
from suffice.cache import GROWTHS, alike
from suffice.cache.kv import KVCache
from suffice.cli.info import techniques
from suffice.cli.techniques import Seam
from suffice.native import core
from suffice.policy import POLICIES
from suffice.quant import QUANTS
from suffice.registry import Table
from suffice.speculate import SPECULATORS


def test_lists_machine_techniques_and_models(cli: Cli) -> None:
    ran = cli("info")
    assert ran.code == 0 and ran.err == ""
    for text in ("suffice ", "CPU", "threads", "instruction set", "exact"):
        assert text in ran.out
    assert "not here: suffice pull gemma3-270m" in ran.out
    assert "memory speed     not measured, defaults stand in: suffice info --measure" in ran.out
    assert "| speculate | ngram " in ran.out, "a seam has the name of its flag"


def computes_natively(table: Table, name: str, calibration: Path) -> bool:
    """Return whether a technique hands the core something that computes it."""
    technique = table.load(name)()
    if table is QUANTS:
        weight = normal(16, 64)
        if name == "kllm":  # whose inputs need a calibration
            site = technique.site(normal(64, 64))
            packed = technique.packed(technique.quantize(weight, np.eye(64)), None, site)
        else:
            packed = technique.pack(weight)
        return isinstance(native_linear(packed), core.Linear)
    if table is ATTENTIONS:
        growth, kept = GROWTHS.build("upfront"), {"sketch": technique.sketched}
        kept |= {"bases": technique.based}
        cache = KVCache(alike(1, 1, 16), growth=growth, limit=16, **kept)
        cache.reserve(1)
        cache.append(0, torch.ones(1, 1, 16), torch.ones(1, 1, 16))
        cache.advance(1)
        out = attend(technique.rule(), np.ones((1, 1, 16), np.float32), cache, 0, scale=1.0)[0]
        return bool(np.isfinite(out).all())
    levels = technique.levels(read(calibration)) if technique.coded else []
    rules = coded_rules([[None, None]] * 2, levels)
    natives = [native_rule(rule) for layer in rules for rule in layer]
    return all(isinstance(rule, core.AttentionRule) for rule in natives)


def test_what_is_shown_as_native_is_what_the_core_computes(tmp_path: Path) -> None:
    write(tmp_path / "m.json", GOOD)
    for table in (ATTENTIONS, SOFTMAXES, QUANTS):
        found = {n for n in table.names() if computes_natively(table, n, tmp_path / "m.json")}
        assert found == table.native, table.kind
    for table in (POLICIES, GROWTHS, SPECULATORS):
        assert table.native is None
    half = Table("quant", {"here": "x:Here", "slow": "x:Slow"}, native=frozenset({"here"}))
    seams = [Seam(half, "--quant", ""), Seam(GROWTHS, "--growth", "")]
    assert techniques(seams)[:3] == [
        ["quant", "here", "native code, PyTorch"],
        ["quant", "slow", "PyTorch"],
        ["growth", "bmc", "-"],
    ]


def test_loads_no_torch() -> None:
    commands = (["info"], ["--help"], ["run", "a", "--attention", "nonsense"])
    for arguments, loaded in loaded_by(commands, ["torch", "transformers"]):
        assert not loaded, arguments


def test_describes_a_model(cli: Cli, checkpoint: Path) -> None:
    ran = cli("info", "-m", str(checkpoint))
    assert ran.code == 0
    assert "4 query, 2 key/value, of 16" in ran.out
    assert "KV per token     0.8 KiB float32, 0.4 KiB bfloat16" in ran.out


def test_describes_latent_attention(cli: Cli, tmp_path: Path) -> None:
    said = cli("info", "-m", str(tiny.make(tmp_path, "deepseek-v2"))).out
    assert "latent attention, to rows of 48 + 16 entries, queries by 40 entries" in said
    # 3 layers of 64 entries; int8 has two scales
    assert "KV per token     0.8 KiB float32, 0.4 KiB bfloat16, 0.2 KiB int8\n" in said
    assert "by softmax, best_groups, top; in 2 of 4 groups; times 1.5" in said


def test_describes_experts(cli: Cli, tmp_path: Path) -> None:
    said = cli("info", "-m", str(tiny.make(tmp_path / "one", "qwen2-moe-mixed"))).out
    rule = "2 of 4, of width 48, by softmax, top"
    assert f"{rule}; one of width 32 for all tokens; 2 layers without" in said
    said = cli("info", "-m", str(tiny.make(tmp_path / "other", "mixtral"))).out
    assert re.search(r"experts +2 of 6, of width 48, by softmax, top, normalize\n", said)


@pytest.mark.parametrize(
    ("variant", "layers", "kilobytes"),
    [
        ("lfm2", "3 (1 see all tokens, 2 keep a state)", 2 * 64 * 2 * 4 / 1024),
        (
            "nemotron-h",
            "4 (1 see all tokens, 2 keep a state, 1 have an MLP alone)",
            2 * (8 * 32 * 16 + 256 * 3) * 4 / 1024,
        ),
        ("qwen3.5", "4 (2 see all tokens, 2 keep a state)", 2 * (4 * 16 * 32 + 192 * 3) * 4 / 1024),
    ],
)
def test_describes_layers_that_keep_states(
    cli: Cli, tmp_path: Path, variant: str, layers: str, kilobytes: float
) -> None:
    path = gguf_families.write(tiny.make(tmp_path / "tiny", variant), tmp_path / "x.gguf")
    ran = cli("info", "-m", str(path))
    assert re.search(rf"layers +{re.escape(layers)}\n", ran.out)
    assert re.search(
        rf"states +{kilobytes:.1f} KiB of each request, whatever its length\n", ran.out
    )
    heads = 2 * 2 * (32 if variant == "qwen3.5" else 16) * (2 if variant == "qwen3.5" else 1)
    assert f"KV per token     {heads * 4 / 1024:.1f} KiB float32" in ran.out


def test_says_what_a_model_is_stored_as_and_runs_as(cli: Cli, checkpoint: Path) -> None:
    ran = cli("info", "-m", str(checkpoint))
    assert "stored as        float32: 32.00 bits per weight\n" in ran.out
    assert "runs as          float32; --quant and --dtype change it" in ran.out


def test_says_what_a_model_of_halves_is_stored_as(
    cli: Cli, checkpoint: Path, tmp_path: Path
) -> None:
    shutil.copytree(checkpoint, tmp_path / "half")
    weights = load_file(checkpoint / "model.safetensors")
    halves = {name: values.astype(np.float16) for name, values in weights.items()}
    save_file(halves, tmp_path / "half" / "model.safetensors")
    said = cli("info", "-m", str(tmp_path / "half")).out
    assert "stored as        float16: 16.00 bits per weight\n" in said


def test_kinds_of_matrices_that_are_stored_alike() -> None:
    from suffice.checkpoints.storage import StoredMatrix, by_kind, commonest

    matrices = [
        StoredMatrix("layers.0.q", "Q4_1", 20, 32),
        StoredMatrix("layers.0.v", "Q8_0", 34, 32),
        StoredMatrix("layers.1.q", "Q4_1", 20, 32),
        StoredMatrix("layers.1.v", "Q4_1", 20, 32),
        StoredMatrix("embed", "Q4_1", 20, 32),
    ]
    expected = [(["q", "embed"], "Q4_1", 5.0), (["v"], "Q8_0/Q4_1", 6.75)]
    assert by_kind(matrices) == expected
    assert commonest(matrices) == "Q4_1"


def test_the_environments_model_does_not_hide_the_machine(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUFFICE_MODEL", "nonsense")
    ran = cli("info")
    assert (ran.code, ran.err) == (0, "") and "instruction set" in ran.out


def test_a_cache_that_is_no_folder(
    cli: Cli, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from suffice.cache import machine

    monkeypatch.setenv("SUFFICE_CACHE", "/dev/null")
    ran = cli("info")
    assert ran.code == 0, ran.err
    assert "not measured" in ran.out and "not here: suffice pull smollm2-135m" in ran.out
    ran = cli("bench", "-m", str(checkpoint), "-p", "4", "-n", "2", "-r", "1")
    assert ran.code == 0, ran.err
    monkeypatch.setattr(machine, "measure", lambda **options: machine.DEFAULT)
    assert complaint(cli("info", "--measure")).startswith("'/dev/null/machine.json' cannot be")
    assert complaint(cli("run", "x")).endswith("run `suffice pull smollm2-135m`")
    assert complaint(cli("pull", "smollm2-135m")).startswith(
        "cannot store smollm2-135m in /dev/null/models: "
    )


def test_calibrates(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from suffice.cache import machine

    monkeypatch.setattr(machine, "measure", lambda **options: machine.DEFAULT)
    ran = cli("info", "--measure")
    assert ran.code == 0
    rows = [[cell.strip() for cell in row.split("|")] for row in ran.out.splitlines()[2:]]
    assert [int(row[1]) for row in rows] == [2**power for power in range(7, 18)]
    assert all(int(row[3]) * int(row[4]) == int(row[1]) for row in rows)
    assert (tmp_path / "empty-cache" / "machine.json").is_file()
