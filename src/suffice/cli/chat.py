"""A conversation in the terminal, on a cache that is kept from turn to turn."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from suffice.cli.answer import Answer
from suffice.errors import InputError, unknown

if TYPE_CHECKING:
    from suffice.engine.llm import LLM, Session
    from suffice.sampling_params import SamplingParams

HELP = "/reset starts over, /exit or Ctrl-D leaves, Ctrl-C stops the answer"
COMMANDS = ("/exit", "/help", "/reset")


class Chat:
    """Reads what the user types, prints what the model answers."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None, quiet: bool) -> None:
        self._llm = llm
        self._params = params
        self._quiet = quiet
        self._start = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._start)

    def talk(self) -> None:
        """Talk until the user leaves."""
        print(HELP, file=sys.stderr)
        with self._llm.session() as session:
            while (typed := self._read()) is not None:
                if typed.startswith("/"):
                    if typed == "/exit":
                        break
                    self._command(typed)
                elif typed:
                    self._turn(session, typed)

    def _command(self, typed: str) -> None:
        if typed == "/reset":
            self._messages = list(self._start)
            print("starting over", file=sys.stderr)
        elif typed == "/help":
            print(HELP, file=sys.stderr)
        else:
            print(f"suffice: error: {unknown('command', typed, COMMANDS)}", file=sys.stderr)

    def _turn(self, session: Session, typed: str) -> None:
        """Answer once; a turn that cannot be answered is taken back and the talk goes on."""
        self._messages.append({"role": "user", "content": typed})
        answer = Answer(self._llm, self._quiet)
        try:
            answer.show(session.chat(self._messages, self._params))
        except InputError as error:
            self._messages.pop()
            print(f"suffice: error: {error}; /reset starts over", file=sys.stderr)
            return
        except KeyboardInterrupt:
            if not answer.text:
                self._messages.pop()
                print(file=sys.stderr)
                return
        # An answer that was interrupted stays part of the conversation, as far as it came.
        self._messages.append({"role": "assistant", "content": answer.text})

    def _read(self) -> str | None:
        """Return what was typed, None at the end of the input."""
        if sys.stdin is None:
            raise InputError("standard input is closed: there is nobody to talk with")
        if not sys.stdin.isatty():
            line = sys.stdin.readline()
            return line.strip() if line else None
        import readline  # noqa: F401 (gives input() a history and editing)

        try:
            return input("> ").strip()
        except EOFError:
            print(file=sys.stderr)
            return None
        except KeyboardInterrupt:
            print(file=sys.stderr)
            return ""
