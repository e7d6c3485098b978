"""Structured output: a JSON schema, regex, choice or grammar that a text must follow.

llguidance compiles it for the model's tokens and says, before each token, which may follow.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from suffice.errors import InputError, one_line

LONGEST = 1 << 18  # characters of a grammar
# Of GBNF, the rules times the characters: its conversion may look at all of it once for each rule,
# and takes about 0.05 s for a million.
MOST_CONVERSION = 20_000_000
MOST_KEPT = 64  # compiled grammars
# JSON is written on one line: after a comma or a colon there may be a space, elsewhere none. With
# more freedom a small model may write spaces until its tokens are used up.
SPACES = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
# For a regex and for a mask, in llguidance's units. Its own limits, a million and 200,000, allow
# masks of 0.2 s; an enumeration of 2,000 texts needs less than 20,000 for a mask.
MOST_WORK, MOST_MASK_WORK = 100_000, 40_000
_ERROR = "error: "  # begins what a regex's parser says
_SCHEMA = "failed to compile JSON schema: "  # begins what is said of a schema within a grammar
# A line that repeats the grammar or marks a place in it, and the place that an error begins with.
_QUOTED, _PLACE = re.compile(r"\d+ \|( |$)|\^$"), re.compile(r"at \d+\(\d+\): ")
_CONVERTED = "%llguidance {}\n\n"  # begins Lark that was GBNF, with other lines
_NO_ONE_OF = "oneOf is not supported; use anyOf"
# Texts, classes of characters and comments, which name no rules. An open one ends with its line.
_UNUSED = re.compile(r'"(?:\\.|[^"\\\n])*"?|\[(?:\\.|[^\]\\\n])*\]?|#.*')
_MISSING = re.compile(r"Rule '(.*)' not found", re.DOTALL)
_EXTRA = "pip install 'suffice[serve]'"


class TokenTexts(Protocol):
    """What a tokenizer has to say for grammars."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end a text."""
        ...

    def stored(self) -> tuple[Any, str]:
        """Return facts of no concern here, and the tokenizer's JSON."""
        ...


def check_installed() -> None:
    """Require llguidance.

    Raises:
        InputError: It is not installed.
    """
    try:
        import llguidance  # noqa: F401
    except ImportError:
        raise InputError(f"structured_outputs needs llguidance: {_EXTRA}") from None


def text_of(given: Mapping[str, Any]) -> str:
    """Return llguidance's grammar of `SamplingParams.structured_outputs`, which has one field.

    Raises:
        InputError: The field's value is no schema or grammar, or llguidance is not installed.
    """
    check_installed()
    ((kind, value),) = given.items()
    return grammar_of(kind, value)


def grammar_of(kind: str, value: Any) -> str:
    """Return llguidance's grammar for the value of a field of `structured_outputs`.

    Raises:
        InputError: The value is no schema or grammar, or too long.
    """
    from llguidance import LLMatcher

    if kind == "json" and not isinstance(value, str):
        value = json.dumps(value)
    # What a conversion makes may be longer than what it is given, but it takes long itself.
    _check_length(kind, sum(map(len, value)) if kind == "choice" else len(str(value)))
    try:
        if kind == "json_object":
            found: str = LLMatcher.grammar_from_json_schema('{"type": "object"}', SPACES)
        elif kind == "json":
            found = LLMatcher.grammar_from_json_schema(value, SPACES)
        elif kind == "regex":
            if (len(value) - len(value.rstrip("\\"))) % 2:  # llguidance would drop it
                raise InputError("regex: it ends with a backslash that escapes nothing")
            found = LLMatcher.grammar_from_regex(value)
        elif kind == "choice":
            # A terminal: of a rule's alternatives, the parser takes no more than 2,000.
            texts = " | ".join(json.dumps(each, ensure_ascii=False) for each in value)
            found = LLMatcher.grammar_from_lark(f"start: TEXT\nTEXT: {texts}")
        else:
            found = LLMatcher.grammar_from_lark(_lark(value))
    except InputError:
        raise
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{kind}: {one_line(error, 200)}") from None
    _check_length(kind, len(found))
    return found


def _check_length(kind: str, characters: int) -> None:
    if characters > LONGEST:
        raise InputError(
            f"{kind}: the grammar has {characters} characters; at most {LONGEST} are allowed"
        )


def _lark(text: str) -> str:
    """Return a grammar in Lark's or llama.cpp's syntax in Lark's.

    Raises:
        InputError: It is bad.
    """
    from llguidance.gbnf_to_lark import any_to_lark, is_lark_syntax

    if not _UNUSED.sub("", text).strip():
        raise InputError("grammar: it has no rule")
    rules = 0 if is_lark_syntax(text) else text.count("::=")
    if rules * len(text) > MOST_CONVERSION:
        raise InputError(
            f"grammar: it has {len(text)} characters; at most {MOST_CONVERSION // rules} are "
            f"allowed in GBNF of {rules} rules: write it in Lark"
        )
    try:
        return str(any_to_lark(text))
    except IndexError:
        raise InputError("grammar: it ends within a text or a class of characters") from None
    except Exception as error:  # llguidance raises nothing narrower
        why = one_line(error, 200)
        if missing := _MISSING.fullmatch(str(error)):
            why = (
                f"line {_line_of(missing[1], text)}: there is no rule '{one_line(missing[1], 60)}'"
            )
        elif why == "No 'root' rule found":
            why = "there is no rule 'root' (of GBNF) or 'start' (of Lark)"
        raise InputError(f"grammar: {why}") from None


def _line_of(name: str, text: str) -> int:
    """Return the number of the first line of a grammar that uses a rule."""
    blank = _UNUSED.sub(lambda found: " " * len(found[0]), text)
    found = re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", blank)
    return text.count("\n", 0, found.start() if found else 0) + 1


def fault(grammar: str) -> str:
    """Return why a grammar is bad; empty if it is not."""
    from llguidance import LLMatcher

    bad, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=_limits())
    if not bad:
        return ""
    cause = _cause(str(messages[0]))
    return _PLACE.sub("", cause, count=1) if grammar.startswith(_CONVERTED) else cause


def _limits() -> Any:
    """Return llguidance's limits: all requests of a step wait for its masks."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=MOST_WORK, step_lexer_fuel=MOST_MASK_WORK, verbose_errors=False
    )


def _cause(message: str) -> str:
    """Return what is wrong, without the grammar, which may be long, that llguidance repeats."""
    message = message.replace("<non-verbose/>", "").replace("NoExtensionBias", "no text follows it")
    lines = [line.strip() for line in message.splitlines()]
    named = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
    if named:
        return one_line(named[-1], 200)
    own = " ".join(line for line in lines if not _QUOTED.match(line))
    if _SCHEMA in own:
        message = own.partition(_SCHEMA)[2]
    elif "^" in lines[1:]:
        message = f"{one_line(own, 130)} in: {_QUOTED.sub('', lines[lines.index('^') - 1])}"
    return one_line(_NO_ONE_OF if "coerce_one_of" in message else message, 200)


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

    @property
    def fault(self) -> str:
        """Why nothing may follow, if the grammar became too complex; empty if it did not."""
        why = self._matcher.get_error()
        return f"the grammar is too complex here: {_cause(why)}" if why else ""


class Compiled:
    """A grammar for one model's tokens."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def start(self) -> Following:
        """Return the state of a new text."""
        return Following(self._matcher.deep_copy())


class Grammars:
    """Compiles grammars for a tokenizer, and keeps the last ones."""

    def __init__(self, tokenizer: TokenTexts, vocabulary: int) -> None:
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
        check_installed()
        from llguidance import LLMatcher, LLTokenizer

        if self._tokens is None:
            _, text = self._tokenizer.stored()
            ends = sorted(self._tokenizer.eos_ids)
            self._tokens = LLTokenizer(text, n_vocab=self._vocabulary, eos_token=ends)
        matcher = LLMatcher(self._tokens, grammar, log_level=0, limits=_limits())
        # The first mask takes longest, and here no step waits for it.
        first = np.empty(-(-self._vocabulary // 32), np.uint32)
        if not matcher.is_error():
            matcher.unsafe_compute_mask_ptr(first.ctypes.data, first.nbytes)
        if matcher.is_error():
            raise InputError(f"the grammar is bad: {_cause(matcher.get_error())}")
        return matcher
