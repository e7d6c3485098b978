"""Embeddings by OpenAI's API, and by those of Ollama and llama.cpp."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from suffice.engine.reading import Reading
from suffice.errors import InputError
from suffice.serve.errors import Problem, blamed
from suffice.serve.http.front import Front, Job
from suffice.serve.interfaces.completion import split
from suffice.serve.interfaces.costs import costs
from suffice.serve.interfaces.fields import (
    FIRST_FAULT,
    Shared,
    Texts,
    Tokens,
    checked,
    parsed,
    read_object,
)
from suffice.serve.interfaces.ollama_request import keep, named, options_of
from suffice.serve.interfaces.reading import MOST, answer, counts, read
from suffice.serve.interfaces.requests import Ask, room

Vectors = list[NDArray[np.float32]]
_MS = 1_000_000  # nanoseconds
_EACH = 20  # characters that take as long as a text of none
_NORMS = {-1: False, 2: True}  # llama.cpp's numbers of norms that are here


class Embeddings(Shared):
    """The fields of a request for embeddings."""

    input: str | Tokens | Texts | Annotated[list[Tokens], FIRST_FAULT]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)
    normalize: bool | None = None
    prompt_name: str | None = None
    instruction: str | None = None
    add_special_tokens: bool = True


class Embed(BaseModel):
    """The fields of `/api/embed`."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: str
    input: str | Texts = Field(default_factory=list)
    truncate: bool = True
    dimensions: int | None = Field(None, ge=1)
    options: dict[str, Any] | None = None
    keep_alive: str | int | float | None = None


class OldEmbed(BaseModel):
    """The fields of `/api/embeddings`."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: str
    prompt: str = ""
    options: dict[str, Any] | None = None
    keep_alive: str | int | float | None = None


class Embedding(BaseModel):
    """The fields of `/embedding`."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: str | None = None
    content: str | Tokens | Texts | Annotated[list[Tokens], FIRST_FAULT]
    embd_normalize: int = 2


async def create(front: Front, request: Request, raw: bytes, key: str) -> Response:
    """Answer with the embeddings of texts or tokens.

    Raises:
        Problem: They cannot be embedded.
    """
    body = parsed(raw, Embeddings, allow_unknown=front.settings.allow_unknown_fields)
    model = front.check_model(body.model)
    job, vectors = await _embedded(front, request, body, key, "embd")
    whole = body.encoding_format == "float"
    data = [
        {
            "object": "embedding",
            "index": at,
            "embedding": vector.tolist() if whole else base64.b64encode(vector.tobytes()).decode(),
        }
        for at, vector in enumerate(vectors)
    ]
    return answer(job, {"object": "list", "data": data, "model": model, "usage": counts(job)})


async def _embedded(
    front: Front, request: Request, body: Embeddings, key: str, prefix: str, *, cut: bool = False
) -> tuple[Job, Vectors]:
    """Return the embeddings that a request asks for; `cut` leaves out the end of long texts."""
    given = split(body.input, "input", MOST)
    before = _before(front, body, given)
    size = sum(len(each) + _EACH for each in given if isinstance(each, str))
    reading = Reading((), body.dimensions, body.normalize)
    most, text = replace(room(front, body, "input"), apart=cut), front.text

    def encode() -> list[Ask]:
        found = [
            text.encode(before + each, most, special=body.add_special_tokens)
            if isinstance(each, str)
            else each
            for each in given
        ]
        ends = text.tokenizer.encode("")[-1:]
        return [(_begun(each, most.tokens - 1, ends) if cut else each, reading) for each in found]

    with front.job(prefix, key, body.request_id) as job:
        asks = await text.run(encode, "input", size)
        return job, await read(front, request, job, body, asks, "input")


def _begun(tokens: list[int], most: int, ends: list[int]) -> list[int]:
    """Return the first tokens of a text, with the special one at its end, if it `ends` so."""
    if len(tokens) <= most:
        return tokens
    own = ends if tokens[-1:] == ends else []
    return tokens[: most - len(own)] + own


def _before(front: Front, body: Embeddings, given: Sequence[str | list[int]]) -> str:
    """Return the text that stands before each one.

    Raises:
        Problem: It is asked for in two ways, is unknown, or there are tokens, which have none.
    """
    asked = [name for name in ("prompt_name", "instruction") if getattr(body, name) is not None]
    if len(asked) > 1:
        message = "prompt_name and instruction contradict each other: give one"
        raise Problem("invalid_value", message, param="instruction")
    if asked and not all(isinstance(each, str) for each in given):
        message = f"{asked[0]}: needs an input that is text"
        raise Problem("invalid_value", message, param=asked[0])
    if body.instruction is not None:
        return body.instruction
    try:
        return front.pooling.prompt(body.prompt_name)
    except InputError as error:
        raise Problem("invalid_value", str(error), param="prompt_name") from None


async def embed(front: Front, request: Request, raw: bytes, key: str) -> Response:
    """Answer with the embeddings of texts, as Ollama does.

    Raises:
        Problem: They cannot be embedded.
    """
    body = checked(read_object(raw), Embed, allow_unknown=front.settings.allow_unknown_fields)
    keep(front, body.keep_alive)
    options_of(front, body.options or {})
    model = named(front, body.model)
    if not body.input:  # loads the model, which is here
        return JSONResponse({"model": model, "embeddings": []})
    fields = {"model": model, "input": body.input, "dimensions": body.dimensions}
    asked = checked(fields, Embeddings)
    job, vectors = await _embedded(front, request, asked, key, "api", cut=body.truncate)
    load = int(1000 * _MS * job.waited)
    spent = int(_MS * costs(job)["timings"]["prompt_ms"])
    return answer(
        job,
        {
            "model": model,
            "embeddings": [vector.tolist() for vector in vectors],
            "total_duration": load + spent,
            "load_duration": load,
            "prompt_eval_count": counts(job)["prompt_tokens"],
        },
    )


async def old_embed(front: Front, request: Request, raw: bytes, key: str) -> Response:
    """Answer with the embedding of one text, as Ollama's older path does.

    Raises:
        Problem: It cannot be embedded.
    """
    body = checked(read_object(raw), OldEmbed, allow_unknown=front.settings.allow_unknown_fields)
    keep(front, body.keep_alive)
    options_of(front, body.options or {})
    model = named(front, body.model)
    if not body.prompt:
        return JSONResponse({"embedding": []})
    asked = checked({"model": model, "input": body.prompt}, Embeddings)
    with blamed({"input": "prompt"}):
        job, (vector,) = await _embedded(front, request, asked, key, "api", cut=True)
    return answer(job, {"embedding": vector.tolist()})


async def embedding(front: Front, request: Request, raw: bytes, key: str) -> Response:
    """Answer with embeddings as llama.cpp does.

    Raises:
        Problem: They cannot be embedded, or the norm is another one.
    """
    body = checked(read_object(raw), Embedding, allow_unknown=front.settings.allow_unknown_fields)
    if body.embd_normalize not in _NORMS:
        message = f"embd_normalize={body.embd_normalize}: must be -1 (none) or 2 (Euclidean)"
        raise Problem("unsupported", message, param="embd_normalize")
    norm = _NORMS[body.embd_normalize]
    fields = {"model": body.model, "input": body.content, "normalize": norm}
    with blamed({"input": "content"}):
        job, vectors = await _embedded(front, request, checked(fields, Embeddings), key, "embd")
    found = [{"index": at, "embedding": [each.tolist()]} for at, each in enumerate(vectors)]
    return answer(job, found)
