"""Structured output: a request's JSON schema, regex, choice or grammar as llguidance's grammar.

The server checks a grammar in a worker, with limits; the engine's process compiles it for the
model's tokens. A grammar that is bad or too large is the request's fault and stops nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from suffice.engine import structured
from suffice.errors import InputError, brief
from suffice.sampling_params import STRUCTURES
from suffice.serve.errors import Problem
from suffice.serve.interfaces.fields import Texts

MOST_SECONDS = 2.0  # of a check


class Structured(BaseModel):
    """`structured_outputs`: one of its fields."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)
    schema_: str | dict[str, Any] | bool | None = Field(None, alias="json")
    regex: str | None = None
    choice: Annotated[Texts, Field(min_length=1)] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    def text(self) -> str:
        """Return llguidance's grammar.

        Raises:
            Problem: None or several fields are given.
        """
        given = {name: getattr(self, "schema_" if name == "json" else name) for name in STRUCTURES}
        chosen = {name: value for name, value in given.items() if value not in (None, False)}
        if len(chosen) != 1:
            known = ", ".join(STRUCTURES)
            message = f"structured_outputs: give one of {known}, not {len(chosen)}"
            raise Problem("invalid_schema", message, param="structured_outputs")
        ((name, value),) = chosen.items()
        return grammar_of(name, value, "structured_outputs")


def of_format(given: Mapping[str, Any] | None) -> str | None:
    """Return the grammar of `response_format`; None if any text will do.

    Raises:
        Problem: It has another form.
    """
    if given is None or given.get("type") == "text":
        return None
    if given.get("type") == "json_object":
        return grammar_of("json_object", True, "response_format")
    own = given.get("json_schema")
    if given.get("type") != "json_schema" or not isinstance(own, dict):
        message = (
            "response_format: must be {'type': 'text'}, {'type': 'json_object'} or "
            "{'type': 'json_schema', 'json_schema': {'name': ..., 'schema': {...}}}"
        )
        raise Problem("invalid_schema", message, param="response_format")
    faults = []
    if not isinstance(own.get("schema"), (dict, bool)):
        faults.append(f"schema: must be an object, not {brief(own.get('schema'))}")
    if not isinstance(own.get("strict"), (bool, NoneType)):
        faults.append(f"strict: must be true or false, not {brief(own['strict'])}")
    if faults:
        message = f"response_format.json_schema.{faults[0]}"
        raise Problem("invalid_schema", message, param="response_format")
    return grammar_of("json", own["schema"], "response_format")


def grammar_of(kind: str, value: Any, param: str) -> str:
    """Return llguidance's grammar for the value of a field of `structured_outputs`.

    `param` is the request's field that it is of.

    Raises:
        Problem: The value is no schema, or too long.
    """
    try:
        return structured.grammar_of(kind, value)
    except InputError as error:
        raise Problem("invalid_schema", str(error), param=param) from None


async def check(
    grammar: str,
    run: Callable[[Callable[[], str]], Any],
    param: str,
    seconds: float = MOST_SECONDS,
) -> None:
    """Check a grammar in a worker, to which `run` hands a function.

    Raises:
        Problem: It is bad, or takes too long.
    """
    try:
        fault = await asyncio.wait_for(run(lambda: structured.fault(grammar)), seconds)
    except asyncio.TimeoutError:
        fault = f"its check takes longer than {seconds:g} seconds: it is too complex"
    if fault:
        raise Problem("invalid_schema", f"the grammar is bad: {fault}", param=param)
