"""How relevant texts are to a query, by a model that says yes or no, or by embeddings.

A way to rank has `prompts` (those of a query alone, `before`, and the `prompt` of each document),
`special` (whether they get the tokens that the model expects around a text), the
`reading` of them, and `scores` of what was read.

Source: the published form of Qwen3-Reranker, whose score is the probability of "yes" among the two.
A model whose chat template has the roles `query` and `document` has its own form, as in
sentence-transformers' CrossEncoder.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from suffice.decoder.pooling import Pooling
from suffice.engine.protocol import Tokenizer
from suffice.engine.reading import Reading
from suffice.errors import InputError

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_JUDGE = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".'
)
_MOST = 700.0  # beyond it, e^x is no number
_ROLES = ("'query'", "'document'")  # in a template that is a form of its own
_CHATML = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")
_DOCUMENTS = ("document", "passage")  # names that embedding models have for their prompts


class ByWord:
    """Ranks by the probability of "yes" among "yes" and "no"."""

    special = False

    def __init__(self, tokenizer: Tokenizer, pooling: Pooling, instruction: str | None) -> None:
        """Take a model's tokenizer.

        Raises:
            InputError: The model cannot be asked.
        """
        self._tokenizer, self._instruction = tokenizer, instruction
        words = [tokenizer.encode(word, special=False) for word in ("yes", "no")]
        if pooling.yes_no is None and any(len(word) != 1 for word in words):
            raise InputError("the model cannot rank: 'yes' and 'no' are no tokens of it")
        self.reading = Reading(pooling.yes_no or tuple(token for (token,) in words))
        self._whole = set(tokenizer.whole())
        if not self._whole.issuperset(_CHATML) and not tokenizer.has_chat_template:
            raise InputError("the model cannot rank: it has no chat template to ask it by")

    def prompts(self, query: str, documents: list[str]) -> list[str]:
        """Return a prompt for each document."""
        return [self.prompt(query, document) for document in documents]

    def before(self, query: str) -> list[str]:
        """Return no prompt: the query is in those of documents."""
        return []

    def prompt(self, query: str, document: str) -> str:
        """Return the prompt for a document, with its special tokens."""
        template = str(self._tokenizer.chat_template).replace('"', "'")
        if all(role in template for role in _ROLES):
            asked = [] if self._instruction is None else [("system", self._instruction)]
            return self._chat([*asked, ("query", query), ("document", document)])
        instruction = self._instruction or INSTRUCTION
        text = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
        if not self._whole.issuperset(_CHATML):
            return self._chat([("user", f"{_JUDGE}\n\n{text}")])
        start, end, think, thought = _CHATML
        return (
            f"{start}system\n{_JUDGE}{end}\n{start}user\n{text}{end}\n"
            f"{start}assistant\n{think}\n\n{thought}\n\n"
        )

    def _chat(self, messages: list[tuple[str, str]]) -> str:
        told = [{"role": role, "content": content} for role, content in messages]
        facts = {"enable_thinking": False}
        return self._tokenizer.chat_text(told, add_generation_prompt=True, facts=facts)

    def scores(self, read: list[NDArray[np.float32]]) -> list[float]:
        """Return the probability of "yes" of each prompt, of the two log probabilities."""
        return [1 / (1 + math.exp(min(float(no - yes), _MOST))) for yes, no in read]


class ByEmbedding:
    """Ranks by the cosine between the embeddings of the query, the first prompt, and documents."""

    special = True
    reading = Reading()

    def __init__(self, pooling: Pooling, instruction: str | None) -> None:
        """Take how a model embeds; `instruction` stands before the query instead of its prompt."""
        usual = pooling.prompt(None)
        named = [pooling.prompts[name] for name in _DOCUMENTS if name in pooling.prompts]
        self._documents = named[0] if named else usual
        own = pooling.prompts.get("query", usual)
        self._query = own if instruction is None else instruction

    def prompts(self, query: str, documents: list[str]) -> list[str]:
        """Return the query and the documents, each with what stands before it."""
        return [*self.before(query), *(self.prompt(query, document) for document in documents)]

    def before(self, query: str) -> list[str]:
        """Return the prompt of the query."""
        return [self._query + query]

    def prompt(self, query: str, document: str) -> str:
        """Return the prompt for a document, which does not depend on the query."""
        return self._documents + document

    def scores(self, read: list[NDArray[np.float32]]) -> list[float]:
        """Return the cosine of the first vector and each other."""
        first, *others = (each.astype(np.float64) for each in read)
        return [cosine(first, other) for other in others]


def cosine(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the cosine of the angle between two vectors; 0 if one of them is 0."""
    lengths = math.sqrt(float((one * one).sum()) * float((other * other).sum()))
    return float((one * other).sum()) / lengths if lengths else 0.0


def ranker(
    tokenizer: Tokenizer, pooling: Pooling, instruction: str | None = None
) -> ByWord | ByEmbedding:
    """Return how a model ranks: by embeddings if its files say that it embeds, else by yes and no.

    Raises:
        InputError: It cannot rank.
    """
    if pooling.embeds:
        return ByEmbedding(pooling, instruction)
    return ByWord(tokenizer, pooling, instruction)
