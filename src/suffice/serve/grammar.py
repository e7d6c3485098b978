"""Structured output: a request's JSON schema, regex, choice or grammar as llguidance's grammar.

The server checks a grammar in a worker, with limits; the engine's process compiles it for the
model's tokens. A grammar that is bad or too large is the request's fault and stops nothing else.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from suffice.errors import InputError, one_line
from suffice.models.tokenizer import Tokenizer
from suffice.serve.errors import Problem
from suffice.serve.fields import Texts

LONGEST = 1 << 18  # characters of a grammar
MOST_SECONDS = 2.0  # of a check
MOST_KEPT = 64  # compiled grammars
# Between the parts of JSON: nothing, a space, or a line break with an indent. Without a bound a
# small model may write spaces until its tokens are used up.
SPACES = {"whitespace_pattern": "|[ ]|\\n[ ]{0,16}"}
_FIELDS = ("json", "regex", "choice", "grammar", "json_object")


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
        given = {name: getattr(self, "schema_" if name == "json" else name) for name in _FIELDS}
        chosen = {name: value for name, value in given.items() if value not in (None, False)}
        if len(chosen) != 1:
            known = ", ".join(_FIELDS)
            message = f"structured_outputs: give one of {known}, not {len(chosen)}"
            raise Problem("invalid_schema", message, param="structured_outputs")
        ((name, value),) = chosen.items()
        return grammar_of(name, value)


def of_format(given: Mapping[str, Any] | None) -> str | None:
    """Return the grammar of `response_format`; None if any text will do.

    Raises:
        Problem: It has another form.
    """
    if given is None or given.get("type") == "text":
        return None
    if given.get("type") == "json_object":
        return grammar_of("json_object", True)
    own = given.get("json_schema")
    if given.get("type") != "json_schema" or not isinstance(own, dict):
        message = (
            "response_format: must be {'type': 'text'}, {'type': 'json_object'} or "
            "{'type': 'json_schema', 'json_schema': {'name': ..., 'schema': {...}}}"
        )
        raise Problem("invalid_schema", message, param="response_format")
    return grammar_of("json", own.get("schema", {}))


def grammar_of(kind: str, value: Any) -> str:
    """Return llguidance's grammar for the value of a field of `structured_outputs`.

    Raises:
        Problem: The value is no schema, or too long.
    """
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import GbnfToLarkError, any_to_lark

    try:
        if kind == "json_object":
            found: str = LLMatcher.grammar_from_json_schema('{"type": "object"}', SPACES)
        elif kind == "json":
            text = value if isinstance(value, str) else json.dumps(value)
            found = LLMatcher.grammar_from_json_schema(text, SPACES)
        elif kind == "regex":
            found = LLMatcher.grammar_from_regex(value)
        elif kind == "choice":
            texts = " | ".join(json.dumps(each, ensure_ascii=False) for each in value)
            found = LLMatcher.grammar_from_lark(f"start: {texts}")
        else:
            found = LLMatcher.grammar_from_lark(any_to_lark(value))
    except (ValueError, GbnfToLarkError, RecursionError) as error:
        raise Problem("invalid_schema", f"{kind}: {one_line(error, 200)}") from None
    if len(found) > LONGEST:
        message = f"{kind}: the grammar has {len(found)} characters; at most {LONGEST} are allowed"
        raise Problem("invalid_schema", message)
    return found


async def check(
    grammar: str, run: Callable[[Callable[[], str]], Any], seconds: float = MOST_SECONDS
) -> None:
    """Check a grammar in a worker, to which `run` hands a function.

    Raises:
        Problem: It is bad, or takes too long.
    """
    try:
        fault = await asyncio.wait_for(run(lambda: _fault(grammar)), seconds)
    except asyncio.TimeoutError:
        fault = f"its check takes longer than {seconds:g} seconds: it is too complex"
    if fault:
        raise Problem("invalid_schema", f"the grammar is bad: {one_line(fault, 200)}")


def _fault(grammar: str) -> str:
    """Return why a grammar is bad; empty if it is not."""
    from llguidance import LLMatcher

    bad, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    return str(messages[0]) if bad else ""


class Following:
    """The state of one text that follows a grammar."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def fill(self, words: NDArray[np.uint32]) -> None:
        """Write which tokens may come next; see `sampling.Constraint`."""
        if self._matcher.is_error():
            words[:] = 0
            return
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)

    def advance(self, token: int) -> None:
        """Go on to the state after a token; what comes after the end changes nothing."""
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token)


class Compiled:
    """A grammar for one model's tokens."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def start(self) -> Following:
        """Return the state of a new text."""
        return Following(self._matcher.deep_copy())


class Grammars:
    """Compiles grammars for a tokenizer, and keeps the last ones."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        self._tokens: Any = None
        self._kept: OrderedDict[str, Compiled] = OrderedDict()
        self._lock = threading.Lock()

    def compiled(self, grammar: str) -> Compiled:
        """Return a grammar for the model's tokens.

        Raises:
            InputError: It is bad, too large, or llguidance is not installed.
        """
        with self._lock:
            if (found := self._kept.get(grammar)) is not None:
                self._kept.move_to_end(grammar)
                return found
            found = Compiled(self._matcher(grammar))
            self._kept[grammar] = found
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
            return found

    def _matcher(self, grammar: str) -> Any:
        from llguidance import LLMatcher, LLTokenizer

        if self._tokens is None:
            _, text = self._tokenizer.stored()
            ends = sorted(self._tokenizer.eos_ids)
            self._tokens = LLTokenizer(text, n_vocab=self._vocabulary, eos_token=ends)
        matcher = LLMatcher(self._tokens, grammar, log_level=0)
        if matcher.is_error():
            raise InputError(f"the grammar is bad: {one_line(matcher.get_error(), 200)}")
        return matcher
