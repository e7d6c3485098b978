"""`suffice hw trace`: logits of a model, in a file that accelerators run on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import tiny
from commands import Cli, complaint
from suffice.cli.hw import trace as hw_trace
from suffice.engine.config import Config
from suffice.engine.load import load
from suffice.errors import InputError
from suffice_hw.scrooge.logits import Trace

WORDS = "the cat sat on the mat and looked at the dog who lay by the door of the house " * 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make(tmp_path_factory.mktemp("model"), "llama", tokenizer=True, head_dim=32)


def test_logits_are_those_that_attention_weighs_by(model: Path, tmp_path: Path) -> None:
    """Softmax of the first layer's logits, times values, is what transformers' layer attends to."""
    import transformers

    tokens = torch.randint(3, 200, (40,), generator=torch.Generator().manual_seed(0)).tolist()
    _, runner, _ = load(Config.create(model, dtype="float32", threads=1))
    told: list[None] = []
    hw_trace.write(runner, "tiny", tokens, tmp_path / "t.npz", lambda: told.append(None))
    trace = Trace.load(tmp_path / "t.npz")
    assert (trace.model, trace.tokens, len(trace.layers)) == ("tiny", 40, len(told))
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        weights = reference(torch.tensor([tokens]), output_attentions=True).attentions
    mask = np.triu(np.full((40, 40), -np.inf), 1)
    for ours, theirs in zip(trace.layers, weights, strict=True):
        found = torch.tensor(ours.astype(np.float64) + mask).softmax(-1)
        assert (found - theirs[0]).abs().max() < 5e-3


def test_from_text_to_run(cli: Cli, model: Path, tmp_path: Path) -> None:
    text, trace, out = tmp_path / "t.txt", tmp_path / "t.npz", tmp_path / "run"
    text.write_text(WORDS)
    given = ("--model", str(model), "--text", str(text), "--tokens", "100", "--threads", "1")
    ran = cli("hw", "trace", *given, "-o", str(trace))
    assert (ran.code, ran.out) == (0, f"{trace}\n"), ran.err
    ran = cli("hw", "run", "scrooge", "--trace", str(trace), "-o", str(out))
    assert ran.code == 0, ran.err
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["model"], summary["tokens"]) == (model.name, 100)
    assert summary["key_reduction"] >= 1


def test_a_window_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    gemma = tiny.make(tmp_path / "model", "gemma3", tokenizer=True)
    _, runner, _ = load(Config.create(gemma, dtype="float32", threads=1))
    with pytest.raises(InputError) as raised:
        hw_trace.write(runner, "g", list(range(3, 12)), tmp_path / "t.npz")
    assert str(raised.value) == "tokens=9: must be at most 8, the window of layers of g"
    hw_trace.write(runner, "g", list(range(3, 11)), tmp_path / "t.npz")
    assert Trace.load(tmp_path / "t.npz").tokens == 8
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["t.npz"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "t.txt"], "-o t.txt: must end with .npz"),
        (["-o", "no/t.npz"], "-o no/t.npz: there is no folder no"),
        (["-o", "t.npz", "--tokens", "1"], "--tokens 1: must be at least 2"),
    ],
)
def test_bad_input_is_one_line(cli: Cli, arguments: list[str], message: str) -> None:
    assert complaint(cli("hw", "trace", *arguments)) == message
