"""The fields that requests share, those that are ignored, and those refused by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec
from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError

from suffice.errors import InputError, OptionError, brief, nearest, one_line
from suffice.sampling_params import SamplingParams
from suffice.serve.errors import Problem, param_of
from suffice.serve.interfaces.names import MOST_SHOWN, settle

Body = TypeVar("Body", bound=BaseModel)
MOST_FAULTS = 5  # faults that an error names
MOST_BIASES = 100_000
# OpenAI's limit is 2; vLLM has none, and min_p is used with 3 to 5. More than this is a mistake.
MOST_TEMPERATURE = 100
MOST_ENTRIES, MOST_NUMBERS = 1 << 16, 1 << 20  # of a list: of texts and objects, of numbers
_DIGITS = bytes(ord("0") if chr(byte).isdigit() and byte < 128 else 0 for byte in range(256))
_PLACE = re.compile(r" - at `.*`$")  # which msgspec adds, without the names of fields
_LONG_NUMBER = b"0" * 19  # once all digits are 0; no regular expression is as fast


class FirstFault(FailFast):
    """Ends a list's check at its first fault: a million of them must not take seconds."""

    __hash__ = object.__hash__  # which a union needs


FIRST_FAULT = FirstFault()
Texts = Annotated[list[str], FIRST_FAULT]
Tokens = Annotated[list[int], FIRST_FAULT]
Objects = Annotated[list[dict[str, Any]], FIRST_FAULT]


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False


class Extras(BaseModel):
    """`suffice`: what only this server offers."""

    model_config = ConfigDict(extra="forbid")
    attention: str | None = Field(default=None, max_length=200)


class Shared(BaseModel):
    """The fields that all requests to the engine share."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    priority: int = Field(0, ge=-(2**31), lt=2**31)
    request_id: str | None = Field(None, pattern=r"^[!-~]{1,128}$")
    truncate_prompt_tokens: int | None = Field(None, ge=-1)
    cache_prompt: bool = True
    cache_salt: str | None = Field(None, max_length=256)
    suffice: Extras = Field(default_factory=Extras)

    @property
    def least_tokens(self) -> int:
        """The tokens that must be left in the context after the prompt."""
        return 1


class Fields(Shared):
    """The fields that all generating endpoints share."""

    n: int | None = Field(None, ge=1, le=128)
    seed: int | None = None
    stop: str | Texts | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, le=MOST_TEMPERATURE)
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    stop_token_ids: Tokens | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    skip_special_tokens: bool | None = None
    allowed_token_ids: Tokens | None = None
    bad_words: Texts | None = None
    return_token_ids: bool | None = False
    return_progress: bool | None = False
    id_slot: int = Field(-1, ge=-1)

    @property
    def least_tokens(self) -> int:
        """See `Shared`."""
        return max(1, self.min_tokens or 0)


SAMPLING = frozenset(
    {
        *("seed", "temperature", "top_p", "top_k", "min_p", "frequency_penalty"),
        *("presence_penalty", "repetition_penalty", "logit_bias", "stop_token_ids", "stop"),
        *("include_stop_str_in_output", "ignore_eos", "min_tokens", "skip_special_tokens"),
        *("allowed_token_ids", "bad_words"),
    }
)


def parsed(raw: bytes, kind: type[Body], *, allow_unknown: bool = False) -> Body:
    """Return a request's body, checked.

    Raises:
        Problem: It is not JSON, not an object, or a field is unknown, refused or of another type.
    """
    return checked(read_object(raw), kind, allow_unknown=allow_unknown)


def read_object(raw: bytes) -> dict[str, Any]:
    """Return the JSON object of a body.

    Raises:
        Problem: It is not JSON, or not an object.
    """
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        why = "is nested too deeply" if isinstance(error, RecursionError) else one_line(error, 120)
        why = _PLACE.sub("", why)
        if not isinstance(error, RecursionError):
            why = _no_text(raw) or why
        raise Problem("invalid_json", f"the body is not JSON: {why}") from None
    if _LONG_NUMBER in raw.translate(_DIGITS) and _is_large(found):
        fields = found.items() if isinstance(found, dict) else ()
        name = next((one_line(name, 60) for name, value in fields if _is_large(value)), None)
        message = f"{name or 'the body'}: a whole number does not fit into 64 bits"
        raise Problem("invalid_value", message, param=name)
    if not isinstance(found, dict):
        message = f"the body must be a JSON object, not {json_kind(found)}"
        raise Problem("invalid_json", message)
    return found


def json_kind(value: Any) -> str:
    """Return what a JSON value is, in words."""
    return "null" if value is None else _KINDS.get(type(value), "another value")


def _no_text(raw: bytes) -> str:
    """Return where a body is no UTF-8; the parser counts from the beginning of a text in it."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return f"0x{raw[error.start]:02x} is not valid UTF-8 (byte {error.start})"
    return ""


def _is_large(value: Any) -> bool:
    """Whether a number in a JSON value is beyond what messages can carry."""
    todo = [value]
    while todo:
        each = todo.pop()
        if isinstance(each, int) and not -(2**63) <= each < 2**64:
            return True
        if isinstance(each, list):
            todo += each
        elif isinstance(each, dict):
            todo += each.values()
    return False


def checked(given: dict[str, Any], kind: type[Body], *, allow_unknown: bool = False) -> Body:
    """Return the fields of a JSON object, checked; one that is null is as if it were not given.

    Raises:
        Problem: A field is unknown, refused or of another type.
    """
    settle(given, kind.model_fields, allow_unknown=allow_unknown)
    for name, value in given.items():
        if isinstance(value, list):
            _check_length(name, value)
    bias = given.get("logit_bias")
    if isinstance(bias, dict) and len(bias) > MOST_BIASES:
        message = f"logit_bias: {len(bias)} tokens; at most {MOST_BIASES} are allowed"
        raise Problem("invalid_value", message, param="logit_bias")
    given = {name: value for name, value in given.items() if value is not None}
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise _fault(error, given, kind) from None


def _check_length(name: str, value: list[Any]) -> None:
    """Refuse a list that would take long to check: all streams would wait for it."""
    numbers = [each for each in value[:1] if isinstance(each, int)]
    most = MOST_NUMBERS if numbers else MOST_ENTRIES
    if len(value) > most:
        message = f"{name}: a list of {len(value)}; at most {most} are allowed"
        raise Problem("invalid_value", message, param=name)


def _fault(error: ValidationError, given: dict[str, Any], kind: type[BaseModel]) -> Problem:
    faults = error.errors(include_url=False, include_context=False, include_input=True)
    lines = list(dict.fromkeys(_line(fault, given, kind) for fault in faults[:MOST_FAULTS]))
    more = f"; {len(faults) - MOST_FAULTS} more" if len(faults) > MOST_FAULTS else ""
    code = "unknown_field" if faults[0]["type"] == "extra_forbidden" else "invalid_value"
    param = one_line(faults[0]["loc"][0], 60) if faults[0]["loc"] else None
    return Problem(code, "; ".join(lines) + more, param=param)


def _line(fault: Any, given: dict[str, Any], kind: type[BaseModel]) -> str:
    """Return one fault: what was given, and what is allowed."""
    where = ".".join(one_line(part, 40) for part in fault["loc"]) or "body"
    if fault["type"] == "missing":
        return f"{where}: is required"
    if fault["type"] == "extra_forbidden":
        where = where[:MOST_SHOWN]
        return f"unknown field '{where}'.{nearest(where, _known(kind, fault['loc']))}"
    if (found := _several(given, kind, fault["loc"])) is not None:
        return found
    message = one_line(fault["msg"], 100).partition(", not ")[0]
    message = message.partition(" after validation")[0].replace("List should", "must")
    if fault["type"] in ("model_type", "model_attributes_type", "dict_type"):
        message = "must be an object"
    return f"{where}: {message}, not {brief(fault.get('input'))}"[:MOST_SHOWN]


def _known(kind: type[BaseModel], path: Sequence[Any]) -> list[str]:
    """Return the fields that an object within a body has, with the path to them."""
    for name in path[:-1]:
        field = kind.model_fields.get(str(name))
        parts = [] if field is None else [field.annotation, *get_args(field.annotation)]
        inner = [each for each in parts if isinstance(each, type) and issubclass(each, BaseModel)]
        if not inner:
            return []
        kind = inner[0]
    names = [field.alias or name for name, field in kind.model_fields.items()]
    return [".".join([*map(str, path[:-1]), name]) for name in names]


def _several(given: Any, kind: type[BaseModel], path: Sequence[Any]) -> str | None:
    """Return the fault of a field that may have several forms: the value has a fault in each."""
    for at, name in enumerate(path[:-1]):
        fields = {field.alias or own: field for own, field in kind.model_fields.items()}
        field = fields.get(str(name))
        if field is None:
            return None
        given = given.get(name) if isinstance(given, dict) else None
        several = get_origin(field.annotation) in (Union, UnionType)
        parts = get_args(field.annotation) if several else [field.annotation]
        kinds = [each for each in parts if each is not type(None)]
        if len(kinds) > 1:
            forms = [_form(each) for each in kinds]
            where = ".".join(map(str, path[: at + 1]))
            return f"{where}: must be {', '.join(forms[:-1])} or {forms[-1]}, not {brief(given)}"
        if not (isinstance(kinds[0], type) and issubclass(kinds[0], BaseModel)):
            return None
        kind = kinds[0]
    return None


def _form(kind: Any) -> str:
    base, inner = get_origin(kind) or kind, get_args(kind)
    if base is Annotated:
        return _form(inner[0])
    if base is list:
        return f"a list of {_PLURALS.get(inner[0]) or _form(inner[0]).replace('a list', 'lists')}"
    return _KINDS.get(base, "another value")


_KINDS: Mapping[Any, str] = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
}
_PLURALS = {str: "texts", int: "whole numbers", dict[str, Any]: "objects"}


def sampling(
    body: Fields, defaults: Mapping[str, Any], *, max_tokens: int | None, seed: int, **own: Any
) -> tuple[dict[str, Any], int]:
    """Return the sampling parameters of a request as keywords, and how often to copy the sample.

    Greedy samples are all the same: one is generated and copied.

    Raises:
        Problem: A value is out of range, or two contradict each other.
    """
    given = {name: getattr(body, name) for name in SAMPLING}
    values = {name: value for name, value in given.items() if value is not None}
    if isinstance(values.get("stop"), str):
        values["stop"] = [values["stop"]]
    bias = values.pop("logit_bias", None)
    if bias:
        values["logit_bias"] = {_token(name): value for name, value in bias.items()}
    params = {"temperature": 1.0, **defaults, **values, "max_tokens": max_tokens, **own}
    params.setdefault("seed", seed)
    n = body.n or 1
    copies = 1
    try:
        if n > 1 and SamplingParams(**params).greedy:
            copies = n
        else:
            params["n"] = n
        SamplingParams(**params)
    except OptionError as error:
        raise Problem("invalid_value", _said(error), param=error.option) from None
    except InputError as error:
        raise Problem("invalid_value", str(error), param=param_of(str(error))) from None
    return params, copies


def _said(error: OptionError) -> str:
    return f"{error.option}={one_line(repr(error.value), 60)}: {error.must}"


def _token(name: str) -> int:
    if not (name.isascii() and name.isdigit() and len(name) < 10):
        shown = one_line(name, 60)
        raise Problem(
            "invalid_value", f"logit_bias: '{shown}' is not a token id", param="logit_bias"
        )
    return int(name)
