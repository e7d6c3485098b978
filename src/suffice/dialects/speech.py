"""How one model speaks: its dialect, with the tokens that its marks are."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from suffice.dialects.dialect import Dialect, Spelling
from suffice.dialects.families import GENERIC, chosen
from suffice.dialects.grammar import CallGrammar
from suffice.dialects.reader import Reader
from suffice.errors import InputError

TAUGHT = ("hermes", "llama3")  # forms that a model is taught whose template has no tools


class Tokens(Protocol):
    """What a tokenizer has to say."""

    @property
    def chat_template(self) -> str | Mapping[str, str] | None:
        """The template, or several by name."""
        ...

    @property
    def tool_template(self) -> str | None:
        """The template for conversations with tools; None if it would not show them."""
        ...

    def whole(self) -> dict[str, int]:
        """Return the tokens that are kept whole in any text."""
        ...

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return a text's tokens."""
        ...


class Speech:
    """A model's dialect, as its chat template tells it or as it is asked for.

    Attributes:
        dialect: With the marks as they are published.
        taught: The form that a model is taught whose template has no tools; None if it has them.
    """

    def __init__(self, tokens: Tokens, *, thinking: str = "auto", calls: str = "auto") -> None:
        """Find the dialect.

        Raises:
            InputError: An unknown form is asked for, or one that cannot be taught.
        """
        source = tokens.chat_template
        template = source if source is None or isinstance(source, str) else source.get("default")
        with_tools = tokens.tool_template
        self.dialect = chosen(template, with_tools, thinking=thinking, calls=calls)
        self.taught: str | None = None
        if with_tools is None and not self.dialect.channels:
            self.taught = GENERIC if self.dialect.calls is None else self.dialect.calls.name
            if self.taught not in TAUGHT:
                raise InputError(
                    f"--tool-call-parser {calls}: the model's chat template takes no tools, and "
                    f"only {' and '.join(TAUGHT)} can be described to it"
                )
        self._tokens = tokens
        self._whole = tokens.whole()
        self._spelled: dict[bool, tuple[Spelling, Dialect]] = {}

    @property
    def thinks(self) -> bool:
        """Whether answers may have thinking."""
        return bool(self.dialect.thinking or self.dialect.channels)

    def _variant(self, *, calls: bool) -> tuple[Spelling, Dialect]:
        """Return the dialect, with or without calls, and how it is spelled."""
        if calls not in self._spelled:
            known = self.dialect
            own = known if calls else dataclasses.replace(known, calls=None)
            spelling = Spelling(own, self._whole)
            self._spelled[calls] = spelling, spelling.dialect(own)
        return self._spelled[calls]

    def marked(self, *, calls: bool) -> tuple[int, ...]:
        """Return the tokens that `reader` expects as characters: `marked_token_ids`."""
        return self._variant(calls=calls)[0].token_ids

    def reader(
        self, *, opened: bool, tools: Mapping[str, Any] | None, obliged: Sequence[str] = ()
    ) -> Reader:
        """Return the reader of an answer; see `Reader`."""
        _, dialect = self._variant(calls=tools is not None)
        return Reader(dialect, opened=opened, tools=tools, obliged=obliged)

    def opened(self, prompt: str, last: str | None = None) -> bool:
        """Whether a prompt ends within thinking; `last` is the message that it goes on with."""
        thinking = self.dialect.thinking
        if thinking is None:
            return False
        if last is not None and thinking.open in last:
            return last.rfind(thinking.open) > last.rfind(thinking.close)
        if prompt.rstrip().endswith(thinking.close.strip()):
            return False
        return thinking.always or prompt.rstrip().endswith(thinking.open.strip())

    def grammar(
        self, tools: Mapping[str, Any], options: Mapping[str, Any], *, several: bool
    ) -> str:
        """Return the grammar of calls that must be made, as Lark; `options` are of its JSON."""
        spelling, dialect = self._variant(calls=True)
        return CallGrammar(dialect, spelling.token_ids, options).text(tools, several=several)

    def framed(self, grammar: str) -> str:
        """Return the grammar of a whole answer whose text obeys a grammar of llguidance.

        It differs with channels alone: other thinking precedes what a grammar sees (see `limits`).
        """
        if not self.dialect.channels:
            return grammar
        spelling, dialect = self._variant(calls=False)
        return CallGrammar(dialect, spelling.token_ids, {}).final(grammar)

    def limits(
        self, *, opened: bool, budget: int | None
    ) -> tuple[bool, int | None, tuple[int, ...]] | None:
        """Return what precedes an answer that obeys a grammar, or whose thinking has a `budget`.

        That is whether it has begun, the token that opens it (None: none does), and those that
        close it. None if nothing does.

        Raises:
            InputError: The model's thinking can have no budget.
        """
        if budget is not None and not self.can_limit(opened=opened):
            raise InputError(
                "no token tells this model's thinking from its answer: no budget ends it"
            )
        thinking = self.dialect.thinking
        if thinking is None:
            return None
        return opened, self._whole.get(thinking.open), self._encoded(thinking.close)

    def can_limit(self, *, opened: bool) -> bool:
        """Whether a budget of thinking can be kept: it has begun, or a token begins it."""
        thinking = self.dialect.thinking
        return thinking is not None and (opened or thinking.open in self._whole)

    def marks_of_thinking(self) -> tuple[int, int] | None:
        """Return the tokens that begin and end thinking; None if marks are no tokens."""
        thinking = self.dialect.thinking
        if thinking is None or not {thinking.open, thinking.close} <= set(self._whole):
            return None
        return self._whole[thinking.open], self._whole[thinking.close]

    def _encoded(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokens.encode(text, special=False))


def switch(on: bool) -> dict[str, bool]:
    """Return what tells a chat template whether to think; families call it differently."""
    return {"enable_thinking": on, "thinking": on}


def check(thinking: str, calls: str) -> None:
    """Refuse names of unknown forms, before a model is loaded.

    Raises:
        InputError: One is unknown.
    """
    chosen(None, None, thinking=thinking, calls=calls)
