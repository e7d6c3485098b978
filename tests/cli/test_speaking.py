"""Thinking in a terminal: cli/speaking.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import speaking
from suffice.cli.speaking import Speaker, Spoken, check
from suffice.dialects.speech import Speech
from suffice.errors import InputError
from suffice.sampling_params import SamplingParams
from suffice.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speaking.make(tmp_path_factory.mktemp("thinker"), "deepseek_r1")


@pytest.fixture(scope="module")
def tokenizer(thinker: Path) -> Tokenizer:
    return load_tokenizer(thinker)


def spelled(tokenizer: Tokenizer, text: str) -> str:
    """Return a text as the engine gives it with marked tokens."""
    params = Speaker(tokenizer).params(SamplingParams())
    decoder = tokenizer.stream(marked=params.marked_token_ids or ())
    tokens = tokenizer.encode(text, special=False)
    return "".join(map(decoder.push, tokens)) + decoder.flush()


@pytest.mark.parametrize("think", ["on", "hide"])
def test_thinking_goes_to_standard_error(tokenizer: Tokenizer, think: str, capsys: Any) -> None:
    speaker = Speaker(tokenizer, think)
    spoken = speaker.answer("...<think>\n")
    assert spoken is not None
    for piece in spelled(tokenizer, "Hm.</think>\n\nYes."):
        spoken.push(piece, last=False)
    spoken.push("", last=True)
    shown = capsys.readouterr()
    assert (spoken.text, spoken.thought) == ("Yes.", "Hm.")
    assert shown.out == "Yes."
    assert shown.err == ("Hm.\n\n" if think == "on" else "")


def test_thinking_that_never_ends_leaves_nothing_dimmed(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    spoken = Spoken(Speech(tokenizer), opened=True, shown=True)
    spoken.push("Hm.", last=True)
    assert capsys.readouterr().err == "\x1b[2mHm.\x1b[22m\n\n"


def test_what_the_template_is_told(tokenizer: Tokenizer) -> None:
    assert Speaker(tokenizer).facts == Speaker(tokenizer, "hide").facts == {}
    assert Speaker(tokenizer, "off").facts["enable_thinking"] is False
    with pytest.raises(InputError, match=r"unknown --think 'of'.* Did you mean 'off'"):
        check("of")


def test_a_model_that_does_not_think_needs_no_reader(words_tokenizer: Tokenizer) -> None:
    speaker = Speaker(words_tokenizer)
    params = SamplingParams()
    assert speaker.answer("hello") is None and speaker.params(params) is params


@pytest.fixture(scope="module")
def words_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    import tiny

    folder = tmp_path_factory.mktemp("words")
    return load_tokenizer(tiny.make(folder, "llama", tokenizer=True))


def test_run_keeps_thinking_out_of_its_output(thinker: Path, cli: Callable[..., Any]) -> None:
    asked = ("run", "-m", str(thinker), "hello", "-n", "12", "--temp", "0", "-q")
    shown, hidden, raw = cli(*asked), cli(*asked, "--think", "hide"), cli(*asked, "--raw")
    assert shown.code == hidden.code == raw.code == 0
    assert shown.out == hidden.out == "\n", "a random model never stops thinking"
    assert len(shown.err) > len(hidden.err) and raw.out.strip()
    bad = cli(*asked, "--think", "loud")
    assert bad.code == 2 and "unknown --think 'loud'" in bad.err


def test_chat_changes_it(thinker: Path, cli: Callable[..., Any]) -> None:
    typed = "\n".join(["/think", "/think hide", "hello", "/think x", "/exit"])
    ran = cli("chat", "-m", str(thinker), "-n", "3", "-q", stdin=f"{typed}\n")
    assert ran.code == 0
    for part in ("thinking: on", "thinking: hide", "unknown --think 'x'"):
        assert part in ran.err
