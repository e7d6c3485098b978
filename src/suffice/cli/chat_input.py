"""Reads a chat's input: messages of one line or several, and commands.

A message has several lines if a line ends with a backslash, if it stands between two lines of three
quotes, or if it was pasted. A terminal that brackets pastes delivers each as a whole. On others,
lines that arrive together form one message, unless the first is a command.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass

from suffice.errors import InputError

QUOTES = '"""'
PROMPT, MORE = "> ", "... "
_PASTE_SECONDS = 0.03  # longest wait for the next line of a paste


@dataclass(frozen=True)
class Typed:
    """A message or a command; a command begins with / and is one line."""

    text: str
    command: bool = False


class Reader:
    """Reads from the terminal, or from standard input line by line."""

    def __init__(self, commands: Collection[str]) -> None:
        if sys.stdin is None:
            raise InputError("standard input is closed: there is nobody to talk with")
        self._commands = commands
        self._terminal = sys.stdin.isatty()
        self._line: Callable[[str], str] = input if self._terminal else _piped
        if self._terminal:
            import readline

            if "libedit" not in (readline.__doc__ or ""):
                readline.parse_and_bind("set enable-bracketed-paste on")

    def read(self) -> Typed | None:
        """Return the next input, None at its end; Ctrl-C drops an unfinished message."""
        try:
            first = self._line(PROMPT)
        except EOFError:
            if self._terminal:
                print(file=sys.stderr)
            return None
        except KeyboardInterrupt:
            print(file=sys.stderr)
            return Typed("")
        try:
            return self._whole(first)
        except KeyboardInterrupt:
            print(file=sys.stderr)
            return Typed("")

    def _whole(self, first: str) -> Typed:
        if first.split(" ")[0].strip() in self._commands:
            return Typed(first.strip(), command=True)
        lines = [first, *self._pending()]
        if lines[0].lstrip().startswith(QUOTES):
            return Typed(self._quoted(lines))
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            try:
                lines += [self._line(MORE), *self._pending()]
            except EOFError:
                break
        text = "\n".join(lines).strip()
        return Typed(text, command=text.startswith("/") and "\n" not in text)

    def _quoted(self, lines: list[str]) -> str:
        """Return the text up to the closing quotes or the end of the input."""
        text = "\n".join(lines).lstrip().removeprefix(QUOTES)
        while QUOTES not in text:
            try:
                text += "\n" + self._line(MORE)
            except EOFError:
                break
        inside, _, after = text.partition(QUOTES)
        return (inside.strip("\n") + after).rstrip()

    def _pending(self) -> list[str]:
        """Return the lines that arrived together with the last one."""
        lines: list[str] = []
        while self._terminal and select.select([sys.stdin], [], [], _PASTE_SECONDS)[0]:
            try:
                lines.append(self._line(MORE))
            except EOFError:
                break
        return lines


def _piped(prompt: str) -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")
