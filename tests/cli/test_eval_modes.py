"""What evaluations and timings refuse because it would do nothing there; audits that they show."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import adapters
import tiny
from commands import Cli, complaint
from suffice.attention.exaq import EXAQ
from suffice.engine.config import Config
from suffice.errors import OptionError
from suffice.eval.modes import check_mode
from task_rows import PIQA, write_lines

LOSSY = ("--attention", "certified:eps=0.3")
AUDIT = re.compile(r"audit of (\d+) tokens: softmax unread [\d.e-]+ %")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    sizes = {"max_position_embeddings": 1024, "num_hidden_layers": 2}
    return str(tiny.make(folder, "llama", tokenizer=True, **sizes))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_lines(folder / "piqa.jsonl", PIQA)
    (folder / "text").write_text("the quick brown fox jumps over the lazy dog " * 30)
    return folder


@pytest.mark.parametrize("command", ["perplexity", "tasks"])
@pytest.mark.parametrize(
    ("flags", "idle"),
    [
        (LOSSY, "--attention certified:eps=0.3"),
        (("--attention", "tiers", "--audit", "4"), "--attention tiers"),
        (("--attention", "tiers:prompt=0.03", "--audit", "4"), "--audit 4"),
    ],
)
def test_prompts_refuse_what_is_for_decode_steps(
    cli: Cli, model: str, data: Path, command: str, flags: tuple[str, ...], idle: str
) -> None:
    source = {"perplexity": ("--text", str(data / "text"), "--window", "64", "--limit", "1")}
    own = source.get(command, ("--tasks", "piqa", "--data-dir", str(data)))
    asked = ("eval", command, "-m", model, *own, *flags)
    message = complaint(cli(*asked, "--mode", "prefill"))
    assert message.startswith(f"{idle}: is for decode steps, and --mode prefill has none")
    assert cli(*asked).code == 0


def test_softmaxes_that_change_decode_steps_alone_are_refused() -> None:
    softmax = EXAQ(2)
    config = dataclasses.replace(Config.create("model"), softmax=softmax)
    check_mode("decode", config)
    with pytest.raises(OptionError, match="softmax='exaq': is for decode steps"):
        check_mode("prefill", config)
    check_mode("prefill", dataclasses.replace(config, softmax=EXAQ(2, prefill=True)))


def test_prompts_take_what_changes_them(cli: Cli, model: str, data: Path) -> None:
    asked = ("eval", "perplexity", "-m", model, "--text", str(data / "text"), "--window", "64")
    ran = cli(*asked, "--limit", "1", "--mode", "prefill", "--attention", "tiers:prompt=0.03")
    assert ran.code == 0, ran.err


def test_accuracies_show_what_audits_found(cli: Cli, model: str, data: Path) -> None:
    tasks = ("tasks", "--tasks", "piqa", "--data-dir", str(data))
    ruler = ("ruler", "--tasks", "niah_single_1", "--lengths", "512", "--samples", "1")
    for own in (tasks, ruler):
        ran = cli("eval", *own, "-m", model, *LOSSY, "--audit", "1")
        assert ran.code == 0 and (found := AUDIT.search(ran.err)) and int(found[1]) > 0, ran.err
        assert "audit" not in cli("eval", *own, "-m", model, *LOSSY).err


@pytest.mark.parametrize(
    "command",
    [("bench",), ("eval", "latency"), ("calibrate", "--budget", "1%", "--text", "wikitext2")],
)
def test_timings_have_no_audits(cli: Cli, model: str, command: tuple[str, ...]) -> None:
    message = complaint(cli(*command, "-m", model, "--attention", "certified", "--audit", "2"))
    assert message.startswith("--audit=2: ") and "leave it out" in message


def test_an_adapter_is_compared_with_its_base(
    cli: Cli, model: str, data: Path, tmp_path: Path
) -> None:
    own = adapters.write(tmp_path / "own", Path(model), adapters.TARGETS["llama"], rank=4, seed=1)
    asked = ("eval", "perplexity", "-m", model, "--text", str(data / "text"), "--window", "64")
    asked = (*asked, "--limit", "1", "-o", "csv")
    for given in (("--adapter", f"own={own}"), ("--merge-adapter", str(own))):
        ran = cli(*asked, *given, "--against", model)
        assert ran.code == 0, ran.err
        figures = dict(line.split(",")[:2] for line in ran.out.splitlines())
        assert float(figures["perplexity of the reference"]) != float(figures["perplexity"])
        assert "with itself" in complaint(cli(*asked, *given, "--against", "exact"))
