"""How one model speaks: its dialect, with the tokens that its marks are."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from suffice.dialects.dialect import Dialect, Spelling
from suffice.dialects.families import GENERIC, chosen
from suffice.dialects.grammar import AnswerGrammar, Held
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
        self,
        *,
        opened: bool,
        tools: Mapping[str, Any] | None,
        held: Held | None = None,
        several: bool = True,
    ) -> Reader:
        """Return the reader of an answer whose calls are held to `held`; see `Reader`."""
        _, dialect = self._variant(calls=tools is not None)
        obliged = tuple(held.schemas) if held is not None and held.must else ()
        return Reader(
            dialect,
            opened=opened,
            tools=tools,
            obliged=obliged,
            held=held is not None,
            several=several,
        )

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

    def grammar(self, held: Held | None, form: str | None, *, opened: bool) -> str | None:
        """Return llguidance's grammar of a whole answer; None if nothing holds it.

        `held` are the tools that calls are held to, and `form` is the grammar of an answer's text.
        `opened` says that the prompt has begun the thinking. Thinking that tokens tell from the
        answer is no part of the grammar: it precedes it (see `limits`).
        """
        if held is None and form is None:
            return None
        spelling, dialect = self._variant(calls=held is not None)
        whole = self._whole.values()
        writer = AnswerGrammar(dialect, spelling.token_ids, whole, opened=opened)
        return writer.text(held, form)

    def limits(
        self, *, opened: bool, budget: int | None, grammar: bool
    ) -> tuple[bool, int | None, tuple[int, ...], int | None, bool] | None:
        """Return what must be known of thinking that has a `budget`, or comes before a grammar.

        That is whether it has begun, the token that opens it (None: none does), those that close
        it, the budget (None: it has none), and whether the grammar describes the thinking as well.
        None if nothing must be known. `grammar` says that the answer obeys one.

        Raises:
            InputError: The model's thinking can have no budget.
        """
        if budget is not None and not self.can_limit(opened=opened):
            raise InputError(
                "no token tells this model's thinking from its answer: no budget ends it"
            )
        thinking = self.dialect.thinking
        if thinking is None or (budget is None and not grammar):
            return None
        within = thinking.close not in self._whole
        if within and budget is None:
            return None
        opening = self._whole.get(thinking.open)
        return opened, opening, self._encoded(thinking.close), budget, within

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
