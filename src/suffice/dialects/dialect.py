"""What a family of models writes around its thinking and its calls of tools, as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from suffice.sampling_params import MOST_MARKED

if TYPE_CHECKING:
    from suffice.dialects.form import Form

# Characters that stand for marks which are tokens: Unicode reserves them for programs.
FIRST_SIGN, MOST_SIGNS = 0xFDD0, MOST_MARKED


@dataclass(frozen=True)
class Thinking:
    """The marks around thinking.

    Attributes:
        name: Also the name that `--reasoning-parser` takes.
        signs: Parts of a chat template that tell it, any of them.
        always: Whether an answer begins with thinking though neither it nor the prompt opens it.
    """

    name: str
    open: str
    close: str
    signs: tuple[str, ...] = ()
    always: bool = False


@dataclass(frozen=True)
class Calls:
    """How calls are written.

    Attributes:
        name: Also the name that `--tool-call-parser` takes.
        form: What stands between the marks of a call.
        begin: Precedes each call.
        end: Follows each call; "" if the form says where it ends.
        section: Stand around all calls.
        bare: Whether a text that begins like a call is one.
        between: Separates two calls, where something does.
        signs: Parts of a chat template that tell it, all of them.
    """

    name: str
    form: Form
    begin: str
    end: str = ""
    section: tuple[str, str] = ("", "")
    bare: bool = False
    between: str = ""
    signs: tuple[str, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks of a call."""
        return tuple(filter(None, (*self.section, self.begin, self.end, *self.form.marks)))


@dataclass(frozen=True)
class Dialect:
    """How thinking and calls are told from an answer.

    Attributes:
        thinking: None if it has no thinking.
        calls: None if it has no calls.
        dropped: Marks that say nothing else, such as those around an answer.
        channels: The seven marks of messages with channels (harmony), which say both of these.
    """

    thinking: Thinking | None = None
    calls: Calls | None = None
    dropped: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks, the longest first."""
        return tuple(sorted(set(self._marks()), key=lambda mark: (-len(mark), mark)))

    def _marks(self) -> Iterator[str]:
        yield from self.channels
        if self.thinking is not None:
            yield from (self.thinking.open, self.thinking.close)
        if self.calls is not None:
            yield from self.calls.marks
        yield from self.dropped


class Spelling:
    """How the marks of a dialect stand in a model's texts.

    A mark that is a token stands there as one character, its sign, so that the same letters in
    other tokens are no mark. A mark may hold such a token and other text.
    """

    def __init__(self, dialect: Dialect, tokens: Mapping[str, int]) -> None:
        """Find the marks; `tokens` are those of the model that are kept whole, by their text."""
        marks = dialect.marks
        found = sorted(
            {token for token in tokens if any(_marks(token, mark) for mark in marks)},
            key=lambda token: (-len(token), token),
        )[:MOST_SIGNS]
        self._signs = {token: chr(FIRST_SIGN + at) for at, token in enumerate(found)}
        self.token_ids = tuple(tokens[token] for token in found)

    def __call__(self, mark: str) -> str:
        """Return a mark as it stands in texts."""
        for token, sign in self._signs.items():
            mark = mark.replace(token, sign)
        return mark

    def dialect(self, given: Dialect) -> Dialect:
        """Return a dialect whose marks are spelled so."""
        return replace(
            given,
            thinking=self._spelled(given.thinking),
            calls=self._spelled(given.calls),
            dropped=tuple(map(self, given.dropped)),
            channels=tuple(map(self, given.channels)),
        )

    def _spelled(self, given: Any) -> Any:
        """Return an object with all its texts, but names and what tells it, spelled."""
        if isinstance(given, str):
            return self(given)
        if isinstance(given, tuple):
            return tuple(map(self._spelled, given))
        if not is_dataclass(given) or isinstance(given, type):
            return given
        kept = ("name", "signs", "pattern")
        own = {field.name: getattr(given, field.name) for field in fields(given)}
        found = {name: self._spelled(value) for name, value in own.items() if name not in kept}
        return replace(given, **found)


def _marks(token: str, mark: str) -> bool:
    """Whether a token is a mark or the telling part of one: not a line break or a quote in it."""
    return len(token.strip()) > 3 and token in mark and (token == mark or not token[0].isalnum())
