"""Sampling parameters, with vLLM's names and defaults.

Separate from `sampling`, which needs the extension: a bad value is refused before it is loaded.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from suffice.errors import InputError, OptionError, check_text, unknown

GREEDY_BELOW = 1e-5
MOST_MARKED = 32  # the characters that Unicode reserves: each stands for a token
STRUCTURES = ("json", "regex", "choice", "grammar", "json_object")


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of a request are chosen and when it ends.

    Values are checked here, except against the model (ids within the vocabulary, length of the
    context): that happens when the request is made.

    Attributes:
        n: Samples per prompt; the prompt is run once.
        presence_penalty: Subtracted from the logit of every token generated so far; [-2, 2].
        frequency_penalty: The same, multiplied by how often the token was generated; [-2, 2].
        repetition_penalty: Divides positive and multiplies negative logits of tokens in the prompt
            or generated so far; [0.01, 100], 1 changes nothing.
        temperature: Divides the logits; 0 (or anything below 1e-5) takes the most likely token.
        top_p: Keep the most likely tokens that together reach this probability; [0, 1]. At 0 it is
            the most likely one.
        top_k: Keep this many of the most likely tokens; 0 or -1 keeps all.
        min_p: Keep tokens with at least this fraction of the highest probability; [0, 1].
        seed: Same seed, same tokens, in any batch; None takes the next seed of the engine.
        stop: Text that ends the generation; the output ends before it.
        stop_token_ids: Tokens that end the generation.
        ignore_eos: Do not end at the model's end-of-sequence tokens.
        max_tokens: Maximum number of tokens to generate; None fills the context. 0, which only
            `prompt_logprobs` allows, scores the prompt and generates nothing.
        min_tokens: Before this many tokens only max_tokens can end the generation.
        logprobs: Return the log probabilities of this many most likely tokens and of the chosen
            one, from the model's own distribution: before penalties, bias, temperature and masks.
        prompt_logprobs: Return the log probabilities of each token of the prompt but the first,
            and of this many most likely ones there, from the model's own distribution.
        skip_special_tokens: Leave special tokens out of the text.
        marked_token_ids: Tokens that the text shows as one character each, U+FDD0 for the first of
            them and so on, whether they are special or not; at most 32.
        include_stop_str_in_output: Keep the text that ended the generation.
        logit_bias: Added to the logits of these token ids; values in [-100, 100].
        allowed_token_ids: Only these tokens may be generated.
        bad_words: Words that must not be generated. Only the tokenizer's own encodings, with and
            without a leading space, are prevented; other token sequences for a word are not.
        structured_outputs: What the text must follow, as a mapping with one of the fields "json" (a
            schema), "regex", "choice" (a list of texts), "grammar" (Lark or GBNF) and "json_object"
            (True). It needs llguidance, which comes with `suffice[serve]`.

    Raises:
        InputError: A value is out of range, or two contradict each other.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    marked_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool = False
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    structured_outputs: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_lists()
        self._check_together()

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_BELOW

    @property
    def penalized(self) -> bool:
        """Whether any penalty changes the logits of earlier tokens."""
        penalties = (self.presence_penalty, self.frequency_penalty, self.repetition_penalty)
        return penalties != (0, 0, 1)

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return tuple(self.stop or ())

    def _check_numbers(self) -> None:
        for name, rule in _RULES.items():
            value = getattr(self, name)
            if value is getattr(SamplingParams, name):
                continue  # the default, as in most requests
            if not rule.allows(value):
                raise OptionError(name, value, f"must be {rule.text}", rule.none)

    def _check_lists(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        object.__setattr__(self, "stop", _texts("stop", stop))
        object.__setattr__(self, "bad_words", _texts("bad_words", self.bad_words))
        for name in ("stop_token_ids", "allowed_token_ids", "marked_token_ids"):
            object.__setattr__(self, name, _ids(name, getattr(self, name)))
        if self.allowed_token_ids == ():
            raise InputError("allowed_token_ids=[]: must hold at least one token id, or be None")
        if len(self.marked_token_ids or ()) > MOST_MARKED:
            raise InputError(f"marked_token_ids: must hold at most {MOST_MARKED} token ids")
        object.__setattr__(self, "logit_bias", _bias(self.logit_bias))
        _check_structure(self.structured_outputs)

    def _check_together(self) -> None:
        if self.max_tokens == 0 and self.prompt_logprobs is None:
            raise OptionError("max_tokens", 0, "must be a whole number of at least 1", ", or None")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise OptionError(
                "min_tokens", self.min_tokens, f"must not be more than max_tokens={self.max_tokens}"
            )
        if self.n > 1 and self.greedy:
            raise InputError(
                f"n={self.n} with temperature={self.temperature}: greedy samples are all the same; "
                "use n=1 or a temperature above 0"
            )


@dataclass(frozen=True)
class _Rule:
    text: str
    allows: Callable[[Any], bool]
    none: str = ""  # follows `text` where None is allowed


def _integer(text: str, allowed: Callable[[int], bool], none: bool = False) -> _Rule:
    def allows(value: Any) -> bool:
        if value is None:
            return none
        whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        return whole and allowed(int(value))

    return _Rule(text, allows, ", or None" if none else "")


def _number(text: str, allowed: Callable[[float], bool]) -> _Rule:
    def allows(value: Any) -> bool:
        real = isinstance(value, numbers.Real) and not isinstance(value, bool)
        return real and math.isfinite(value) and allowed(float(value))

    return _Rule(text, allows)


_SWITCH = _Rule("True or False", lambda value: isinstance(value, bool))
_RULES = {
    "n": _integer("a whole number of at least 1", lambda v: v >= 1),
    "presence_penalty": _number("a number in [-2, 2]", lambda v: -2 <= v <= 2),
    "frequency_penalty": _number("a number in [-2, 2]", lambda v: -2 <= v <= 2),
    "repetition_penalty": _number("a number in [0.01, 100]", lambda v: 0.01 <= v <= 100),
    "temperature": _number("a number of at least 0", lambda v: v >= 0),
    "top_p": _number("a number in [0, 1]", lambda v: 0 <= v <= 1),
    "top_k": _integer(
        "a whole number from 1 to 2**31 - 1, or 0 or -1 for all tokens", lambda v: -1 <= v < 2**31
    ),
    "min_p": _number("a number in [0, 1]", lambda v: 0 <= v <= 1),
    "seed": _integer("a whole number in [0, 2**64)", lambda v: 0 <= v < 2**64, none=True),
    "ignore_eos": _SWITCH,
    "max_tokens": _integer("a whole number of at least 1", lambda v: v >= 0, none=True),
    "min_tokens": _integer("a whole number of at least 0", lambda v: v >= 0),
    "logprobs": _integer("a whole number of at least 0", lambda v: v >= 0, none=True),
    "prompt_logprobs": _integer("a whole number of at least 0", lambda v: v >= 0, none=True),
    "skip_special_tokens": _SWITCH,
    "include_stop_str_in_output": _SWITCH,
}


def _texts(name: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise OptionError(name, value, "must be a list of strings", ", or None")
    if not all(isinstance(text, str) and text for text in value):
        raise OptionError(name, value, "every entry must be a string that is not empty")
    for text in value:
        check_text(f"{name}: {text!r}", text)
    return tuple(value)


def _ids(name: str, value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    rule = _integer("", lambda v: v >= 0)
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InputError(f"{name}={value!r}: must be a list of token ids, or None")
    if bad := [entry for entry in value if not rule.allows(entry)]:
        raise InputError(f"{name}: {bad[0]!r} is not a token id (a whole number of at least 0)")
    return tuple(int(entry) for entry in value)


def _bias(value: Any) -> dict[int, float] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InputError(f"logit_bias={value!r}: must map token ids to numbers, or be None")
    _ids("logit_bias", list(value))
    rule = _number("a number in [-100, 100]", lambda v: -100 <= v <= 100)
    for token, bias in value.items():
        if not rule.allows(bias):
            raise InputError(f"logit_bias of token {token}: {bias!r} must be {rule.text}")
    return {int(token): float(bias) for token, bias in value.items()}


def _check_structure(value: Any) -> None:
    if value is None:
        return
    known = ", ".join(STRUCTURES)
    if not isinstance(value, Mapping) or len(value) != 1:
        raise OptionError(
            "structured_outputs", value, f"must map one of {known} to its value", ", or be None"
        )
    ((kind, own),) = value.items()
    if kind not in STRUCTURES:
        raise unknown("field of structured_outputs", str(kind), STRUCTURES)
    rule, text = _STRUCTURES[kind]
    if not rule(own):
        raise InputError(f"structured_outputs: {kind}={own!r}: must be {text}")


_STRUCTURES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "json": (lambda value: isinstance(value, Mapping | str | bool), "a JSON schema"),
    "regex": (lambda value: isinstance(value, str), "a regular expression"),
    "choice": (lambda value: bool(_texts("choice", value)), "a list of texts"),
    "grammar": (lambda value: isinstance(value, str), "a grammar in Lark or GBNF"),
    "json_object": (lambda value: value is True, "True"),
}
