"""Log probabilities in the forms of the two endpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from suffice.engine.work import TokenLogprob
from suffice.errors import InputError
from suffice.serve.http.text import Text
from suffice.text.tokenizer import Tokenizer

Entry = Sequence[TokenLogprob]  # of one position: the chosen token, then other likely ones


@dataclass(frozen=True)
class Echo:
    """A prompt that an answer repeats: its text, and its tokens with where each begins in it."""

    text: str
    tokens: tuple[str, ...] = ()
    offsets: tuple[int, ...] = ()

    @classmethod
    def of(cls, tokenizer: Tokenizer, given: str | list[int], tokens: list[int]) -> Echo:
        """Return the echo of a prompt that was given as a text or as tokens.

        The end of the tokens is that of the text: a special token in front has no text there, and
        a prompt that was cut begins within it.

        Raises:
            InputError: A token is less than 0.
        """
        if isinstance(given, list) and min(given) < 0:
            raise InputError(f"{min(given)} is not a token id")
        text = given if isinstance(given, str) else tokenizer.decode(given)
        stream = tokenizer.stream(skip_special=False)
        ends = list(accumulate(len(stream.push(token)) for token in tokens))
        shift = len(text) - ends[-1] - len(stream.flush())
        begins = tuple(min(max(end + shift, 0), len(text)) for end in (0, *ends[:-1]))
        return cls(text, tuple(tokenizer.decode([token]) for token in tokens), begins)


def of_chat(text: Text, entries: Iterable[Entry], top: int) -> dict[str, Any]:
    """Return chat's form: `content`, with each token's bytes."""
    return {
        "content": [
            {
                **_token(text, entry[0]),
                "top_logprobs": [_token(text, each) for each in _likely(entry, top)],
            }
            for entry in entries
        ],
        "refusal": None,
    }


def of_completion(entries: Iterable[Entry], top: int, offset: int) -> dict[str, Any]:
    """Return the completions' form; `offset` is where the first token's text begins."""
    found: dict[str, list[Any]] = {
        "tokens": [],
        "token_logprobs": [],
        "top_logprobs": [],
        "text_offset": [],
    }
    for entry in entries:
        chosen = entry[0]
        found["tokens"].append(chosen.text)
        found["token_logprobs"].append(chosen.logprob)
        found["top_logprobs"].append(_by_text(entry, top))
        found["text_offset"].append(offset)
        offset += len(chosen.text)
    return found


def of_echo(echo: Echo, entries: Iterable[Entry], top: int) -> dict[str, list[Any]]:
    """Return the completions' form for a prompt, whose entries are those after the first token."""
    entries = list(entries)
    return {
        "tokens": list(echo.tokens),
        "token_logprobs": [None, *(entry[0].logprob for entry in entries)],
        "top_logprobs": [None, *(_by_text(entry, top) for entry in entries)],
        "text_offset": list(echo.offsets),
    }


def of_prompt(entries: Iterable[Entry], top: int) -> list[dict[str, Any] | None]:
    """Return vLLM's form of a prompt's: by token id, the prompt's own token first."""
    return [
        None,
        *(
            {
                str(each.token): {
                    "logprob": each.logprob,
                    "rank": each.rank,
                    "decoded_token": each.text,
                }
                for each in [entry[0], *_likely(entry, top)]
            }
            for entry in entries
        ),
    ]


def _by_text(entry: Entry, top: int) -> dict[str, float]:
    """Return the most likely tokens and the chosen one by their texts.

    Parts of characters have one text: it stands for the most likely of them.
    """
    found: dict[str, float] = {}
    for each in [*_likely(entry, top), entry[0]]:
        found.setdefault(each.text, each.logprob)
    return found


def _likely(entry: Entry, top: int) -> Sequence[TokenLogprob]:
    """Return the most likely tokens in order; the chosen one is there if it is one of them."""
    return sorted(entry, key=lambda each: each.rank)[:top]


def _token(text: Text, each: TokenLogprob) -> dict[str, Any]:
    return {
        "token": each.text,
        "logprob": each.logprob,
        "bytes": text.token_bytes(each.token, each.text),
    }
