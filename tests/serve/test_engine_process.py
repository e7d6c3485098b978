"""The engine's process: what it does while a grammar is compiled. Tests engine_process.py."""

from __future__ import annotations

import socket
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from scripted_engine import ScriptedEngine
from suffice.errors import InputError, SufficeWarning
from suffice.serve.processes import engine_process, wire
from suffice.serve.processes.hosted import Opened


class Process:
    """The engine's process as a thread; grammars are compiled once `may_compile` is set."""

    def __init__(self) -> None:
        self.may_compile = threading.Event()
        self.link, self.other = socket.socketpair()
        self.link.settimeout(20)
        facts = wire.Facts(512, 300, 16, "fp", 1)
        opened = Opened(ScriptedEngine({}), facts, self.compiled)
        self.thread = threading.Thread(target=engine_process.serve, args=(self.other, opened))
        self.thread.start()

    def compiled(self, text: str) -> Any:
        assert self.may_compile.wait(60)
        if text == "bad":
            raise InputError("the grammar is bad")
        return None

    def submit(self, name: str, grammar: str | None) -> None:
        params = {"max_tokens": 3, "seed": 1}
        self.link.sendall(wire.frame(wire.Submit(name, [1, 2], params, grammar=grammar)))

    def ends(self, count: int) -> dict[str, str]:
        """Return how the next requests ended, by id."""
        found: dict[str, str] = {}
        while len(found) < count:
            body = engine_process.received(self.link)
            assert body is not None
            message = wire.read_up(body)
            if isinstance(message, wire.Refused):
                found[message.id] = message.message
            if isinstance(message, wire.Step):
                ended = [each for each in message.deltas if each.final is not None]
                found |= {each.id: str(each.finish_reason) for each in ended}
        return found


@pytest.fixture
def process() -> Iterator[Process]:
    made = Process()
    yield made
    made.may_compile.set()
    made.link.close()
    made.thread.join(60)
    made.other.close()
    assert not made.thread.is_alive()


def test_nobody_waits_for_anothers_grammar(process: Process) -> None:
    process.submit("slow", "x")
    process.submit("other", None)
    assert process.ends(1) == {"other": "length"}
    process.may_compile.set()
    assert process.ends(1) == {"slow": "length"}


def test_a_request_is_cancelled_while_its_grammar_is_compiled(process: Process) -> None:
    process.submit("slow", "x")
    process.submit("behind", "x")
    for name in ("slow", "behind"):
        process.link.sendall(wire.frame(wire.Cancel(name)))
    assert process.ends(2) == {"slow": "abort", "behind": "abort"}
    process.may_compile.set()
    process.submit("next", "x")
    assert process.ends(1) == {"next": "length"}, "the cancelled ones give no more"


def test_a_bad_grammar_is_refused(process: Process) -> None:
    process.may_compile.set()
    process.submit("a", "bad")
    assert process.ends(1) == {"a": "the grammar is bad"}


def test_a_warning_of_an_engine_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def begin(link: socket.socket) -> None:
        warnings.warn("this is slow", SufficeWarning, stacklevel=1)

    monkeypatch.setattr(engine_process, "begin", begin)
    monkeypatch.setattr(engine_process.signal, "signal", lambda *given: None)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # to be restored
    ours, theirs = socket.socketpair()
    with ours:
        engine_process.main([str(theirs.detach())])
    assert capfd.readouterr().err == "suffice: warning: this is slow\n"
