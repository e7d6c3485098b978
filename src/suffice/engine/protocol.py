"""The protocols of the parts that the decode loop drives."""

from __future__ import annotations

from collections import abc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

import numpy as np

from suffice.decoder.pooling import Pooling
from suffice.speculate import ALL_ROWS, NO_DRAFTS, DraftingSample, Tree, Widths
from suffice.trace import Reads, Trace

if TYPE_CHECKING:
    from suffice.attention.rule import Guarantee
    from suffice.engine.config import Config


class How(TypedDict):
    """How rows run: fields of `Rows`."""

    technique: int
    adapter: int


@dataclass(frozen=True)
class Rows:
    """Tokens of one sequence that a step runs, and drafts that continue the last of them.

    `outputs`: how many of the last rows have logits; None: all. `states`: these have their last
    states instead. `prompt`: a part of a prompt; others are decode steps, in which techniques leave
    out what they may, and which are counted. `technique`: the number of the attention technique; 0
    is the engine's own. `adapter`: the index of an adapter, -1 for none. `follow`: of how many of
    the last rows a head that drafts, if there is one, gets the hidden states.
    """

    sequence: Any
    tokens: list[int]
    outputs: int | None = None
    drafts: Tree = NO_DRAFTS
    prompt: bool = False
    technique: int = 0
    adapter: int = -1
    states: bool = False
    follow: int = ALL_ROWS

    @property
    def count(self) -> int:
        """How many rows have logits or states."""
        return len(self.tokens) + len(self.drafts) if self.outputs is None else self.outputs


class Cache(Protocol):
    """The keys and values of one request."""

    @property
    def length(self) -> int:
        """The tokens that have been run and committed."""
        ...

    @property
    def bytes(self) -> int:
        """The memory that it takes."""
        ...

    @property
    def stateful(self) -> bool:
        """Whether layers keep states, which cannot be cut back to any length."""
        ...

    tail: float  # the share of layers, the last ones, that store nothing

    def reachable(self, rows: int) -> int:
        """Return the greatest length of at most `rows` tokens to which it can be cut back."""
        ...

    def keep_state(self) -> None:
        """Keep a copy of the states, if there are any, so that it can be cut back to here."""
        ...

    def drop_states(self) -> bool:
        """Free the copies of states; return whether there were any."""
        ...

    def truncate(self, rows: int) -> None:
        """Drop all rows after the first `rows`, a length that is `reachable`."""
        ...


class Sequence(Protocol):
    """A sample's state in the runner."""

    @property
    def cache(self) -> Cache:
        """The sequence's keys and values."""
        ...

    reads: Reads  # what decode steps have read of them


class LoopRunner(Protocol):
    """What the decode loop asks of a runner: all tensor work except sampling.

    A sequence's results must not depend, by a single bit, on the others in the same call.
    """

    @property
    def vocabulary(self) -> int:
        """Number of token ids, V."""
        ...

    @property
    def pooling(self) -> Pooling:
        """How the model embeds, and whether that is all it does."""
        ...

    @property
    def trace(self) -> Trace:
        """The reads of all decode steps so far."""
        ...

    @property
    def memory_bytes(self) -> tuple[int, int]:
        """Bytes of all caches, and their limit (0: none)."""
        ...

    @property
    def most_drafts(self) -> int:
        """The largest number of tokens drafted for a step; 0 if there are no drafts."""
        ...

    def open(self, request_id: str, limit: int) -> Any:
        """Return a new, empty sequence that may grow to `limit` rows. Raises OutOfMemory."""
        ...

    def reserve(
        self, sequence: Any, rows: int = 1, drafts: int = 0, tokens_per_step: float = 1.0
    ) -> int:
        """Reserve memory for `rows` more tokens; return how many of `drafts` drafts fit as well.

        `tokens_per_step` is the mean so far. Raises OutOfMemory without changing anything.
        """
        ...

    def follow(self, sequences: abc.Sequence[Any]) -> None:
        """Let a head that drafts, if there is one, read what has long been waiting for it."""
        ...

    def propose(self, samples: abc.Sequence[DraftingSample], shapes: list[Widths]) -> list[Tree]:
        """Return drafts for each sample in these shapes, whose memory is reserved."""
        ...

    def begin(self, sequence: Any, rows: int) -> None:
        """Reserve memory for the `rows` tokens of a prompt, which `run` runs in parts.

        Raises OutOfMemory without changing anything.
        """
        ...

    def populate(self, sequence: Any, size: int) -> bool:
        """Map `size` more bytes of what `begin` reserved; return whether all is mapped."""
        ...

    def run(self, batch: abc.Sequence[Rows]) -> list[np.ndarray]:
        """Run rows of any sequences, of prompts and of decode steps; memory must be reserved.

        Returns what each asks for, float32: logits [outputs, V] or states [outputs, W]. A prompt's
        rows are committed, others are tentative until `commit`. If this raises, nothing has
        changed.
        """
        ...

    @property
    def maxima(self) -> np.ndarray | None:
        """The maximum of each 64 of the last run's logits, or None: see `sampling.sample`."""
        ...

    def end(self, sequence: Any) -> None:
        """End a prompt: the policy chooses among its tokens.

        Raises OutOfMemory; after that, only `close` may be called for the sequence.
        """
        ...

    def rewind(self, sequence: Any, rows: int) -> None:
        """Cut a sequence back to `rows` tokens of a prompt, as if no decode step had followed."""
        ...

    def bytes_of(self, rows: int) -> int:
        """Return about how many bytes a sequence of `rows` tokens takes when it next grows."""
        ...

    @property
    def tile_rows(self) -> int:
        """The largest number of a prompt's tokens in a step."""
        ...

    @property
    def tile_unit(self) -> int:
        """Parts of a prompt, but for the last, have a multiple of this number of tokens."""
        ...

    @property
    def known_rows(self) -> int:
        """The largest number of known tokens of a sequence in a decode step."""
        ...

    @property
    def shares_prompts(self) -> bool:
        """Whether a prompt's rows serve other prompts that begin alike, bit for bit."""
        ...

    def shares_answers(self, technique: int = 0) -> bool:
        """Whether rows of decode steps are those that a prompt would have, bit for bit."""
        ...

    @property
    def prompts_by_technique(self) -> bool:
        """Whether a prompt's rows depend on the request's technique."""
        ...

    def guarantee(self, technique: int = 0, *, prompt_read: bool = False) -> Guarantee:
        """Return what is known of the share of a softmax that decode steps leave unread.

        `prompt_read`: the tiles of its prompt read everything, as those of short prompts do.
        """
        ...

    def commit(self, sequence: Any, path: list[int]) -> None:
        """Keep the rows in `path` of a sequence's rows in `run`, and drop the others.

        Row 0 is the token, row i + 1 draft i; each row of `path` follows the one before.
        """
        ...

    def forget(self, sample: DraftingSample) -> None:
        """Sum up the run of a sample that has ended, and free its drafting state."""
        ...

    def fork(self, sequence: Any, rows: int | None = None, spare: int | None = None) -> Any:
        """Return an independent copy of a sequence's first `rows` tokens, by default of all.

        It has memory for `spare` more, by default for as many as the sequence. Raises OutOfMemory.
        """
        ...

    def close(self, sequence: Any) -> None:
        """Free the sequence's memory."""
        ...


class Runner(LoopRunner, Protocol):
    """The model and its memory, also for callers that run whole prompts or known tokens."""

    @property
    def weight_count(self) -> int:
        """Number of all weights."""
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
    def runs_as(self) -> str:
        """The types of the matrices in memory, such as bfloat16, or codes and float32."""
        ...

    @property
    def bits_per_weight(self) -> float:
        """Bits of an entry of the matrices in memory, with their scales."""
        ...

    def prefill(self, sequence: Any, tokens: list[int]) -> np.ndarray:
        """Run tokens after the cached ones; return the last one's logits, float32 [V].

        Raises OutOfMemory; after that, only `close` may be called for the sequence.
        """
        ...

    def prefill_all(
        self, sequence: Any, tokens: list[int], skipped: int = 0
    ) -> Iterator[np.ndarray]:
        """Run tokens as `prefill` does; yield the logits after the first `skipped`, by chunks."""
        ...

    def allow(self, config: Config) -> int:
        """Let rows name the attention of a config, which differs in nothing else; its number."""
        ...

    def step(self, sequences: list[Any], tokens: list[int]) -> np.ndarray:
        """Run a token of each sequence, in reserved memory; return logits, float32 [B, V]."""
        ...

    def advance(self, sequences: list[Any], chains: list[list[int]]) -> np.ndarray:
        """Run known tokens of each sequence in one decode step; memory must be reserved.

        Returns the logits after each token, sequence by sequence, float32 [rows, V]. They equal the
        logits of single steps bit for bit.
        """
        ...


class Detokenizer(Protocol):
    """Turns tokens into text as they come."""

    def push(self, token: int) -> str:
        """Return the text that is certain now."""
        ...

    def flush(self) -> str:
        """Return the rest of the text, with replacement characters for incomplete ones."""
        ...


class Tokenizer(Protocol):
    """Text to tokens and back."""

    @property
    def special(self) -> Mapping[str, str]:
        """Tokens by role, such as `bos_token`."""
        ...

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text, None if there is none."""
        ...

    @property
    def eos_id(self) -> int | None:
        """The token that ends a text, None if there is none."""
        ...

    def vocabulary(self) -> dict[str, int]:
        """Return the id of every token."""
        ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end a text."""
        ...

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat` can be used."""
        ...

    @property
    def chat_template(self) -> str | Mapping[str, str] | None:
        """The chat template's source, or several by name."""
        ...

    @property
    def tool_template(self) -> str | None:
        """The template for conversations with tools; None if these would not be shown."""
        ...

    def whole(self) -> dict[str, int]:
        """Return the tokens that are kept whole in any text, by their text."""
        ...

    def stored(self) -> tuple[dict[str, Any], str]:
        """Return facts such as special tokens, and the tokenizer's JSON."""
        ...

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the tokens of a text; `special` adds the special tokens the model expects."""
        ...

    def decode(self, tokens: list[int], *, skip_special: bool = False) -> str:
        """Return the text of some tokens."""
        ...

    def chat(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool) -> list[int]:
        """Return a conversation's tokens by the model's chat template."""
        ...

    def chat_text(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool,
        continue_last: bool = False,
        facts: Mapping[str, Any] | None = None,
    ) -> str:
        """Return a conversation as text; `continue_last` leaves it open; templates read `facts`."""
        ...

    def stream(self, *, skip_special: bool, marked: abc.Sequence[int] = ()) -> Detokenizer:
        """Return a detokenizer for a new text; `marked` tokens are a character each."""
        ...
