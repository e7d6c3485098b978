"""Tells a model's thinking from its answer in a terminal."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

from suffice.dialects.speech import Speech, switch
from suffice.errors import unknown

if TYPE_CHECKING:
    from suffice.dialects.reader import Part
    from suffice.engine.protocol import Tokenizer
    from suffice.sampling_params import SamplingParams

THINK = ("on", "off", "hide")
_DIM, _PLAIN = "\x1b[2m", "\x1b[22m"


def check(think: str) -> None:
    """Refuse another word than those of `THINK`.

    Raises:
        InputError: It is another one.
    """
    if think not in THINK:
        raise unknown("--think", think, THINK)


class Speaker:
    """A model's way to speak, and what a terminal shows of it.

    `think`: "on" shows thinking, on standard error, dimmed in a terminal; "hide" does not; "off"
    asks the model's template for none.
    """

    def __init__(self, tokenizer: Tokenizer, think: str = "on") -> None:
        self._speech = Speech(tokenizer)
        self.think = think

    @property
    def facts(self) -> dict[str, Any]:
        """What the template is told."""
        return switch(False) if self.think == "off" else {}

    def params(self, params: SamplingParams) -> SamplingParams:
        """Return parameters whose texts the reader of an answer can read."""
        if not self._speech.thinks:
            return params
        return dataclasses.replace(params, marked_token_ids=self._speech.marked(calls=False))

    def answer(self, prompt: str) -> Spoken | None:
        """Return what reads the answer to a prompt; None if the model's answers are texts alone."""
        if not self._speech.thinks:
            return None
        opened = self._speech.opened(prompt)
        return Spoken(self._speech, opened=opened, shown=self.think != "hide")


class Spoken:
    """Reads one answer and prints it.

    Attributes:
        text: The answer so far; `thought` is what the model thought before it.
    """

    def __init__(self, speech: Speech, *, opened: bool, shown: bool) -> None:
        self.text = self.thought = ""
        self._reader = speech.reader(opened=opened, tools=None)
        self._shown = shown
        self._dimmed = False

    def push(self, text: str, *, last: bool) -> None:
        """Print what has become certain."""
        for part in self._reader.push(text, last=last):
            self._print(part)
        if last:
            self._dim(on=False)
        sys.stdout.flush()

    def _print(self, part: Part) -> None:
        if part.kind == "thinking":
            self.thought += part.text
            if self._shown:
                self._dim(on=True)
                sys.stderr.write(part.text)
                sys.stderr.flush()
            return
        self._dim(on=False)
        self.text += part.text
        sys.stdout.write(part.text)

    def _dim(self, *, on: bool) -> None:
        """Begin or end dimmed text; a blank line ends it."""
        if on == self._dimmed:
            return
        self._dimmed = on
        mark = _DIM if on else _PLAIN
        sys.stderr.write(f"{mark if sys.stderr.isatty() else ''}{'' if on else chr(10) * 2}")
        sys.stderr.flush()
