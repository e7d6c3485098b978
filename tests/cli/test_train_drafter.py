"""`suffice train-drafter`: a run that is killed, what it writes, and what it refuses.

Tests train_drafter.py.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tiny
from commands import Cli, complaint
from suffice import LLM, SamplingParams
from suffice.checkpoints.draft_heads import open_head

ARGUMENTS = [
    *("--length", "40", "--draft-vocab", "64", "--threads", "1"),
    *("--epochs", "20", "--batch", "2", "--steps", "2"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny.shallow(tmp_path_factory.mktemp("model"))
    (folder / "prompts.txt").write_text("".join(f"say {number}\n" for number in range(12)))
    return folder


def command(model: Path, output: Path) -> list[str]:
    given = ["-m", str(model), "--prompts", str(model / "prompts.txt"), "-o", str(output)]
    return [str(Path(sys.executable).with_name("suffice")), "train-drafter", *given, *ARGUMENTS]


def test_a_killed_run_writes_the_same_files(model: Path, tmp_path: Path) -> None:
    whole = subprocess.run(
        command(model, tmp_path / "whole"), capture_output=True, text=True, check=True
    )
    assert whole.stdout == f"{tmp_path / 'whole'}\n"
    assert "tokens a step" in whole.stderr and "held out" in whole.stderr
    assert "drafts after the first are trained from update" in whole.stderr
    draw, kills = random.Random(1), 0
    while kills < 3:
        process = subprocess.Popen(
            command(model, tmp_path / "killed"), stderr=subprocess.PIPE, text=True
        )
        work = tmp_path / "killed.training"
        wanted = "answers.jsonl" if kills == 0 else "state.safetensors"
        while process.poll() is None and not (work / wanted).exists():
            time.sleep(0.01)
        time.sleep(draw.random() * 0.5)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += 1
        if process.returncode == 0:
            break
    subprocess.run(command(model, tmp_path / "killed"), capture_output=True, check=False)
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not (tmp_path / "killed.training").exists()
    llm = LLM(
        model, threads=1, speculative_config={"method": "eagle3", "model": str(tmp_path / "whole")}
    )
    assert open_head(str(tmp_path / "whole"), llm.runner.decoder.config).layers  # type: ignore
    plain, params = LLM(model, threads=1), SamplingParams(temperature=0, max_tokens=20)
    texts = [each.generate(["say 3"], params)[0].outputs for each in (llm, plain)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--limit", "1"], "--limit 1: must be at least 2"),
        (["--length", "3"], "--length 3: must be from 16 to 128, the model's context"),
        (["--temp", "-1"], "--temp -1.0: must be 0 or more"),
        (["--epochs", "0"], "epochs=0: must be at least 1"),
        (["--draft-vocab", "0"], "draft_vocab=0: must be at least 16"),
        (["-o", "missing/folder"], "-o missing/folder: must be in a folder that is there"),
        (["-o", "."], "-o .: must be a new folder, or an empty one"),
        (["--seed", "-1"], "seed=-1: must be at least 0"),
        (["--rate", "inf"], "rate=inf: must be above 0 and at most 1"),
        (["--length", "1000"], "--length 1000: must be from 16 to 128, the model's context"),
        (
            ["--length", "20", "--steps", "19"],
            "--steps 19: must be at most 18, two less than --length",
        ),
        (["--own-prompts", "-1"], "--own-prompts -1: must be at least 0"),
        (
            ["--prompts", "nothing"],
            "unknown prompts (no such file either) 'nothing'. Known: gsm8k, spec-bench, "
            "speed-bench",
        ),
    ],
)
def test_what_is_refused(cli: Cli, model: Path, more: list[str], message: str) -> None:
    given = {"-m": str(model), "--prompts": str(model / "prompts.txt"), "-o": "head"}
    given |= dict(zip(more[::2], more[1::2], strict=True))
    ran = cli("train-drafter", *(part for pair in given.items() for part in pair))
    assert complaint(ran) == message


def test_one_prompt_is_refused_before_it_is_answered(cli: Cli, model: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("one\n")
    given = ["-m", str(model), "--prompts", str(tmp_path / "prompts.txt"), "--length", "100"]
    ran = cli("train-drafter", *given, "-o", str(tmp_path / "head"))
    expected = "1 prompt: at least 2 are needed, one to train on and one to measure"
    assert complaint(ran) == expected and not (tmp_path / "head.training").exists()


def test_own_prompts_that_are_refused(cli: Cli, model: Path, tmp_path: Path) -> None:
    given = ["train-drafter", "-m", str(model), "-o", "head"]
    ran = cli(*given)
    assert complaint(ran) == "give --prompts, or --own-prompts of at least 2"
    ran = cli(*given, "--own-prompts", "4", "--raw")
    expected = "--own-prompts are made up by the chat template: leave out --raw"
    assert complaint(ran) == expected
    ran = cli(*given, "--own-prompts", "4", "--limit", "2")
    assert complaint(ran) == "--limit is of --prompts, which are not given"
    plain = tiny.shallow(tmp_path / "plain")
    (plain / "chat_template.jinja").unlink()
    ran = cli("train-drafter", "-m", str(plain), "-o", "head", "--own-prompts", "4")
    assert complaint(ran) == "own prompts: the model has no chat template"


def test_prompts_that_the_model_makes_up(cli: Cli, model: Path, tmp_path: Path) -> None:
    """They come after those given, and a head is trained on both."""
    given = {"-m": str(model), "--prompts": str(model / "prompts.txt"), "--limit": "2"}
    given |= {"--own-prompts": "3", "-o": str(tmp_path / "head")}
    ran = cli("train-drafter", *(part for pair in given.items() for part in pair), *ARGUMENTS)
    assert ran.code == 0 and "prompts answered: 5 of 5" in ran.err
    assert (tmp_path / "head" / "model.safetensors").is_file()
