"""Log probabilities in the forms of the two endpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from suffice.engine.work import TokenLogprob
from suffice.serve.http.text import Text

Entry = Sequence[TokenLogprob]  # of one position: the chosen token, then other likely ones


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
        found["top_logprobs"].append(
            {each.text: each.logprob for each in [*_likely(entry, top), chosen]}
        )
        found["text_offset"].append(offset)
        offset += len(chosen.text)
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
