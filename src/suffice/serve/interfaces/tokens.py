"""`POST /tokenize` and `POST /detokenize`, in vLLM's form, and with llama.cpp's names."""

from __future__ import annotations

from typing import Any

import msgspec
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from suffice.serve.errors import Problem
from suffice.serve.http.front import Front
from suffice.serve.http.text import Room
from suffice.serve.interfaces.fields import Objects, Tokens, checked, read_object


class Tokenize(BaseModel):
    """A text or a conversation."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: Objects | None = None
    add_special_tokens: bool = True
    add_special: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = False


class Detokenize(BaseModel):
    """Tokens."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: str | None = None
    tokens: Tokens


async def tokenize(front: Front, request: Request, raw: bytes, key: str) -> Response:
    """Return the tokens of a text or of a conversation.

    Raises:
        Problem: Neither or both are given, or the template refuses the conversation.
    """
    body = checked(read_object(raw), Tokenize)
    front.check_model(body.model)
    if body.content is not None and body.prompt is None:  # llama.cpp's names
        body.prompt = body.content
        body.add_special_tokens = bool(body.add_special)
    if (body.prompt is None) == (body.messages is None):
        raise Problem("invalid_value", "give either prompt or messages", param="prompt")
    text = front.text
    param = "prompt" if body.prompt is not None else "messages"
    room = Room(front.facts.max_model_len, param, apart=True)

    def run() -> list[int]:
        if body.prompt is not None:
            return text.encode(body.prompt, room, special=body.add_special_tokens)
        return text.chat(
            body.messages or [],
            room,
            add_generation_prompt=body.add_generation_prompt and not body.continue_final_message,
            continue_last=body.continue_final_message,
            facts=body.chat_template_kwargs,
        ).tokens

    tokens = await text.run(run, param)
    found: dict[str, Any] = {
        "count": len(tokens),
        "max_model_len": front.facts.max_model_len,
        "tokens": tokens,
        "token_strs": text.tokenizer.spelled(tokens) if body.return_token_strs else None,
    }
    return Response(msgspec.json.encode(found), media_type="application/json")


async def detokenize(front: Front, request: Request, raw: bytes, key: str) -> Response:
    """Return the text of tokens.

    Raises:
        Problem: One is not the model's.
    """
    body = checked(read_object(raw), Detokenize)
    front.check_model(body.model)
    most = front.facts.vocabulary
    if bad := [token for token in body.tokens if not 0 <= token < most]:
        shown = str(bad[0])[:20]
        message = f"tokens: {shown} is not a token id; this model's are 0 to {most - 1}"
        raise Problem("invalid_value", message, param="tokens")
    prompt = await front.text.run(lambda: front.text.tokenizer.decode(body.tokens), "tokens")
    return JSONResponse({"prompt": prompt, "content": prompt})
