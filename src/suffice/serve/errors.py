"""The errors that the server answers: status, type, code and one line."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import msgspec

from suffice.errors import one_line
from suffice.sampling_params import SamplingParams

MOST_CHARACTERS = 600  # of a message

_TYPES = {
    "invalid_api_key": (401, "authentication_error"),
    "model_not_found": (404, "not_found_error"),
    "not_found": (404, "not_found_error"),
    "method_not_allowed": (405, "invalid_request_error"),
    "timeout": (408, "timeout_error"),
    "too_large": (413, "invalid_request_error"),
    "uri_too_long": (414, "invalid_request_error"),
    "unsupported_type": (415, "invalid_request_error"),
    "too_many_requests": (429, "rate_limit_error"),
    "headers_too_large": (431, "invalid_request_error"),
    "cancelled": (499, "cancelled_error"),
    "internal": (500, "server_error"),
    "engine_lost": (500, "server_error"),
    "load_failed": (500, "server_error"),
    "not_supported": (501, "not_supported_error"),
    "queue_full": (503, "overloaded_error"),
    "draining": (503, "overloaded_error"),
    "loading": (503, "overloaded_error"),
    "unhealthy": (503, "overloaded_error"),
    "no_memory": (503, "overloaded_error"),
    "deadline": (504, "timeout_error"),
}
_REPEATABLE = {"engine_lost": "true", "deadline": "false", "internal": "false", "timeout": "false"}

OLLAMA = "/api/"  # where Ollama's API is, whose errors are a text
MESSAGES = "/v1/messages"  # where Anthropic's API is, whose errors have a form of their own
RESPONSES = "/v1/responses"  # where the Responses API is, whose streams end with such a form
# Of that form: the types of codes that OpenAI calls otherwise.
_MESSAGES_TYPES = {
    "too_large": "request_too_large",
    "uri_too_long": "request_too_large",
    "headers_too_large": "request_too_large",
    "internal": "api_error",
    "engine_lost": "api_error",
}

_NAMED = re.compile(r"\w+")
_LEADING = re.compile(r"(\w+)(?:\[(\d+)\])?(?=[:=.])")  # a field that begins a message
_GRAMMAR = "the grammar "  # begins what is said of one
# The fields of the parameters that begin messages of the engine.
_PARAMS = {each.name: each.name for each in dataclasses.fields(SamplingParams)}
_PARAMS["prompt_token_ids"] = "prompt"


class Problem(Exception):  # noqa: N818 (it is what the client is told)
    """Why a request is not answered; `code` decides the status and the type.

    Attributes:
        param: The field of the request that is to blame.
        wait: Seconds after which the client may try again.
    """

    def __init__(
        self, code: str, message: str, *, param: str | None = None, wait: float | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status, self.type = _TYPES.get(code, (400, "invalid_request_error"))
        self.message = one_line(message, MOST_CHARACTERS)
        self.param = param if param is None else one_line(param, 100)
        self.wait = wait

    def body(self) -> dict[str, Any]:
        """Return the answer's body in OpenAI's form."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def messages_body(self) -> dict[str, Any]:
        """Return the answer's body in Anthropic's form."""
        error = self.body()["error"]
        own = _MESSAGES_TYPES.get(self.code, self.type)
        return {"type": "error", "error": {**error, "type": own}}

    def encoded(self, scope: MutableMapping[str, Any] | None = None) -> bytes:
        """Return the body as JSON, in the form of the API that a request's scope is of."""
        path = "" if scope is None else path_of(scope)
        if path.startswith(OLLAMA):
            return msgspec.json.encode({"error": self.message})
        own = path == MESSAGES or path.startswith(f"{MESSAGES}/")
        return msgspec.json.encode(self.messages_body() if own else self.body())

    def event(self, scope: MutableMapping[str, Any]) -> bytes:
        """Return what ends a stream that has begun, in the form of the API that it is of."""
        path = path_of(scope)
        if path.startswith(OLLAMA):
            return self.encoded(scope) + b"\n"
        if path == RESPONSES:
            own = {"type": "error", "code": self.code, "message": self.message, "param": self.param}
            return error_event(scope, msgspec.json.encode(own))
        return error_event(scope, self.encoded(scope))

    @property
    def cuts(self) -> bool:
        """Whether it ends the connection, since the request may not have come to its end."""
        return self.status in (408, 413, 414, 431) or self.code == "draining"

    def headers(self) -> Mapping[str, str]:
        """Return the headers that tell clients whether and when to try again."""
        found: dict[str, str] = {}
        if self.wait is not None:
            found["Retry-After"] = str(max(1, round(self.wait)))
        if self.code in _REPEATABLE:
            found["x-should-retry"] = _REPEATABLE[self.code]
        if self.code == "invalid_api_key":
            found["WWW-Authenticate"] = "Bearer"
        if self.cuts:
            found["Connection"] = "close"
        return found


def error_event(scope: MutableMapping[str, Any], body: bytes) -> bytes:
    """Return an error's body as an event, which has a name in some APIs."""
    head = b"event: error\n" if path_of(scope) in (MESSAGES, RESPONSES) else b""
    return head + b"data: " + body + b"\n\n"


def path_of(scope: MutableMapping[str, Any]) -> str:
    """Return a request's path, without that of a proxy."""
    path: str = scope["path"]
    return path.removeprefix(scope["root_path"])


def param_of(message: str) -> str | None:
    """Return the field that a message of the engine begins with, if it does."""
    name = _NAMED.match(message)
    return None if name is None else _PARAMS.get(name[0])


def of_engine(code: str, message: str, *, form: str | None, wait: float | None = None) -> Problem:
    """Return what the client is told of an error of the engine; see `_TYPES` for `code`.

    `form` is the field that gave the request's grammar.
    """
    param = param_of(message)
    message = renamed(message, _PARAMS)
    if code == "invalid_value" and message.startswith(_GRAMMAR):
        code, param = "invalid_schema", form
    return Problem(code, message, param=param, wait=wait)


def renamed(message: str, names: Mapping[str, str], *, before: int = 0) -> str:
    """Return a message with another API's name of the field that it begins with.

    `before` are the messages of a chat that are no entries of that field.
    """
    found = _LEADING.match(message)
    if found is None:
        return message
    at = "" if found[2] is None else f"[{int(found[2]) - before}]"
    return f"{names.get(found[1], found[1])}{at}{message[found.end() :]}"


@contextlib.contextmanager
def blamed(names: Mapping[str, str], *, before: int = 0) -> Iterator[None]:
    """Give the fields that errors blame the names of another API; see `renamed`."""
    try:
        yield
    except Problem as problem:
        own = before if problem.message.startswith("messages[") else 0
        problem.message = renamed(problem.message, names, before=own)
        problem.param = names.get(problem.param or "", problem.param)
        raise
