"""`suffice chat`: a conversation in the terminal, whose cache is kept from turn to turn."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from suffice.cli.answer import Answer
from suffice.cli.chat_file import Talk, load, save
from suffice.cli.chat_input import Reader
from suffice.cli.chat_rows import loaded, rows_of, saved
from suffice.cli.chat_settings import changed, settings
from suffice.cli.speaking import Speaker, check
from suffice.errors import InputError, check_text, unknown

if TYPE_CHECKING:
    from suffice.cli.options import SamplingFlags
    from suffice.engine.llm import LLM

START = "/help lists the commands, /exit or Ctrl-D leaves, Ctrl-C stops the answer"
COMMANDS = {
    "/save FILE": "write the conversation to a file (JSON), and its keys and values next to it",
    "/load FILE": "go on with a conversation from a file",
    "/set [OPTION VALUE]": "change a sampling option (temp, top_k, ...); alone: show them",
    "/system [TEXT]": 'change the system prompt; "" removes it; alone: show it',
    "/think [on|off|hide]": "show the model's thinking, ask for none, or hide it; alone: say which",
    "/regen": "answer the last message again",
    "/undo": "remove the last message and its answer",
    "/history": "show the conversation",
    "/stats": "show the last answer's summary, and how full the context is",
    "/reset": "start over",
    "/help": "show this",
    "/exit": "leave",
}
MULTILINE = 'many lines: end a line with \\, or put """ before and after, or paste them'


class Chat:
    """Reads the user's messages and commands, and prints the model's answers."""

    def __init__(
        self,
        llm: LLM,
        sampling: SamplingFlags,
        system: str | None,
        quiet: bool,
        model: str,
        adapter: str | None = None,
        think: str = "on",
    ) -> None:
        self._llm = llm
        self._speaker = Speaker(llm.tokenizer, think)
        self._adapter = adapter
        self._sampling = sampling
        self._params = sampling.params()
        self._quiet = quiet
        self._model = model
        self._system = system
        self._talk = Talk(system)
        self._summary = ""
        self._actions = {
            "/save": self._save,
            "/load": self._load,
            "/set": self._set,
            "/system": self._change_system,
            "/think": self._think,
            "/regen": self._regenerate,
            "/undo": self._undo,
            "/history": self._history,
            "/stats": self._stats,
            "/reset": self._reset,
            "/help": self._help,
        }

    def talk(self) -> None:
        """Talk until the user leaves."""
        reader = Reader([*self._actions, "/exit"])
        _say(START)
        with self._llm.session(self._adapter) as session:
            self._session = session
            while (typed := reader.read()) is not None:
                if typed.command and typed.text == "/exit":
                    break
                if typed.command:
                    self._command(typed.text)
                elif typed.text:
                    self._turn(typed.text)

    def _command(self, typed: str) -> None:
        name, _, rest = typed.partition(" ")
        try:
            if name not in self._actions:
                raise unknown("command", name, [*self._actions, "/exit"])
            self._actions[name](rest.strip())
        except InputError as error:
            _say(f"suffice: error: {error}")

    def _turn(self, text: str) -> None:
        """Answer once; a turn that cannot be answered is removed, and the chat goes on."""
        messages = self._talk.messages
        messages.append({"role": "user", "content": text})
        answer = Answer(self._llm, self._quiet)
        try:
            check_text("the message", text)
            prompt = self._llm.chat_text(self._talk.whole, True, self._speaker.facts)
            answer = Answer(self._llm, self._quiet, self._speaker.answer(prompt))
            tokens = self._llm.tokenizer.encode(prompt, special=False)
            answer.show(self._session.stream(tokens, self._speaker.params(self._params)))
        except InputError as error:
            messages.pop()
            _say(f"suffice: error: {error}; /reset starts over")
            return
        except KeyboardInterrupt:
            if not answer.text and not answer.thought:
                messages.pop()
                kept = len(self._session.tokens)
                said = f"stopped: {kept:,} tokens are kept, the same message goes on from there"
                _say(f"\n{said}" if kept else "")
                return
        finally:
            self._summary = answer.summary or self._summary
        # An interrupted answer stays part of the conversation, as far as it came.
        thought = {"reasoning_content": answer.thought} if answer.thought else {}
        messages.append({"role": "assistant", "content": answer.text, **thought})

    def _save(self, file: str) -> None:
        path = _path("/save", file)
        save(path, self._talk)
        _say(f"saved: {file}")
        if self._session.tokens:
            _say(saved(self._session, path, self._read_as()))

    def _read_as(self) -> list[int]:
        """Return the tokens of the conversation so far, as the model reads it."""
        if not self._talk.messages:
            return []
        text = self._llm.chat_text(self._talk.whole, False, self._speaker.facts)
        return self._llm.tokenizer.encode(text, special=False)

    def _load(self, file: str) -> None:
        path = _path("/load", file)
        self._talk = load(path)
        _say(f"loaded: {self._turns()}")
        if rows_of(path).exists():
            _say(loaded(self._session, path))

    def _set(self, given: str) -> None:
        if given:
            self._sampling = changed(self._sampling, given)
            self._params = self._sampling.params()
        _say(settings(self._sampling))

    def _change_system(self, text: str) -> None:
        check_text("the system prompt", text)
        if text:
            self._talk.system = None if text == '""' else text
        _say(f"system prompt: {self._talk.system or 'none'}")

    def _think(self, text: str) -> None:
        if text:
            check(text)
            self._speaker.think = text
        _say(f"thinking: {self._speaker.think}")

    def _regenerate(self, rest: str) -> None:
        _nothing("/regen", rest)
        if not self._talk.messages:
            raise InputError("/regen: there is nothing to answer again")
        *self._talk.messages, asked, answered = self._talk.messages
        before = len(self._talk.messages)
        if self._params.greedy or self._params.seed is not None:
            _say("with temp 0, or a seed, the answer is the same: /set changes them")
        self._turn(asked["content"])
        if len(self._talk.messages) == before:  # without a new answer the old one stays
            self._talk.messages += [asked, answered]

    def _undo(self, rest: str) -> None:
        _nothing("/undo", rest)
        if not self._talk.messages:
            raise InputError("/undo: there is nothing to take back")
        del self._talk.messages[-2:]
        _say(f"taken back: {self._turns()} left")

    def _history(self, rest: str) -> None:
        _nothing("/history", rest)
        for message in self._talk.whole:
            print(f"{message['role']}: {message['content']}")

    def _stats(self, rest: str) -> None:
        _nothing("/stats", rest)
        used, context = len(self._session.tokens), self._llm.config.max_model_len
        _say(f"{self._model}: {self._turns()}, {used} of {context} tokens of context in the cache")
        if self._summary:
            _say(self._summary)

    def _reset(self, rest: str) -> None:
        _nothing("/reset", rest)
        self._talk = Talk(self._system)
        _say("starting over")

    def _help(self, rest: str) -> None:
        _nothing("/help", rest)
        for name, does in COMMANDS.items():
            _say(f"{name:20} {does}")
        _say(MULTILINE)

    def _turns(self) -> str:
        count = len(self._talk.messages) // 2
        return f"{count} turn{'' if count == 1 else 's'}"


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _path(command: str, file: str) -> Path:
    if not file:
        raise InputError(f"{command}: needs a file, such as {command} chat.json")
    return Path(file).expanduser()


def _nothing(command: str, rest: str) -> None:
    if rest:
        raise InputError(f"{command} {rest}: {command} takes nothing")
