"""Speculators draft the next tokens, so that one step can check several.

A speculator is a frozen value. Its state of one sample is the sample's `drafter`; its state for all
samples is in the proposer that it makes. A proposer sees from a sample's text which of its drafts
were accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from suffice.registry import Table
from suffice.speculate.tree import ALL_ROWS, NO_DRAFTS, Tree, Widths

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suffice.attention import Attention
    from suffice.quant import Quant
    from suffice.sampling import SamplingState
    from suffice.speculate.rates import Rates

__all__ = [
    "ALL_ROWS",
    "NO_DRAFTS",
    "SPECULATORS",
    "DraftBlocks",
    "DraftHead",
    "DraftRunner",
    "DraftSetting",
    "DraftSource",
    "DraftedTokens",
    "DraftingSample",
    "GoesOn",
    "Proposer",
    "ReadsNoKeys",
    "Speculator",
    "Tree",
    "Widths",
]


# Of the probabilities that a model gave the drafts of a chain so far, whether it drafts another.
GoesOn = Callable[[Sequence[float]], bool]


class DraftingSample(Protocol):
    """A sample for which drafts are made.

    `state` has its text and sampling parameters, `sequence` is its state in the runner, `drafter`
    its state in the proposer, and `rates` are its drafts' acceptance rates, None at first.
    `goes_on` says whether a model should draft further in this step; None: to the end of its shape.
    """

    drafter: Any
    rates: Rates | None
    goes_on: GoesOn | None
    sequence: Any

    @property
    def state(self) -> SamplingState:
        """The text and the sampling parameters."""
        ...


class Proposer(Protocol):
    """Makes drafts."""

    def propose(self, samples: Sequence[DraftingSample], shapes: Sequence[Widths]) -> list[Tree]:
        """Return drafts that continue each sample's text.

        A model drafts a tree of shape `shapes[i]` for sample i, or less of it. Drafts from the text
        are of any shape, and at most as many.
        """
        ...

    def forget(self, sample: DraftingSample) -> None:
        """Free the drafting state of a sample that has ended."""
        ...


class DraftRunner(Protocol):
    """A second model with the memory of its sequences; see `engine.protocol.Runner`."""

    @property
    def context(self) -> int:
        """The largest number of tokens in a sequence."""
        ...

    def open(self, request_id: str, limit: int) -> Any:
        """Return a new, empty sequence."""
        ...

    def prefill(self, sequence: Any, tokens: list[int]) -> object:
        """Run tokens after the cached ones."""
        ...

    def reserve(self, sequence: Any, rows: int = 1) -> int:
        """Reserve memory for `rows` more tokens."""
        ...

    def advance(self, sequences: list[Any], chains: list[list[int]]) -> NDArray[np.float32]:
        """Run known tokens of each sequence; return the logits after each, float32 [rows, V]."""
        ...

    def close(self, sequence: Any) -> None:
        """Free a sequence's memory."""
        ...


@dataclass(frozen=True)
class DraftedTokens:
    """The tokens that a head can draft: `ids` int64 [D] of a `vocabulary` of V."""

    ids: NDArray[np.int64]
    vocabulary: int

    def spread(self, row: NDArray[np.float32], rest: float) -> NDArray[np.float32]:
        """Return values [D] of these tokens among those [V] of all; others are `rest`."""
        found = np.full(self.vocabulary, rest, np.float32)
        found[self.ids] = row
        return found


class HeadOfModel(Protocol):
    """A head that reads the hidden states of a model; caches are those that it has for texts."""

    @property
    def drafted(self) -> DraftedTokens | None:
        """The tokens that its logits are of; None: of all."""
        ...

    def ready(self, cache: Any) -> bool:
        """Return whether it can draft for a text."""
        ...

    def end(self, caches: Sequence[Any]) -> None:
        """Drop the rows of drafted tokens."""
        ...


class DraftHead(HeadOfModel, Protocol):
    """A head that drafts one token after the other."""

    def has_room(self, cache: Any) -> bool:
        """Return whether it can draft another token of a text."""
        ...

    def begin(self, caches: Sequence[Any], last: Sequence[int]) -> NDArray[np.float32]:
        """Make the rows that texts lack; return logits [B, D] after the `last` token of each."""
        ...

    def go_on(self, caches: Sequence[Any], tokens: Sequence[int]) -> NDArray[np.float32]:
        """Run a drafted token of each text; return the logits [B, D] after it."""
        ...


class DraftBlocks(HeadOfModel, Protocol):
    """A head that drafts blocks."""

    def after(
        self, token: int, logits: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], DraftedTokens | None]:
        """Return the logits of a draft after `token`, and the tokens that they are of.

        `logits` are those that `block` gives for the draft's depth. None: as `drafted` says.
        """
        ...

    def block(
        self, caches: Sequence[Any], last: Sequence[int], depths: Sequence[int]
    ) -> list[NDArray[np.float32]]:
        """Make the rows that texts lack; return logits [depths[i], D] after `last` of each.

        Those of a depth do not depend on what is drafted before it; see `after`.
        """
        ...


@dataclass(frozen=True)
class DraftSetting:
    """A cheaper setting of a model.

    It attends by `attention`, to the last `recent` keys (0: all) and the first `sinks`. Its layers'
    weights are stored a second time by `quant`, unless None. The layers in `skipped` are left out.
    """

    attention: Attention
    quant: Quant | None = None
    recent: int = 0
    sinks: int = 0
    skipped: tuple[int, ...] = ()


class DraftSource(Protocol):
    """Access to draft models."""

    def second(self, model: str, quantization: str | None, kv_cache_dtype: str) -> DraftRunner:
        """Load another model, or the same a second time.

        Raises InputError if it cannot be used or has another vocabulary.
        """
        ...

    def head(self, folder: str, quantization: str | None, kv_cache_dtype: str) -> DraftHead:
        """Load a head that was trained for the model; from now on the model's steps serve it.

        Raises InputError if it cannot be used or is of another model.
        """
        ...

    def blocks(
        self, folder: str, drafts: int, quantization: str | None, kv_cache_dtype: str
    ) -> DraftBlocks:
        """Load a head that drafts blocks of `drafts` tokens, as `head` does.

        Raises InputError if it cannot be used, is of another model, or has smaller blocks.
        """
        ...

    def module(self, quantization: str | None, kv_cache_dtype: str) -> DraftHead:
        """Load the module of the model's files that predicts further tokens, as a head.

        Raises InputError if there is none, or it cannot be used.
        """
        ...

    def assistant(self, folder: str, quantization: str | None) -> DraftHead:
        """Load an assistant of the model, which reads the model's caches, as a head.

        Raises InputError if it cannot be used or is of another model.
        """
        ...

    def under(self, setting: DraftSetting) -> Callable[[list[Any], list[int]], NDArray[np.float32]]:
        """Return a function that runs one more token of each given sequence in a cheaper setting.

        It commits the rows and returns logits float32 [B, V]. Raises InputError for layers that the
        model does not have.
        """
        ...


class Speculator(Protocol):
    """A source of drafts."""

    @property
    def num_speculative_tokens(self) -> int:
        """The largest number of drafts of a chain, or of a tree from the text."""
        ...

    @property
    def width(self) -> int:
        """The largest number of siblings that a model drafts; 1 for drafts from the text."""
        ...

    @property
    def adaptive(self) -> bool:
        """Whether to draft, or check, only as many tokens as save time."""
        ...

    @property
    def from_text(self) -> bool:
        """Whether drafts come from the text alone, so that making them costs next to nothing."""
        ...

    @property
    def at_once(self) -> bool:
        """Whether a model makes all of a text's drafts in one step, whatever their number."""
        ...

    @property
    def text(self) -> bool:
        """Whether the text drafts next to a model, where that is expected to be faster.

        Its state of a sample is the sample's `drafter` then. Only with `adaptive`.
        """
        ...

    @classmethod
    def exact_limit(cls) -> Speculator | None:
        """Return a setting whose greedy tokens must equal those of plain decoding; None if none."""
        ...

    @property
    def based(self) -> bool:
        """Whether drafts need bases of the rows."""
        ...

    @property
    def sketched(self) -> bool:
        """Whether drafts need sketches of the keys."""
        ...

    @property
    def drafts_with_own_model(self) -> bool:
        """Whether the model drafts in a cheaper setting, on the caches of its requests.

        Drafts then select the tokens that they see, and exact attention must check them.
        """
        ...

    def proposer(self, models: DraftSource) -> Proposer:
        """Return the proposer. Raises InputError if it needs a model that cannot be used."""
        ...


class ReadsNoKeys:
    """A speculator whose drafts read none of the keys that the model stores for its requests."""

    sketched: ClassVar[bool] = False
    based: ClassVar[bool] = False
    drafts_with_own_model: ClassVar[bool] = False
    from_text: ClassVar[bool] = False
    at_once: ClassVar[bool] = False


SPECULATORS = Table(
    "speculator",
    {
        "dflash": "suffice.speculate.dflash:DFlash",
        "draft_model": "suffice.speculate.draft_model:DraftModel",
        "eagle3": "suffice.speculate.eagle3:Eagle3",
        "mtp": "suffice.speculate.mtp:Predictor",
        "none": "suffice.speculate.none:NoDrafts",
        "ngram": "suffice.speculate.ngram:NGram",
        "self": "suffice.speculate.self:SelfDraft",
        "suffix": "suffice.speculate.suffix:Suffix",
    },
    outside=("speculate", Speculator),
)
