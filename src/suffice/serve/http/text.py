"""Text to tokens and back, in workers, so that a long prompt stops nobody's stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from suffice.dialects.speech import Speech
from suffice.errors import InputError
from suffice.serve.errors import Problem
from suffice.serve.http.talk import talk_of
from suffice.serve.http.tool_prompt import taught
from suffice.text.text_bound import BYTE_LETTERS
from suffice.text.tokenizer import Tokenizer

Result = TypeVar("Result")
WORKERS = 2
SHORT = 1000  # characters: a text that is no longer has its tokens sooner than a worker would begin
MOST_APART = 1 << 20  # bytes or characters of a text that need not fit the context


@dataclass(frozen=True)
class Room:
    """How much text a request may have.

    Attributes:
        tokens: Of the context.
        param: The field of the text.
        apart: Whether the text need not fit the context: it is cut to its last tokens, or counted.
    """

    tokens: int
    param: str
    apart: bool = False


class Prompt(NamedTuple):
    """A conversation's tokens; `thinking` says that it ends within the model's thinking."""

    tokens: list[int]
    thinking: bool


class Text:
    """A model's tokenizer, chat template and dialect."""

    def __init__(self, tokenizer: Tokenizer, thinking: str = "auto", calls: str = "auto") -> None:
        """Take a tokenizer; for the dialect see `Speech`.

        Raises:
            InputError: The dialect asked for is unknown, or cannot be taught.
        """
        self.tokenizer = tokenizer
        self.speech = Speech(tokenizer, thinking=thinking, calls=calls)
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="text")
        self._bound = tokenizer.text_bound()
        self._byte_level = "Ġ" in "".join(tokenizer.vocabulary())

    def close(self) -> None:
        """End the workers."""
        self._workers.shutdown(wait=False, cancel_futures=True)

    async def run(self, work: Callable[[], Result], param: str, size: int = SHORT + 1) -> Result:
        """Return what `work` gives, in a worker unless it is for a short text, by its `size`.

        Raises:
            Problem: It raised `InputError`; `param` is the field to blame.
        """
        try:
            return work() if size <= SHORT else await self.elsewhere(work)
        except InputError as error:
            raise Problem("invalid_value", str(error), param=param) from None

    async def elsewhere(self, work: Callable[[], Result]) -> Result:
        """Return what `work` gives in a worker, with its errors."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, work)

    def encode(self, text: str, room: Room, *, special: bool) -> list[int]:
        """Return a text's tokens.

        Raises:
            Problem: By its length alone it has too many tokens; to make them would take seconds.
        """
        if self._bound is not None:
            size, unit, longest = self._bound.length(text), self._bound.unit, self._bound.longest
            most = max(room.tokens * longest, MOST_APART if room.apart else 0)
            if size > most:
                message = (
                    f"the prompt has {size} {unit}: must be at most {most}; the context has "
                    f"{room.tokens} tokens, none of more than {longest} {unit}"
                )
                raise Problem("context_length_exceeded", message, param=room.param)
        return self.tokenizer.encode(text, special=special)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        room: Room,
        *,
        add_generation_prompt: bool = True,
        continue_last: bool = False,
        facts: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """Return a conversation's tokens; a template that takes no tools is given them as text.

        Raises:
            Problem: There are more messages or there is more text than the context has tokens for.
        """
        text = self.shown(
            messages,
            room,
            add_generation_prompt=add_generation_prompt,
            continue_last=continue_last,
            facts=facts,
        )
        last = str(messages[-1].get("content") or "") if continue_last else None
        opened = self.speech.opened(text, last) and (add_generation_prompt or continue_last)
        return Prompt(self.encode(text, room, special=False), opened)

    def shown(
        self,
        messages: Sequence[Mapping[str, Any]],
        room: Room,
        *,
        add_generation_prompt: bool = True,
        continue_last: bool = False,
        facts: Mapping[str, Any] | None = None,
    ) -> str:
        """Return a conversation as text; see `chat`."""
        if len(messages) > room.tokens:
            message = (
                f"{len(messages)} messages given: must be at most {room.tokens}, the tokens of the "
                "context"
            )
            raise Problem("context_length_exceeded", message, param=room.param)
        talk = talk_of(messages, self.tokenizer.chat_template)
        if self.speech.taught is not None:
            talk = taught(talk, (facts or {}).get("tools"), self.speech.taught)
        text = self.tokenizer.chat_text(
            talk,
            add_generation_prompt=add_generation_prompt,
            continue_last=continue_last,
            facts=facts,
        )
        return text

    def token_bytes(self, token: int, text: str) -> list[int]:
        """Return a token's bytes; `text` is its text, which may be half a character."""
        (spelled,) = self.tokenizer.spelled([token])
        if spelled is None:
            return list(text.encode())
        if self._byte_level and all(letter in BYTE_LETTERS for letter in spelled):
            return [BYTE_LETTERS[letter] for letter in spelled]
        if len(spelled) == 6 and spelled.startswith("<0x") and spelled.endswith(">"):
            return [int(spelled[3:5], 16)]
        return list(text.encode())
