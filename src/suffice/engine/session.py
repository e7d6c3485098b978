"""Consecutive requests on one cache."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from suffice.engine import saved_rows
from suffice.engine.config import Config
from suffice.engine.loop import Loop
from suffice.engine.protocol import Runner
from suffice.engine.request import Request, RequestOutput
from suffice.engine.retained import CachedPrefix
from suffice.errors import InputError
from suffice.sampling_params import SamplingParams

if TYPE_CHECKING:
    from types import TracebackType

Message = Mapping[str, Any]
Stream = Generator[tuple[str, RequestOutput], None, None]


class Model(Protocol):
    """What a session needs of its `LLM`."""

    loop: Loop
    runner: Runner
    config: Config

    def rows_depend_on(self, adapter: str | None) -> dict[str, str]:
        """Return all that the bits of rows depend on, besides the tokens."""

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

    def save(self, path: str | os.PathLike[str], prompt: Sequence[int] | None = None) -> int:
        """Write the cache to a file, with which `load` goes on; return the number of its tokens.

        Left out are rows of answers that are not those that a prompt would have, and of models
        with states what follows the last that was kept; and, if a `prompt` is given, all that it
        does not begin with.

        Raises:
            InputError: There is nothing to save, the policy keeps no rows that others can use, or
                the file cannot be written.
        """
        depends_on = self._llm.rows_depend_on(self._adapter)
        with self._llm.loop.lock.turn():
            kept = self._kept
            if kept.sequence is None:
                raise InputError("nothing is in the cache yet: there is nothing to save")
            cache = kept.sequence.cache
            cache.keep_state()
            most = kept.clean if prompt is None else min(kept.clean, kept.shared(list(prompt)))
            count = int(cache.reachable(most))
            if not count:
                raise InputError("the cache has no rows that others can go on with")
            saved_rows.save(Path(path), cache, kept.tokens[:count], depends_on)
        return count

    def check_save(self, path: str | os.PathLike[str]) -> None:
        """Refuse what `save` would refuse whatever the cache has, before it is computed.

        Raises:
            InputError: The policy keeps no rows that others can use, or the file cannot be written.
        """
        self._llm.rows_depend_on(self._adapter)
        saved_rows.check(Path(path))

    def load(self, path: str | os.PathLike[str]) -> int:
        """Go on with a cache that `save` wrote; return the number of its tokens.

        Raises:
            InputError: The file cannot be read, is damaged, or of another model or other options.
        """
        depends_on = self._llm.rows_depend_on(self._adapter)
        runner, context = self._llm.runner, self._llm.config.max_model_len
        assert context is not None, "the config is resolved"
        with self._llm.loop.lock.turn():
            opened = partial(saved_rows.opened, runner, context, path)
            sequence, tokens = saved_rows.load(Path(path), depends_on, opened)
            self.close()
            self._kept = CachedPrefix(sequence, tokens, len(tokens))
        return len(tokens)

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
