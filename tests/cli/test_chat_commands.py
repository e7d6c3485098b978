"""The commands of `suffice chat`, messages of many lines, and files of conversations.

Also tests chat_input.py.
"""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from commands import Cli
from fake_engine import PIECES, V, scripted
from suffice.cli.chat_file import Talk, load, save
from suffice.cli.chat_settings import changed, settings
from suffice.cli.options import SamplingFlags
from suffice.engine.llm import LLM
from suffice.errors import InputError

Fake = Callable[..., LLM]


def always_x(history: list[int]) -> Any:
    return 10 * torch.nn.functional.one_hot(torch.tensor(PIECES.index("x")), V).float()


def talk(cli: Cli, *lines: str) -> tuple[str, list[str]]:
    """Return what a chat printed on standard output, and the lines on standard error."""
    ran = cli("chat", "-q", "-n", "2", "--temp", "0", stdin="".join(f"{line}\n" for line in lines))
    assert ran.code == 0
    return ran.out, ran.err.splitlines()[1:]


def prompts(llm: LLM) -> list[str]:
    """Return the tokens of each turn that were not cached and had to be run, as text."""
    return [llm.tokenizer.decode(tokens) for tokens in llm.runner.prefilled]


def test_a_message_of_many_lines(cli: Cli, fake: Fake) -> None:
    llm = fake(scripted())
    talk(cli, "ab\\", "cd")
    assert prompts(llm) == ["ab\ncd\nE"]
    llm = fake(scripted())
    talk(cli, '"""', "ab", "", "c", '"""', '"""x"""')
    assert prompts(llm)[0] == "ab\n\nc\nE"
    llm = fake(scripted())
    talk(cli, '"""ab', "c")  # the end of the input ends it
    assert prompts(llm) == ["ab\nc\nE"]


def test_undo_and_regen_run_only_what_the_cache_lacks(cli: Cli, fake: Fake) -> None:
    llm = fake(always_x)
    out, said = talk(cli, "ab", "d c", "/undo", "c", "/regen", "/history")
    assert "taken back: 1 turn left" in said
    assert any(line.startswith("with temp 0, or a seed") for line in said)
    history = out.splitlines()[-4:]
    assert history == ["user: ab", "assistant: xx", "user: c", "assistant: xx"]
    first, second, third, fourth = prompts(llm)
    assert first == "ab\nE" and second.endswith("d c\nE")
    # What the undone turn shares with the new one is in the cache still
    assert third == "c\nE", "the first turn was not run again"
    assert fourth == "E", "the question was not run again but for its end"


def test_nothing_to_answer_again_or_to_take_back(cli: Cli, fake: Fake) -> None:
    fake(scripted())
    out, said = talk(cli, "/regen", "/undo", "ab", "/regen now", "/history")
    assert "suffice: error: /regen: there is nothing to answer again" in said
    assert "suffice: error: /undo: there is nothing to take back" in said
    assert "suffice: error: /regen now: /regen takes nothing" in said
    assert "user: ab" in out


def test_system(cli: Cli, fake: Fake) -> None:
    llm = fake(scripted())
    _, said = talk(cli, "/system", "/system x", "ab", '/system ""', "c", "/reset", "/history")
    assert said[:2] == ["system prompt: none", "system prompt: x"]
    assert prompts(llm)[0] == "x\nab\nE"
    assert "system prompt: none" in said[2:]


def test_stats(cli: Cli, fake: Fake) -> None:
    fake(scripted())
    _, said = talk(cli, "/stats", "ab", "/stats")
    assert said[0] == "smollm2-135m: 0 turns, 0 of 64 tokens of context in the cache"
    assert said[1].startswith("smollm2-135m: 1 turn, ") and said[2].startswith("prompt 3 tokens")


def test_a_conversation_is_saved_and_goes_on(cli: Cli, fake: Fake, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    fake(scripted(3, 3, 3, 3))
    talk(cli, "/system x", "ab", f"/save {path}")
    stored = load(path)
    assert stored.system == "x" and stored.messages[0] == {"role": "user", "content": "ab"}
    assert sorted(tmp_path.iterdir()) == [path], "no part is left"
    assert path.stat().st_mode & 0o777 == 0o600, "nobody else reads it"
    llm = fake(scripted())
    out, said = talk(cli, f"/load {path}", "c", "/history")
    assert "loaded: 1 turn" in said
    answer = stored.messages[1]["content"]
    assert prompts(llm) == [f"x\nab\n{answer}\nc\nE"]
    assert "system: x\nuser: ab\n" in out


def test_the_cache_is_right_after_a_load(cli: Cli, fake: Fake, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    save(
        path, Talk(None, [{"role": "user", "content": "ab"}, {"role": "assistant", "content": ""}])
    )
    llm = fake(scripted())
    talk(cli, "ab", f"/load {path}", "c")
    assert prompts(llm) == ["ab\nE", "\nc\nE"], "what both talks begin with is in the cache"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "is no saved chat: it is not JSON"),
        ("[]", "is no saved chat: it does not say kind 'suffice chat'"),
        ('{"kind": "suffice chat", "schema": 7}', "has schema 7; 1 is known"),
        (
            '{"kind": "suffice chat", "schema": 1, "system": 3, "messages": []}',
            "'system' must be text or null",
        ),
        ('{"kind": "suffice chat", "schema": 1, "messages": 3}', "'messages' must be a list"),
        (
            '{"kind": "suffice chat", "schema": 1, "messages": [{"role": "user", "content": "a"}]}',
            "'messages' must end with the model's answer",
        ),
        (
            '{"kind": "suffice chat", "schema": 1, "messages": [{"role": "x"}, 3]}',
            "messages[0] must have the role 'user'",
        ),
        (
            '{"kind": "suffice chat", "schema": 1, "messages": [{"role": "user"}, 3]}',
            "messages[0] must have a text as its 'content'",
        ),
    ],
)
def test_files_that_are_no_chats(
    text: str, message: str, tmp_path: Path, cli: Cli, fake: Fake
) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        load(path)
    assert str(refused.value).endswith(message) and str(path) in str(refused.value)
    with pytest.raises(InputError, match="give another name"):
        save(path, Talk())
    assert path.read_text() == text, "what is there is not lost"
    fake(scripted())
    _, said = talk(cli, f"/load {path}", "ab")
    assert said[0].startswith("suffice: error: ")


def test_files_that_cannot_be_had(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        load(tmp_path / "no.json")
    with pytest.raises(InputError, match="cannot be written: No such file"):
        save(tmp_path / "no" / "x.json", Talk())
    (tmp_path / "there.json").mkdir()
    with pytest.raises(InputError, match="Is a directory"):
        save(tmp_path / "there.json", Talk())
    assert [path.name for path in tmp_path.iterdir()] == ["there.json"]


def test_settings(cli: Cli, fake: Fake) -> None:
    fake(always_x)
    out, said = talk(cli, "ab", "/set max_tokens 4", "cd", "/set", "/set tepm 1", "/set temp -3")
    assert out.splitlines() == ["xx", "xxxx"]
    assert said[0] == said[1] and said[1].startswith("n_predict 4, min_tokens 0, temp 0.0, top_k")
    assert said[2].startswith("suffice: error: unknown option 'tepm'. Did you mean 'temp'?")
    assert said[3] == "suffice: error: /set temp -3: must be a number of at least 0"


def test_every_sampling_option_can_be_set() -> None:
    sampling = SamplingFlags()
    for given in (
        "temp 0.5",
        "--top-k=7",
        "seed 3",
        "seed none",
        "stop x y",
        "stop none",
        "ignore_eos on",
        "repetition_penalty 1.1",
        "n-predict -1",
    ):
        sampling = changed(sampling, given)
    assert (sampling.temp, sampling.top_k, sampling.seed, sampling.stop) == (0.5, 7, None, None)
    assert sampling.ignore_eos and sampling.repeat_penalty == 1.1
    assert "stop 'x y'" in settings(changed(sampling, "stop x y"))
    for given, message in (
        ("temp", "/set temp: needs a value"),
        ("temp hot", "/set temp hot: must be a number"),
        ("top_k 1.5", "/set top_k 1.5: must be a whole number"),
        ("ignore_eos maybe", "/set ignore_eos maybe: must be on or off"),
        ("n_predict -3", "/set n_predict -3: must be a whole number of at least 1"),
        ("min_p 2", "/set min_p 2: must be a number in [0, 1]"),
    ):
        with pytest.raises(InputError) as refused:
            changed(sampling, given)
        assert str(refused.value).startswith(message)


def test_commands_without_what_they_need(cli: Cli, fake: Fake) -> None:
    fake(scripted())
    _, said = talk(cli, "/save", "/load", "/undoo", "/help")
    assert said[0] == "suffice: error: /save: needs a file, such as /save chat.json"
    assert said[1] == "suffice: error: /load: needs a file, such as /load chat.json"
    assert said[2].startswith("suffice: error: unknown command '/undoo'. Did you mean '/undo'?")
    assert len(said) == 3 + 13 and "/regen" in said[8]


TERMINAL = """
import json, sys
from suffice.cli.chat_input import Reader
reader = Reader(["/exit", "/reset"])
print("ready", flush=True)
while (typed := reader.read()) is not None:
    print("GOT", json.dumps([typed.text, typed.command]), flush=True)
"""


class Terminal:
    """The reader of a chat behind a pseudo terminal."""

    def __init__(self, term: str) -> None:
        self.master, slave = pty.openpty()
        environment = {**os.environ, "TERM": term, "INPUTRC": "/dev/null"}
        self.child = subprocess.Popen(
            [sys.executable, "-c", TERMINAL],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
        )
        os.close(slave)
        self.seen = ""
        self.wait("ready")
        self.wait("> ")

    def wait(self, text: str) -> None:
        """Read until a text has come."""
        limit = time.monotonic() + 60
        while text not in self.seen:
            assert time.monotonic() < limit, self.seen
            if select.select([self.master], [], [], 1)[0]:
                self.seen += os.read(self.master, 4096).decode()

    def type(self, text: str) -> list[object]:
        """Type, and return what the reader made of it."""
        self.seen = ""
        os.write(self.master, text.encode())
        self.wait("GOT ")
        self.wait("]\r\n")
        line = self.seen.split("GOT ")[1].split("\r\n")[0]
        self.seen = self.seen.split("GOT ")[1]
        self.wait("> ")
        found: list[object] = json.loads(line)
        return found

    def close(self) -> None:
        self.child.kill()
        self.child.wait()
        os.close(self.master)


def test_a_paste_is_one_message() -> None:
    terminal = Terminal("xterm")
    try:
        bracketed = "\x1b[200~/one\ntwo\n\nthree\x1b[201~\r"
        assert terminal.type(bracketed) == ["/one\ntwo\n\nthree", False]
        assert terminal.type("hello\r") == ["hello", False]
        assert terminal.type("/exit\r") == ["/exit", True]
    finally:
        terminal.close()


def test_lines_that_arrive_at_once_are_one_message() -> None:
    terminal = Terminal("dumb")  # which brackets nothing
    try:
        assert terminal.type("one\ntwo\nthree\n") == ["one\ntwo\nthree", False]
        assert terminal.type("/reset\n") == ["/reset", True]
        assert terminal.type("/set?\n") == ["/set?", True]
    finally:
        terminal.close()
