"""The Python interface for asyncio: many coroutines share one model."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from suffice.engine.config import Config
from suffice.engine.embedded import EmbeddingRequestOutput, embedded, prefixed
from suffice.engine.llm import LLM
from suffice.engine.options import EngineOptions, takes_options
from suffice.engine.reading import Reading
from suffice.engine.request import Request, RequestOutput
from suffice.engine.service import Delta, Engine, Work
from suffice.sampling_params import SamplingParams

Message = Mapping[str, Any]


class AsyncLLM:
    """A model that generates text for many coroutines at a time.

    A result is the one that `LLM` gives, bit for bit, whatever else runs. Prompts that begin alike
    share the keys and values of their beginning. Use it as `async with`, or close it.
    """

    @takes_options(EngineOptions)
    def __init__(self, options: EngineOptions) -> None:
        """Load a model; see `EngineOptions` for the options.

        Raises:
            InputError: An unknown option, a bad value, or a model that cannot be used.
        """
        self._begin(LLM.of(Config.built(options)))

    @classmethod
    def over(cls, llm: LLM, **limits: Any) -> AsyncLLM:
        """Return one that shares a model with an `LLM`; `limits` are those of `Engine`."""
        made = cls.__new__(cls)
        made._begin(llm, **limits)
        return made

    def _begin(self, llm: LLM, **limits: Any) -> None:
        self.llm = llm
        self.engine = Engine(llm, **limits)
        self._numbers = itertools.count()

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams | None = None, **traits: Any
    ) -> RequestOutput:
        """Generate for one prompt, a text or token ids; `traits` are further fields of `Work`.

        If the coroutine is cancelled, so is the request.

        Raises:
            InputError: A bad prompt or parameter.
            Busy: Too many requests are waiting.
            Closed: The engine was closed.
        """
        started: list[Request] = []
        async for _ in self._deltas(prompt, sampling_params, traits, started):
            pass
        return started[0].output()

    async def stream(
        self, prompt: Any, sampling_params: SamplingParams | None = None, **traits: Any
    ) -> AsyncGenerator[Delta, None]:
        """Generate for one prompt; yield what each step gives each sample. See `generate`.

        With `progress=True`, deltas without tokens say before the first how far the prompt is.
        """
        deltas = self._deltas(prompt, sampling_params, traits, [])
        try:
            async for delta in deltas:
                yield delta
        finally:
            await deltas.aclose()

    async def embed(
        self,
        prompt: Any,
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        prompt_name: str | None = None,
        **traits: Any,
    ) -> EmbeddingRequestOutput:
        """Return the embedding of one prompt; see `LLM.embed` and `generate`.

        Raises:
            InputError: A bad prompt or option, or one that could not be embedded.
        """
        started: list[Request] = []
        (prompt,) = prefixed(self.llm.maker.pooling, [prompt], prompt_name)
        given = {**traits, "reading": Reading((), dimensions, normalize)}
        async for _ in self._deltas(prompt, None, given, started):
            pass
        return embedded(started[0])

    async def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        add_generation_prompt: bool = True,
        **traits: Any,
    ) -> RequestOutput:
        """Generate the next message of a conversation; see `LLM.chat` and `generate`."""
        tokens = await asyncio.to_thread(self.llm.chat_tokens, messages, add_generation_prompt)
        return await self.generate(tokens, sampling_params, **traits)

    async def _deltas(
        self,
        prompt: Any,
        params: SamplingParams | None,
        traits: Mapping[str, Any],
        started: list[Request],
    ) -> AsyncGenerator[Delta, None]:
        _, tokens = await asyncio.to_thread(self.llm.maker.tokens, prompt)
        name = f"async-{next(self._numbers)}"
        work = Work(name, tuple(tokens), params or SamplingParams(), **traits)
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[Delta]()

        def receive(delta: Delta) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and its reader with it
                loop.call_soon_threadsafe(queue.put_nowait, delta)

        started.append(self.engine.start(work, receive))
        try:
            final = None
            while final is None:
                delta = await queue.get()
                final = delta.final
                yield delta
        finally:
            self.engine.cancel(name)

    async def close(self) -> None:
        """End all requests, and the engine's thread."""
        await asyncio.to_thread(self.engine.close)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
