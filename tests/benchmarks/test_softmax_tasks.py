"""The benchmark of right answers with a coded softmax, on a tiny model."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny
from benchmarks.attention import tasks
from benchmarks.attention.coded_texts import CodedTexts, coded_softmax
from benchmarks.harness import merge_cells, record, torch_device
from benchmarks.harness.torch_texts import likelihoods
from oracle import max_error
from sample_text import OWLS
from suffice import LLM
from suffice.attention import SOFTMAXES
from suffice.attention.calibration import read
from suffice.attention.exaq import EXAQ
from suffice.attention.exaq_km import levels_of
from suffice.attention.levels import Levels
from suffice.checkpoints.open import open_checkpoint
from suffice.cli import main as suffice_main
from suffice.errors import InputError
from suffice.eval.likelihood import LikelihoodPlan, Pair, score
from suffice.quant.none import NoQuant

Run = Callable[..., int]
BY_HEAD = [
    [EXAQ(2).levels_of_clip(-4.0), EXAQ(2).levels_of_clip(-2.5), levels_of((0.02, 0.1, 0.4, 0.9))],
    [EXAQ(3, tail=tail).levels_of_clip(-5.0) for tail in ("clip", "flush", "clip")],
]
TEXT = OWLS * 30


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model, a calibration of it, and questions."""
    home = tmp_path_factory.mktemp("home")
    row = {"goal": "The owls", "sol1": "look on.", "sol2": "sleep all day.", "label": 0}
    lines = "\n".join(json.dumps(row | {"goal": f"The owls, {at}"}) for at in range(6))
    (home / "piqa.jsonl").write_text(lines)
    row = {"question": "are owls here", "passage": "The owls look on.", "label": 1}
    lines = "\n".join(json.dumps(row | {"passage": f"{at} owls look on."}) for at in range(6))
    (home / "boolq.jsonl").write_text(lines)
    model = tiny.shallow(home / "model", max_position_embeddings=256)
    (home / "text.txt").write_text(TEXT)
    asked = ["--model", str(model), "--text", str(home / "text.txt"), "-o", str(home / "c.json")]
    asked += ["--window", "64", "--limit", "4"]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as left:
        patch.setattr(sys, "argv", ["suffice", "calibrate", *asked])
        suffice_main()
    assert not left.value.code
    return home


@pytest.fixture
def run(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    asked = ["--model", str(home / "model"), "--data-dir", str(home)]
    asked += ["--calibration", str(home / "c.json")]
    asked += ["--tasks", "piqa", "boolq", "--out", str(tmp_path / "out"), "--threads", "1"]

    def run(*more: str) -> int:
        monkeypatch.setattr(sys, "argv", ["tasks", *asked, *more])
        return tasks.main()

    return run


def test_cells_are_compared_with_exact_and_kept(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("--settings", "exaq:bits=2") == 0
    asked: list[str] = []
    engine = tasks.engine
    monkeypatch.setattr(
        tasks, "engine", lambda flags, setting: asked.append(setting) or engine(flags, setting)
    )
    assert run("--settings", "exaq:bits=2", "exaq_km:bits=3") == 0
    assert asked == ["exaq_km:bits=3"], "what is measured is not measured again"
    path = tmp_path / "out" / "tasks_model.json"
    cells = json.loads(path.read_text())["cells"]
    assert [list(row) for row in cells.values()] == [["exact", "exaq:bits=2", "exaq_km:bits=3"]] * 2
    for row in cells.values():
        assert row["exact"]["change"] == 0 == row["exact"]["change_stderr"]
        for cell in row.values():
            assert cell["questions"] == 6
            assert cell["change"] == pytest.approx(cell["acc"] - row["exact"]["acc"])
    text = path.with_suffix(".md").read_text()
    mean = sum(row["exaq:bits=2"]["acc"] for row in cells.values()) / 2
    assert f"| {mean:.1f} ±" in text and "| `exaq_km:bits=3` |" in text


def test_the_error_of_a_change_is_of_pairs() -> None:
    """Two settings that answer alike but once: the change has a small error, the shares not."""
    exact = [at % 2 == 0 for at in range(100)]
    cell = tasks.cell_of([not exact[0], *exact[1:]], exact)
    assert cell["change"] == pytest.approx(-1) and cell["change_stderr"] == pytest.approx(1)
    assert cell["acc"] == pytest.approx(49) and cell["acc_stderr"] > 4.9


def test_prompts_go_by_codes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "LLM", lambda model, **options: options["softmax"])
    flags = Namespace(model="m", calibration="c", threads=1)
    found = [tasks.engine(flags, setting) for setting in ("exaq:bits=2", "exaq_km")]
    assert found == ["exaq:bits=2,prefill=true", "exaq_km:prefill=true"]


@pytest.mark.parametrize("levels", BY_HEAD, ids=["2 bits", "3 bits"])
def test_a_coded_softmax_is_the_reference_s(levels: list[Levels]) -> None:
    """Of three heads with their own levels, and with masked keys."""
    random = np.random.default_rng(0)
    scores = (2 * random.standard_normal((3, 4, 30, 30))).astype(np.float32)
    scores[..., ~np.tri(30, dtype=bool)] = -np.inf
    x = scores - scores.max(-1, keepdims=True)
    for head, own in enumerate(levels):
        x[head, :, 20, 5], x[head, :, 20, 6] = own.borders[1], 0  # on a border: the code above
    weights = np.stack([own.weigh(row) for own, row in zip(levels, x, strict=True)])
    tables = [
        torch.tensor([getattr(own, name) for own in levels]) for name in ("borders", "weights")
    ]
    found = coded_softmax(torch.from_numpy(x), *tables)
    assert max_error(found, weights / weights.sum(-1, keepdims=True)) < 1e-6
    assert max_error(found, torch.from_numpy(x).softmax(-1)) > 0.05
    assert (found.numpy()[x == -np.inf] == 0).all()


@pytest.mark.parametrize(
    "setting", ["exact", "exaq:bits=2", "exaq:bits=3,clip=fit", "exaq_km:bits=2"]
)
def test_texts_by_codes_are_the_engine_s(home: Path, setting: str) -> None:
    model, calibration = home / "model", home / "c.json"
    flags = Namespace(model=model, calibration=calibration, threads=1)
    exact = {"dtype": "float32", "kv_cache_dtype": "float32"}
    llm = LLM(model, threads=1, **exact, **tasks.asked(flags, setting))
    tokens = llm.tokenizer.encode(TEXT)
    pairs = [Pair(tokens[at : at + 30 + at], tokens[at : at + 1 + at % 4]) for at in range(40)]
    decoder = CodedTexts.from_checkpoint(open_checkpoint(model), NoQuant("float32"))
    plain = logs(decoder, pairs)
    if setting != tasks.EXACT:
        decoder.use(SOFTMAXES.build(setting).levels(read(calibration)))
    found = logs(decoder, pairs)
    expected = dict(score(llm.runner, pairs, LikelihoodPlan("prefill")))
    assert max(abs(found[at] - expected[at].log) for at in expected) < 1e-3
    moved = max(abs(found[at] - plain[at]) for at in expected)
    assert moved > 0.05 or setting == tasks.EXACT


def logs(decoder: CodedTexts, pairs: list[Pair]) -> dict[int, float]:
    parts = likelihoods(decoder, pairs)
    return {index: own.log for together in parts for index, own in together}


def test_torch_has_a_result_of_its_own(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("--settings", "exact") == 0
    monkeypatch.setattr(tasks, "engine", lambda *_: pytest.fail("the engine is not asked"))
    assert run("--device", "cpu", "--settings", "exaq:bits=2", "exaq_km:bits=3") == 0
    folder = tmp_path / "out"
    engine, found = (
        json.loads((folder / f"{name}.json").read_text())
        for name in ("tasks_model", "tasks_torch_model")
    )
    assert engine["engine"] == {"model": "model", "limit": None}
    assert found["engine"] == engine["engine"] | {"device": "cpu"}
    details = record.read_details(folder, "tasks_torch_model")
    for task, row in found["cells"].items():
        assert list(row) == ["exact", "exaq:bits=2", "exaq_km:bits=3"]
        for setting, cell in row.items():
            assert cell == tasks.cell_of(details[task][setting], details[task]["exact"])
        assert row["exact"] == engine["cells"][task]["exact"], "the engine answers alike"
    shown = (folder / "tasks_torch_model.md").read_text()
    assert "Run in PyTorch, with activations, keys and values in float32." in shown
    assert "PyTorch" not in (folder / "tasks_model.md").read_text()


def test_parts_of_several_processes_are_joined(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "program", lambda: "python -m benchmarks.attention.tasks")
    settings, name = ("exaq:bits=2", "exaq_km:bits=3"), "tasks_torch_model"
    asked: list[tuple[str, ...]] = [settings, *((setting,) for setting in settings)]
    for part, own in enumerate(asked):
        given = ["--out", str(tmp_path / f"part{part}"), "--settings", *own]
        assert run("--device", "cpu", *given) == 0
    paths = [tmp_path / f"part{part}" / f"{name}.json" for part in (1, 2)]
    table = merge_cells.merged(tmp_path / "joined", paths)
    whole, joined = (
        json.loads((tmp_path / folder / f"{name}.json").read_text())
        for folder in ("part0", "joined")
    )
    assert joined["cells"] == whole["cells"] and joined["engine"] == whole["engine"]
    assert [list(row) for row in joined["cells"].values()] == [["exact", *settings]] * 2
    one, other = (record.read_details(tmp_path / each, name) for each in ("part0", "joined"))
    assert one == other and len(other["piqa"]["exact"]) == 6
    assert all(f"| `{setting}` |" in table for setting in settings)


def test_devices_are_not_mixed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--device", "cpu", "--settings", "exact") == 0
    monkeypatch.setattr(torch_device, "of_cell", lambda device: {"gpu": "a GPU"})
    capsys.readouterr()
    assert run("--device", "cpu", "--settings", "exaq:bits=2") == 2
    error = capsys.readouterr().err
    assert "give another folder with --out" in error and error.count("\n") == 1


def test_torch_refuses_what_the_engine_refuses(home: Path, tmp_path: Path) -> None:
    """Another model's calibration, and a model whose scores a table does not know."""
    flags = Namespace(model=str(home / "model"), calibration=str(home / "c.json"))
    flags.settings = ["exaq:bits=2"]
    changed: dict[str, Any] = json.loads((home / "c.json").read_text())
    changed["model"]["hash"] = "0"
    (tmp_path / "other.json").write_text(json.dumps(changed))
    host = torch.device("cpu")
    with pytest.raises(InputError, match="is of model with hash 0, but "):
        flags.calibration = str(tmp_path / "other.json")
        tasks.in_torch(flags, host)
    flags.model = str(tiny.shallow(tmp_path / "capped", "gemma2"))
    with pytest.raises(InputError, match="caps its scores, which techniques do not know"):
        tasks.in_torch(flags, host)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--limit", "1"], "--limit=1: must be at least 2 questions"),
        (["--settings", "exaq:bits=5"], "exaq: bits=5: must be 2, 3 or 4"),
        (["--tasks", "pica"], "unknown task 'pica'. Did you mean 'piqa'?"),
        (["--device", "tpu"], "--device=tpu: PyTorch has no such device here; allowed: cpu"),
        (["--device", "cpu", "--settings", "tiers"], "unknown softmax 'tiers'"),
        (["--device", "cpu", "--settings", "exaq:bits=5"], "exaq: bits=5: must be 2, 3 or 4"),
    ],
)
def test_bad_input(
    run: Run, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*more) == 2
    assert message in capsys.readouterr().err
