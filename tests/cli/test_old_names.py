"""Flags and commands that were renamed keep their old names until 0.3; help shows the new ones."""

from collections.abc import Callable
from typing import Any

import pytest

from commands import Cli
from suffice.cache.growth import Step
from suffice.cli.options import ModelFlags


def shown(help_text: str) -> set[str]:
    """Return the names that help describes: the first of each line."""
    return {name for line in help_text.splitlines() for name in line.replace(",", "").split()[:2]}


@pytest.mark.parametrize(
    ("command", "old", "new"),
    [
        (["run"], "--cache", "--growth"),
        (["info"], "--calibrate", "--measure"),
        (["quantize"], "--calibrate", "--text"),
        (["eval"], "speed", "latency"),
    ],
)
def test_help_shows_the_new_name_alone(cli: Cli, command: list[str], old: str, new: str) -> None:
    words = shown(cli(*command, "--help").out)
    assert new in words and old not in words


def test_cache_is_growth(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load(flags: ModelFlags, seed: int | None = None) -> None:
        asked.append(flags.config(seed).growth)
        raise KeyboardInterrupt

    monkeypatch.setattr(ModelFlags, "load", load)
    for flag in ("--cache", "--growth"):
        cli("run", "Hi", flag, "step:32")
    assert asked == [Step(32), Step(32)]


def test_calibrate_is_measure(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from suffice.cli import info

    monkeypatch.setattr(info, "measure", lambda: print("measured"))
    assert cli("info", "--calibrate").out == cli("info", "--measure").out == "measured\n"


def test_calibrate_is_the_text_that_quantize_reads(cli: Cli, tmp_path: Any) -> None:
    output = str(tmp_path / "out.safetensors")
    for flag in ("--calibrate", "--text"):
        ran = cli("quantize", flag, "no.txt", "-o", output)
        assert ran.code == 2 and "no.txt: cannot be read" in ran.err


def test_speed_is_latency(cli: Cli, fake: Callable[..., Any]) -> None:
    for command in ("speed", "latency"):
        ran = cli("eval", command, "--repetitions", "0")
        assert (ran.code, ran.err) == (2, "suffice: error: --repetitions=0: must be at least 1\n")
