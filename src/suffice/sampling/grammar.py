"""Structured output: JSON schemas, regexes, choices and grammars, as llguidance follows them.

A grammar is compiled once for a model's tokens; each text that follows it has a state of its own.
llguidance is imported for the first grammar: other requests do without it.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffice.errors import InputError, one_line
from suffice.sampling_params import StructuredOutputsParams

LONGEST = 1 << 18  # characters of a grammar
MOST_KEPT = 64  # compiled grammars
MOST_SHOWN = 200  # characters of a fault
# Between the parts of JSON: nothing, a space, or a line break with an indent. Without a bound a
# small model may write spaces until its tokens are used up.
SPACES = {"whitespace_pattern": "|[ ]|\\n[ ]{0,16}"}


def library() -> Any:
    """Return llguidance.

    Raises:
        InputError: It is not installed.
    """
    try:
        import llguidance
    except ImportError as error:
        raise InputError(
            "structured output needs llguidance: pip install 'suffice[grammar]'"
        ) from error
    return llguidance


def grammar_of(asked: StructuredOutputsParams) -> str:
    """Return llguidance's grammar for what a request asks for.

    Raises:
        InputError: It is no schema or no grammar, or too long; or llguidance is not installed.
    """
    matcher = library().LLMatcher
    from llguidance.gbnf_to_lark import GbnfToLarkError, any_to_lark

    kind, value = asked.chosen
    try:
        if kind == "json_object":
            found: str = matcher.grammar_from_json_schema('{"type": "object"}', SPACES)
        elif kind == "json":
            text = value if isinstance(value, str) else json.dumps(value)
            found = matcher.grammar_from_json_schema(text, SPACES)
        elif kind == "regex":
            found = matcher.grammar_from_regex(value)
        elif kind == "choice":
            texts = " | ".join(json.dumps(each, ensure_ascii=False) for each in value)
            found = matcher.grammar_from_lark(f"start: {texts}")
        else:
            found = matcher.grammar_from_lark(any_to_lark(value))
    except (ValueError, TypeError, GbnfToLarkError, RecursionError) as error:
        raise InputError(f"{kind}: {one_line(error, MOST_SHOWN)}") from None
    if len(found) > LONGEST:
        raise InputError(
            f"{kind}: the grammar has {len(found)} characters; at most {LONGEST} are allowed"
        )
    return found


def fault(grammar: str) -> str:
    """Return why a grammar is bad, whatever the model; empty if it is not.

    Raises:
        InputError: llguidance is not installed.
    """
    bad, messages = library().LLMatcher.validate_grammar_with_warnings(grammar)
    return one_line(messages[0], MOST_SHOWN) if bad else ""


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
    """Compiles grammars for the tokens of a model, and keeps the last ones; for several threads."""

    def __init__(self, stored: Callable[[], str], ends: frozenset[int], vocabulary: int) -> None:
        """Take what returns the tokenizer's JSON, the tokens that end a text, and their number."""
        self._stored, self._ends, self._vocabulary = stored, sorted(ends), vocabulary
        self._tokens: Any = None
        self._kept: OrderedDict[str, Compiled] = OrderedDict()
        self._lock = threading.Lock()

    def compiled(self, grammar: str) -> Compiled:
        """Return one of llguidance's grammars for the model's tokens.

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
        found = library()
        if self._tokens is None:
            self._tokens = found.LLTokenizer(
                self._stored(), n_vocab=self._vocabulary, eos_token=self._ends
            )
        matcher = found.LLMatcher(self._tokens, grammar, log_level=0)
        if matcher.is_error():
            raise InputError(f"the grammar is bad: {one_line(matcher.get_error(), MOST_SHOWN)}")
        return matcher
