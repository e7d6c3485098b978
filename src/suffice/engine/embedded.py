"""Embeddings as Python's callers ask for them and get them, with vLLM's names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffice.decoder.pooling import Pooling
from suffice.engine.inputs import text_of
from suffice.engine.request import Request
from suffice.errors import InputError


@dataclass(frozen=True)
class EmbeddingOutput:
    """A text's embedding."""

    embedding: list[float]


@dataclass(frozen=True)
class EmbeddingRequestOutput:
    """The embedding of a prompt.

    Attributes:
        prompt: Its text, with what stands before it; None if it was given as tokens.
        num_cached_tokens: Prompt tokens whose keys and values were cached already.
    """

    request_id: str
    outputs: EmbeddingOutput
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    num_cached_tokens: int = 0


def prefixed(pooling: Pooling, prompts: Sequence[Any], name: str | None) -> list[Any]:
    """Return prompts with the model's text before each that is text: that of a name, or its usual.

    Raises:
        InputError: There is none of that name, or a prompt is not text.
    """
    texts = [text_of(prompt) for prompt in prompts]
    if name is not None and None in texts:
        raise InputError("prompt_name: needs prompts that are text, not token ids")
    before = pooling.prompt(name)
    pairs = zip(prompts, texts, strict=True)
    return [prompt if text is None else before + text for prompt, text in pairs]


def result_of(request: Request) -> NDArray[np.float32]:
    """Return what was read off a request that has ended.

    Raises:
        InputError: Nothing was.
    """
    if request.reader is None or request.reader.result is None:
        raise InputError(request.error or "the prompt was not run to its end")
    return request.reader.result


def embedded(request: Request) -> EmbeddingRequestOutput:
    """Return the embedding of a request that has ended.

    Raises:
        InputError: It has none.
    """
    return EmbeddingRequestOutput(
        request.id,
        EmbeddingOutput(result_of(request).tolist()),
        request.prompt,
        tuple(request.tokens),
        request.cached,
    )
