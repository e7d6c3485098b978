"""What the decode loop asks of the parts that it drives."""

from __future__ import annotations

from collections import abc
from collections.abc import Iterator
from typing import Any, Protocol

import torch

from suffice.speculate import DraftingSample, Tree
from suffice.trace import Trace


class Cache(Protocol):
    """The keys and values of one request."""

    @property
    def length(self) -> int:
        """Rows held: the tokens that have been run."""
        ...

    def truncate(self, rows: int) -> None:
        """Forget all rows but the first `rows`."""
        ...


class Sequence(Protocol):
    """A request as the runner knows it."""

    @property
    def cache(self) -> Cache:
        """The sequence's keys and values."""
        ...


class Runner(Protocol):
    """The model and the memory: everything that touches tensors but sampling.

    A sequence's results must not depend, by a single bit, on the others in the same call.
    """

    @property
    def vocabulary(self) -> int:
        """Number of token ids, V."""
        ...

    @property
    def trace(self) -> Trace:
        """What all decode steps so far have read."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        ...

    @property
    def stored_as(self) -> str:
        """How the model's file stores its matrices, such as Q4_1; "" if there is no file."""
        ...

    @property
    def longest_prompt(self) -> int:
        """The most tokens that the model takes as a prompt."""
        ...

    @property
    def most_drafts(self) -> int:
        """The most tokens that are drafted for a step; 0: none ever."""
        ...

    def open(self, request_id: str, limit: int) -> Any:
        """Return a new, empty sequence that may grow to `limit` rows. Raises OutOfMemory."""
        ...

    def prefill(self, sequence: Any, tokens: list[int]) -> torch.Tensor:
        """Run tokens after those the cache holds; return the last one's logits, float32 [V].

        Raises OutOfMemory, and then the sequence is good for nothing but `close`.
        """
        ...

    def prefill_all(self, sequence: Any, tokens: list[int]) -> Iterator[torch.Tensor]:
        """Run tokens as `prefill` does; yield the logits of all, chunk by chunk, float32 [T, V]."""
        ...

    def reserve(
        self, sequence: Any, rows: int = 1, drafts: int = 0, tokens_per_step: float = 1.0
    ) -> int:
        """Make sure that more tokens fit; return how many of `drafts` drafts fit behind them.

        `tokens_per_step` is how many a step has given so far. Raises OutOfMemory, and then nothing
        has changed.
        """
        ...

    def propose(self, samples: abc.Sequence[DraftingSample], most: list[int]) -> list[Tree]:
        """Return drafts for the samples, at most so many tokens for each, for which space is."""
        ...

    def verify(self, sequences: list[Any], tokens: list[int], drafts: list[Tree]) -> torch.Tensor:
        """Run one more token of each sequence, and drafts behind it, space reserved.

        Returns the logits after each token and then after each of its drafts, sequence by sequence,
        float32 [rows, V]. What was run counts once `commit` says so.
        """
        ...

    def commit(self, sequence: Any, path: list[int]) -> None:
        """Keep these of the rows that a sequence had in `verify`, and forget the others.

        Row 0 is the token, row i + 1 draft i; each continues the one before.
        """
        ...

    def forget(self, sample: DraftingSample) -> None:
        """Give back what the drafts of a sample that has ended needed."""
        ...

    def step(self, sequences: list[Any], tokens: list[int]) -> torch.Tensor:
        """Run one more token of each sequence, space reserved; return float32 logits [B, V]."""
        ...

    def advance(self, sequences: list[Any], chains: list[list[int]]) -> torch.Tensor:
        """Run known tokens of each sequence, space reserved, by one decode step.

        Returns the logits after each token, sequence by sequence, float32 [rows, V], which are, bit
        for bit, those of single steps.
        """
        ...

    def fork(self, sequence: Any) -> Any:
        """Return an independent copy of a sequence. Raises OutOfMemory."""
        ...

    def close(self, sequence: Any) -> None:
        """Give the sequence's memory back."""
        ...


class Detokenizer(Protocol):
    """Turns tokens into text as they come."""

    def push(self, token: int) -> str:
        """Return the text that is certain now."""
        ...

    def flush(self) -> str:
        """Return what is left, with replacement characters for broken ones."""
        ...


class Tokenizer(Protocol):
    """Text to tokens and back."""

    @property
    def wrapped(self) -> Any:
        """The tokenizer of transformers that does it."""
        ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end a text."""
        ...

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat` can be used."""
        ...

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the tokens of a text; `special` adds what the model expects around it."""
        ...

    def decode(self, tokens: list[int], *, skip_special: bool = False) -> str:
        """Return the text of some tokens."""
        ...

    def chat(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool) -> list[int]:
        """Return a conversation's tokens by the model's chat template."""
        ...

    def stream(self, *, skip_special: bool) -> Detokenizer:
        """Return a detokenizer for a new text."""
        ...
