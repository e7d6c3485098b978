"""How far a prompt is, on a terminal, and Ctrl-C while it runs: progress.py, answer.py, chat.py."""

from __future__ import annotations

import itertools
import signal
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from commands import Cli
from fake_engine import FakeRunner, V
from suffice import progress
from suffice.engine.llm import LLM


def steady(history: list[int]) -> Any:
    """Generate x for ever."""
    return 10 * np.eye(V, dtype=np.float32)[8]


class Bar:
    """Writes down what a bar shows, and what is printed meanwhile."""

    def __init__(self, noted: list[str]) -> None:
        self.noted, self.task_ids = noted, [0]

    def add_task(self, *given: Any, **fields: Any) -> None: ...

    def start(self) -> None:
        self.noted.append("start")

    def update(self, task: int, completed: int, said: str) -> None:
        self.noted.append(f"{completed}: {said.partition(',')[0]}")

    def stop(self) -> None:
        self.noted.append("stop")


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeRunner, "tile_rows", 8)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What bars show, each after no time at all, on a terminal."""
    found: list[str] = []
    monkeypatch.setattr(progress, "progress_bar", lambda *columns, **options: Bar(found))
    monkeypatch.setattr(progress, "PROMPT_SECONDS", 0.0)
    monkeypatch.setattr(progress, "sys", Terminal())
    return found


class Terminal:
    class stderr:  # noqa: N801
        @staticmethod
        def isatty() -> bool:
            return True


def interrupted_at(llm: LLM, monkeypatch: pytest.MonkeyPatch, part: int) -> list[list[int]]:
    """Let Ctrl-C come while a part of a prompt runs; return the parts that are run."""
    prefill, ran = llm.runner.prefill, list[list[int]]()

    def run(sequence: Any, tokens: list[int]) -> Any:
        ran.append(tokens)
        if len(ran) == part:
            signal.raise_signal(signal.SIGINT)
        return prefill(sequence, tokens)

    monkeypatch.setattr(llm.runner, "prefill", run)
    return ran


def test_the_bar_is_gone_before_the_first_token(
    cli: Cli, fake: Callable[..., LLM], noted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(steady)
    write = sys.stdout.write

    def seen(text: str) -> int:
        noted.extend([text] if text else [])
        return write(text)

    monkeypatch.setattr(sys.stdout, "write", seen)
    ran = cli("run", "ab" * 20, "--raw", "-n", "3", "--temp", "0")
    assert (ran.code, ran.out) == (0, "xxx\n")
    shown = ["start", "8: 8/20 tokens", "16: 16/20 tokens", "stop"]
    assert noted == [*shown, "x", "x", "x", "\n"]


def test_a_terminal_gets_the_bar_on_standard_error(
    cli: Cli, fake: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PROMPT_SECONDS", 0.0)
    arguments = ("run", "ab" * 20, "--raw", "-n", "3", "--temp", "0", "-q")
    fake(steady)
    assert cli(*arguments)[1:] == ("xxx\n", ""), "this is no terminal"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    ran = cli(*arguments)
    assert ran.out == "xxx\n"
    assert "20 tokens" in ran.err and "tokens/s" in ran.err and "left" in ran.err


@pytest.mark.parametrize(("second", "shown"), [(0.9, False), (1.0, True)])
def test_the_bar_comes_in_the_second_second(
    noted: list[str], monkeypatch: pytest.MonkeyPatch, second: float, shown: bool
) -> None:
    monkeypatch.setattr(progress, "PROMPT_SECONDS", 1.0)
    seconds = iter([0.0, 0.5, second])
    bar = progress.PromptBar(lambda: next(seconds))
    bar.show(1, 9, 0)
    bar.show(2, 9, 0)
    assert noted == ["start", "2: 2/9 tokens"] * shown
    bar.close()
    bar.close()
    assert noted.count("stop") == shown


def test_cached_tokens_say_nothing_of_the_speed(
    noted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bar, "update", lambda self, task, completed, said: noted.append(said))
    seconds = iter([0.0, 2.0, 4.0])
    bar = progress.PromptBar(lambda: next(seconds))
    bar.show(3000, 6233, 3000)
    bar.show(4000, 6233, 3000)
    assert noted == ["start", "4,000/6,233 tokens, 250 tokens/s, about 9 s left"]


def test_ctrl_c_during_a_prompt_ends_a_run(
    cli: Cli, fake: Callable[..., LLM], noted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = fake(steady)
    interrupted_at(llm, monkeypatch, 3)
    ran = cli("run", "ab" * 20, "--raw", "-n", "3")
    assert (ran.code, ran.out) == (130, "")
    assert ran.err == ""
    assert noted[-1] == "stop" and llm.runner.open_sequences == []


def test_what_a_chat_has_run_of_a_prompt_is_not_run_again(
    cli: Cli, fake: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = fake(steady)
    ran = interrupted_at(llm, monkeypatch, 3)
    text = "ab" * 40
    chat = cli("chat", "-n", "2", "--temp", "0", stdin=f"{text}\n{text}\n/history\n")
    assert (chat.code, chat.out) == (0, f"xx\nuser: {text}\nassistant: xx\n")
    assert "stopped: 24 tokens are kept, the same message goes on from there" in chat.err
    assert "prompt 18 tokens (24 cached)" in chat.err
    assert list(itertools.chain(*ran)) == llm.tokenizer.encode(f"{text}\nE"), "each token once"
    assert llm.runner.open_sequences == []
