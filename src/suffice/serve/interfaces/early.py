"""What is wrong with a request by itself, told before its model is loaded; its route says the same.

What needs the model, such as its context, is checked once that is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from pydantic import BaseModel

from suffice.errors import InputError
from suffice.serve.errors import Problem, blamed
from suffice.serve.http.front import Front
from suffice.serve.http.talk import shaped
from suffice.serve.interfaces import (
    chat,
    completion,
    embeddings,
    llama_cpp,
    message_request,
    messages,
    ollama,
    ollama_request,
    response_request,
    responses,
)
from suffice.serve.interfaces.fields import Fields, parsed, read_object, sampling


def checked(path: str, kind: type[BaseModel], front: Front, raw: bytes) -> BaseModel:
    """Return the body of a request to a path, whose fields are of a `kind`.

    Raises:
        Problem: Something is wrong with it.
    """
    check = _CHECKS.get(path)
    if check is not None:
        return check(front, raw)
    return parsed(raw, kind, allow_unknown=front.settings.allow_unknown_fields)


def _sampled(front: Front, body: Fields) -> None:
    front.check_model(body.model)
    most = body.max_tokens
    sampling(body, front.settings.default_sampling, max_tokens=most, seed=0)


def _talk(front: Front, body: chat.Chat) -> chat.Chat:
    chat.check_chat(body)
    chat.tools_of(body)
    try:
        shaped(body.messages)
    except InputError as error:
        raise Problem("invalid_value", str(error), param="messages") from None
    _sampled(front, body)
    return body


def _chat(front: Front, raw: bytes) -> BaseModel:
    allow = front.settings.allow_unknown_fields
    return _talk(front, parsed(raw, chat.Chat, allow_unknown=allow))


def _completed(front: Front, body: completion.Completion) -> BaseModel:
    completion.check(body)
    _sampled(front, body)
    return body


def _completion(front: Front, raw: bytes) -> BaseModel:
    allow = front.settings.allow_unknown_fields
    return _completed(front, parsed(raw, completion.Completion, allow_unknown=allow))


def _responses(front: Front, raw: bytes) -> BaseModel:
    body = response_request.read(raw, allow_unknown=front.settings.allow_unknown_fields)
    if body.previous_response_id is None:
        with blamed(responses.NAMES, before=body.instructions is not None):
            _talk(front, response_request.chat_of(body)[0])
    return body


def _messages(kind: type[message_request.Messages], front: Front, raw: bytes) -> BaseModel:
    body = message_request.read(raw, kind, allow_unknown=front.settings.allow_unknown_fields)
    with blamed(messages.NAMES, before=body.system is not None):
        _talk(front, message_request.chat_of(body))
    return body


def _ollama(
    kind: type[ollama_request.Talk | ollama_request.Generate], front: Front, raw: bytes
) -> BaseModel:
    body = parsed(raw, kind, allow_unknown=front.settings.allow_unknown_fields)
    ollama_request.seconds_of(body.keep_alive)
    with blamed(ollama.NAMES):
        if body.asks:
            _talk(front, ollama_request.chat_of(front, body))
    return body


def _embeds(
    kind: type[embeddings.Embed | embeddings.OldEmbed], front: Front, raw: bytes
) -> BaseModel:
    body = parsed(raw, kind, allow_unknown=front.settings.allow_unknown_fields)
    ollama_request.seconds_of(body.keep_alive)
    ollama_request.options_of(front, body.options or {})
    return body


def _continued(front: Front, raw: bytes) -> BaseModel:
    with blamed(llama_cpp.NAMES):
        return _completed(front, llama_cpp.completion_of(front, read_object(raw)))


def _filled_in(front: Front, raw: bytes) -> BaseModel:
    with blamed(llama_cpp.NAMES):
        return _completed(front, llama_cpp.completion_of(front, llama_cpp.filled_in(raw)))


_CHECKS: Mapping[str, Callable[[Front, bytes], BaseModel]] = {
    "/v1/chat/completions": _chat,
    "/v1/completions": _completion,
    "/v1/responses": _responses,
    "/v1/responses/input_tokens": _responses,
    "/v1/messages": partial(_messages, message_request.Create),
    "/v1/messages/count_tokens": partial(_messages, message_request.Messages),
    "/api/chat": partial(_ollama, ollama_request.Talk),
    "/api/generate": partial(_ollama, ollama_request.Generate),
    "/api/embed": partial(_embeds, embeddings.Embed),
    "/api/embeddings": partial(_embeds, embeddings.OldEmbed),
    "/completion": _continued,
    "/infill": _filled_in,
}
