"""Consecutive requests on one cache."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from suffice.engine.loop import Loop
from suffice.engine.protocol import Runner
from suffice.engine.request import CachedPrefix, Request, RequestOutput
from suffice.sampling_params import SamplingParams

if TYPE_CHECKING:
    from types import TracebackType

Message = Mapping[str, Any]
Stream = Generator[tuple[str, RequestOutput], None, None]


class Model(Protocol):
    """What a session needs of its `LLM`."""

    loop: Loop
    runner: Runner

    def chat_tokens(self, messages: Any) -> list[int]:
        """Return a conversation's tokens."""

    def _one(
        self,
        prompt: Any,
        params: SamplingParams | None,
        kept: CachedPrefix | None,
        adapter: str | None = None,
    ) -> Request: ...

    def _stream(self, request: Request) -> Stream: ...


class Session:
    """Consecutive requests on one cache, such as the turns of a chat.

    The longest prefix that a new prompt shares with the cached tokens is not run again;
    `RequestOutput.num_cached_tokens` is its length.
    """

    def __init__(self, llm: Model, adapter: str | None = None) -> None:
        self._llm = llm
        self._adapter = adapter
        self._kept = CachedPrefix()

    @property
    def tokens(self) -> list[int]:
        """The tokens whose keys and values the cache holds."""
        return list(self._kept.tokens)

    def stream(self, prompt: Any, sampling_params: SamplingParams | None = None) -> Stream:
        """Generate for one prompt; see `LLM.stream`."""
        request = self._llm._one(prompt, sampling_params, self._kept, self._adapter)
        return self._llm._stream(request)

    def chat(
        self, messages: Sequence[Message], sampling_params: SamplingParams | None = None
    ) -> Stream:
        """Generate the next message of a conversation; see `LLM.stream`."""
        return self.stream(self._llm.chat_tokens(messages), sampling_params)

    def close(self) -> None:
        """Free the cache; the session can go on with an empty one."""
        with self._llm.loop.lock.turn():
            if self._kept.sequence is not None:
                self._llm.runner.close(self._kept.sequence)
            self._kept = CachedPrefix()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
