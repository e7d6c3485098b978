"""Messages between the server's process and the engine's, in MessagePack.

A message is preceded by its length, 4 bytes, and each direction has one kind of union. The engine
sends one `Step` for all that a step gave, and a `Beat` at least every second.
"""

from __future__ import annotations

import struct
from typing import Any, Literal

import msgspec

from suffice.engine.reading import Reading
from suffice.engine.thinking import Thinking
from suffice.engine.work import Delta, Look, RowsFile
from suffice.errors import InputError, OptionError, one_line

LENGTH = struct.Struct("<I")


class Start(msgspec.Struct, tag="start", frozen=True):
    """The engine's options and its limits as a server's engine; the first message.

    `cpus` are the processors that it may use; empty for all. It loads the model after `Load`.
    """

    factory: str
    options: dict[str, Any]
    limits: dict[str, Any] = {}
    cpus: tuple[int, ...] = ()


class Load(msgspec.Struct, tag="load", frozen=True):
    """It is the engine's turn to load the model: no other packs it into the same memory."""


class Submit(msgspec.Struct, tag="submit", frozen=True, omit_defaults=True):
    """A request; `known` are the tokens that its samples have emitted before the engine's death.

    `grammar` is the grammar that the samples follow, in llguidance's JSON or Lark form. `progress`
    asks for deltas that say how far the prompt is.
    """

    id: str
    prompt: list[int]
    params: dict[str, Any]
    priority: int = 0
    key: str = ""
    deadline: float | None = None
    attention: str | None = None
    adapter: str | None = None
    reuse: bool = True
    keeps: bool = False
    group: str = ""
    known: list[list[int]] = []
    grammar: str | None = None
    thinking: Thinking | None = None
    progress: bool = False
    reading: Reading | None = None
    file: RowsFile | None = None


class Cancel(msgspec.Struct, tag="cancel", frozen=True):
    """End a request; an unknown one is no error."""

    id: str


class Watch(msgspec.Struct, tag="watch", frozen=True):
    """Send looks at the engine from now on, or no more."""

    on: bool


class Facts(msgspec.Struct, tag="ready", frozen=True):
    """What the server has to know of the model; the engine's first message.

    `fingerprint` tells apart what may give other texts: models and options. `stamp` is of the
    model's files.
    """

    max_model_len: int
    vocabulary: int
    max_num_seqs: int
    fingerprint: str = ""
    stamp: str = ""
    weight_bytes: int = 0
    attentions: tuple[str, ...] = ("exact",)  # the first is the engine's own
    pooling: dict[str, Any] = msgspec.field(default_factory=lambda: {"size": 1})  # `Pooling.plain`


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """The engine could not start: its options are to blame.

    Attributes:
        message: Why, in a line.
        option: Of the option that is, if one alone is: what `OptionError` is made of.
    """

    message: str
    option: tuple[str, str | int | float | None, str, str] | None = None

    @classmethod
    def of(cls, error: InputError) -> Failed:
        """Return the message of an error."""
        message, option = one_line(error), None
        if isinstance(error, OptionError):
            value = error.value
            plain = value if value is None or isinstance(value, str | int | float) else str(value)
            option = (error.option, plain, error.must, error.none)
        return cls(message, option)

    def error(self) -> InputError:
        """Return the error again."""
        return InputError(self.message) if self.option is None else OptionError(*self.option)


class Step(msgspec.Struct, tag="step", frozen=True):
    """What requests got since the last message."""

    deltas: list[Delta]


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """A request that the engine did not take."""

    id: str
    kind: Literal["input", "busy", "closed", "bug"]
    message: str
    wait: float = 1.0


class Beat(msgspec.Struct, tag="beat", frozen=True):
    """The engine's state.

    `step_tokens` are the tokens of each step since the last message of this kind.
    """

    stats: dict[str, Any]
    step_tokens: list[int] = []


class Seen(msgspec.Struct, tag="seen", frozen=True):
    """A look at the engine, while somebody watches."""

    look: Look


Down = Start | Load | Submit | Cancel | Watch
Up = Facts | Failed | Step | Refused | Beat | Seen

_encoder = msgspec.msgpack.Encoder()
_down: msgspec.msgpack.Decoder[Down] = msgspec.msgpack.Decoder(Down)
_up: msgspec.msgpack.Decoder[Up] = msgspec.msgpack.Decoder(Up)


def frame(message: Down | Up) -> bytes:
    """Return a message as it is sent."""
    body = _encoder.encode(message)
    return LENGTH.pack(len(body)) + body


def read_down(body: bytes) -> Down:
    """Read a message to the engine."""
    return _down.decode(body)


def read_up(body: bytes) -> Up:
    """Read a message of the engine."""
    return _up.decode(body)
