"""`suffice chat`, on an engine without a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from commands import SUMMARY, Cli, complaint
from fake_engine import scripted
from suffice.engine.llm import LLM


def one_hot(token: int) -> Any:
    import torch

    from fake_engine import V

    return torch.nn.functional.one_hot(torch.tensor(token), V).float()


def test_keeps_its_cache_from_turn_to_turn(cli: Cli, fake: Callable[..., LLM]) -> None:
    llm = fake()
    ran = cli("chat", "-n", "3", "--temp", "0", stdin="ab\ncd\n")
    assert ran.code == 0
    first, second = [found[0] for found in SUMMARY.finditer(ran.err)]
    assert "cached" not in first and "cached" in second
    assert "weights float32" in first and "weights" not in second
    encode = llm.tokenizer.encode
    assert llm.runner.prefilled[0] == encode("ab\nE")
    assert llm.runner.open_sequences == []


def test_commands(cli: Cli, fake: Callable[..., LLM]) -> None:
    llm = fake(scripted())
    ran = cli("chat", stdin="ab\n/reset\n\n/rest\n/help\ncd\n/exit\nx\n")
    assert ran.code == 0
    assert "suffice: error: unknown command '/rest'. Did you mean '/reset'?" in ran.err
    encode = llm.tokenizer.encode
    # The E that both prompts end with is run again, as is what follows the reset.
    assert llm.runner.prefilled == [encode("ab\nE"), encode("cd\nE")]


def test_a_turn_that_does_not_fit_is_taken_back(cli: Cli, fake: Callable[..., LLM]) -> None:
    llm = fake(scripted())
    ran = cli("chat", stdin=f"{'x' * 70}\nab\n")
    assert ran.code == 0
    assert "suffice: error: the prompt has 72 tokens: must be at most 63" in ran.err
    assert llm.runner.prefilled == [llm.tokenizer.encode("ab\nE")]


def test_ctrl_c_stops_the_answer_only(cli: Cli, fake: Callable[..., LLM]) -> None:
    llm = fake(lambda history: 10 * one_hot(8))
    llm.runner.interrupt_after = 2
    ran = cli("chat", "-n", "5", "--temp", "0", stdin="ab\ncd\n")
    assert (ran.code, ran.out) == (0, "xxx\nxxxxx\n")
    assert llm.runner.open_sequences == []


def test_ctrl_c_before_the_first_token_takes_the_turn_back(
    cli: Cli, fake: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = fake(scripted())
    prefill, seen = llm.runner.prefill, []

    def interrupted(sequence: Any, tokens: list[int]) -> Any:
        seen.append(tokens)
        if len(seen) == 1:
            raise KeyboardInterrupt
        return prefill(sequence, tokens)

    monkeypatch.setattr(llm.runner, "prefill", interrupted)
    ran = cli("chat", stdin="ab\ncd\n")
    assert ran.code == 0
    assert seen == [llm.tokenizer.encode(text) for text in ("ab\nE", "cd\nE")]
    assert llm.runner.open_sequences == []


def test_needs_a_template(cli: Cli, fake: Callable[..., LLM]) -> None:
    fake(scripted(), template=False)
    message = complaint(cli("chat", "-m", "fake"))
    assert message == "fake has no chat template: use `suffice run`"
