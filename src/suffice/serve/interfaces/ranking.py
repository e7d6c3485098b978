"""Ranks of documents, in the form of Jina, Cohere and vLLM, and scores of pairs, in vLLM's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from suffice.engine.ranking import ByEmbedding, ByWord, ranker
from suffice.serve.errors import Problem
from suffice.serve.http.front import Front, Job
from suffice.serve.interfaces.fields import Objects, Shared, Texts, parsed
from suffice.serve.interfaces.reading import MOST, answer, counts, read
from suffice.serve.interfaces.requests import Ask, kept, room

Group = tuple[str, list[str]]  # a query and its documents


class Ranked(Shared):
    """The fields that both kinds of requests have."""

    instruction: str | None = None


class Rerank(Ranked):
    """The fields of a request that ranks documents."""

    query: str = Field(min_length=1)
    documents: Texts | Objects
    top_n: int = Field(0, ge=0)
    return_documents: bool = True


class Score(Ranked):
    """The fields of a request that scores pairs of texts."""

    text_1: str | Texts
    text_2: str | Texts


async def rerank(front: Front, request: Request, raw: bytes, key: str) -> Response:
    """Answer with documents, the most relevant first.

    Raises:
        Problem: They cannot be ranked.
    """
    body = parsed(raw, Rerank, allow_unknown=front.settings.allow_unknown_fields)
    model = front.check_model(body.model)
    texts = _texts(body.documents)
    groups = [(body.query, texts)]
    job, scores = await _scored(front, request, body, key, "rerank", groups, "documents")
    order = sorted(range(len(texts)), key=lambda at: -scores[at])
    results: list[dict[str, Any]] = [
        {
            "index": at,
            **({"document": {"text": texts[at]}} if body.return_documents else {}),
            "relevance_score": scores[at],
        }
        for at in order[: body.top_n or None]
    ]
    return answer(job, {"id": job.id, "model": model, "usage": counts(job), "results": results})


def _texts(documents: Sequence[str | dict[str, Any]]) -> list[str]:
    """Return the texts of documents.

    Raises:
        Problem: There are none, or too many, or one has no text.
    """
    if not 1 <= len(documents) <= MOST:
        message = f"documents: {len(documents)} given; 1 to {MOST} are allowed"
        raise Problem("invalid_value", message, param="documents")
    found = [each if isinstance(each, str) else each.get("text") for each in documents]
    if not all(isinstance(text, str) for text in found):
        message = "documents: must be texts, or objects with a 'text'"
        raise Problem("invalid_value", message, param="documents")
    return list(map(str, found))


async def score(front: Front, request: Request, raw: bytes, key: str) -> Response:
    """Answer with the score of each pair of texts.

    Raises:
        Problem: They cannot be scored, or are not pairs.
    """
    body = parsed(raw, Score, allow_unknown=front.settings.allow_unknown_fields)
    model = front.check_model(body.model)
    one, other = ([each] if isinstance(each, str) else each for each in (body.text_1, body.text_2))
    if not other or len(one) not in (1, len(other)) or len(other) > MOST:
        message = (
            f"text_1, text_2: {len(one)} and {len(other)} texts given; text_1 must be one, or as "
            f"many as text_2, at most {MOST}"
        )
        raise Problem("invalid_value", message, param="text_1")
    groups = [(one[0], other)]
    if len(one) > 1:
        groups = [(text, [each]) for text, each in zip(one, other, strict=True)]
    job, scores = await _scored(front, request, body, key, "score", groups, "text_2")
    data = [{"index": at, "object": "score", "score": each} for at, each in enumerate(scores)]
    head = {"id": job.id, "object": "list", "created": job.stamp, "model": model}
    return answer(job, {**head, "data": data, "usage": counts(job)})


async def _scored(
    front: Front,
    request: Request,
    body: Ranked,
    key: str,
    prefix: str,
    groups: Sequence[Group],
    param: str,
) -> tuple[Job, list[float]]:
    """Return the scores of all documents, group by group."""
    text = front.text
    way = await text.run(
        lambda: ranker(text.tokenizer, front.pooling, body.instruction), "model", 0
    )
    size = sum(len(query) + len(each) for query, documents in groups for each in documents)

    def encode() -> list[list[Ask]]:
        encoded = _Encoded(front, body, way, param)
        return [
            [(tokens, way.reading) for tokens in encoded.group(query, documents)]
            for query, documents in groups
        ]

    with front.job(prefix, key, body.request_id) as job:
        asks = await text.run(encode, param, size)
        whole = body.model_copy(update={"truncate_prompt_tokens": None})  # they are cut already
        found = iter(await read(front, request, job, whole, [*chain(*asks)], param))
        return job, [each for group in asks for each in way.scores([next(found) for _ in group])]


class _Encoded:
    """Makes the tokens of prompts; of one that is too long, the document loses its end."""

    def __init__(self, front: Front, body: Ranked, way: ByWord | ByEmbedding, param: str) -> None:
        self._way, self._text, self._room = way, front.text, room(front, body, param)
        self._most = kept(body, self._room.tokens - body.least_tokens)

    def group(self, query: str, documents: Sequence[str]) -> list[list[int]]:
        """Return the tokens of a group's prompts.

        Raises:
            Problem: The query alone has more tokens than may stay.
        """
        before = [self._tokens(each) for each in self._way.before(query)]
        return [*before, *(self._cut(query, each) for each in documents)]

    def _cut(self, query: str, document: str) -> list[int]:
        tokens = self._tokens(self._way.prompt(query, document))
        while self._most is not None and len(tokens) > self._most:
            if not document:
                message = (
                    f"truncate_prompt_tokens: {self._most} tokens may stay, but a prompt has "
                    f"{len(tokens)} without its document, and the query is never cut"
                )
                raise Problem("invalid_value", message, param="truncate_prompt_tokens")
            own = self._text.tokenizer.encode(document, special=False)
            begun = self._text.tokenizer.decode(own[: self._most - len(tokens)])
            document = begun.rstrip("\ufffd") if len(begun) < len(document) else document[:-1]
            tokens = self._tokens(self._way.prompt(query, document))
        return tokens

    def _tokens(self, prompt: str) -> list[int]:
        return self._text.encode(prompt, self._room, special=self._way.special)
