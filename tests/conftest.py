"""Fixtures that several folders of tests share."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commands import Cli, Ran


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path) -> Cli:
    """Run `main` in this process, with an empty cache folder and no SUFFICE_ variables."""
    for name in [name for name in os.environ if name.startswith("SUFFICE_")]:
        if name != "SUFFICE_ISA":
            monkeypatch.delenv(name)
    monkeypatch.setenv("SUFFICE_CACHE", str(tmp_path / "empty-cache"))

    from suffice.cli import main

    def run(*arguments: str, stdin: str = "") -> Ran:
        monkeypatch.setattr(sys, "argv", ["suffice", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as left:
            main()
        return Ran(left.value.code or 0, *capsys.readouterr())

    return run


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Make the command line use an engine without a model."""

    def use(*arguments: Any, template: bool = True) -> Any:
        from engine.fake_engine import fake_llm
        from suffice.cli_options import ModelFlags
        from suffice.trace import Trace

        llm = fake_llm(*arguments)
        monkeypatch.setattr(llm.runner, "trace", Trace(), raising=False)
        monkeypatch.setattr(llm.runner, "weight_bytes", 3 << 20, raising=False)
        monkeypatch.setattr(llm.tokenizer, "has_chat_template", template, raising=False)
        monkeypatch.setattr(ModelFlags, "load", lambda self, seed=None: llm)
        return llm

    return use


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a tokenizer and room for many tokens."""
    import tiny

    folder = tmp_path_factory.mktemp("checkpoint")
    return tiny.make(folder, "llama", tokenizer=True, max_position_embeddings=200_000)
