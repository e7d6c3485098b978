"""Who guesses the next tokens, so that one traversal can check several.

A speculator is a frozen value; what it remembers of a sample lies in the sample's `drafter`, what
it needs for all of them in the proposer that it makes. A proposer sees from a sample's text which
of its drafts were accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from suffice.registry import Table
from suffice.speculate.tree import NO_DRAFTS, Tree

if TYPE_CHECKING:
    import torch

    from suffice.attention import Attention
    from suffice.quant import Quant
    from suffice.sampling import SamplingState
    from suffice.speculate.rates import Rates

__all__ = [
    "NO_DRAFTS",
    "SPECULATORS",
    "Cheaper",
    "DraftRunner",
    "DraftSource",
    "Drafted",
    "Proposer",
    "Speculator",
    "Tree",
]


class DraftingSample(Protocol):
    """A sample for which drafts are made.

    `state` has its text and how its tokens are chosen, `sequence` is what the runner knows of it,
    `drafter` what the proposer keeps of it and `rates` how good its drafts were, None at first.
    """

    drafter: Any
    rates: Rates | None
    sequence: Any

    @property
    def state(self) -> SamplingState:
        """The text, and how tokens are chosen."""
        ...


class Proposer(Protocol):
    """Makes drafts."""

    def propose(self, samples: Sequence[DraftingSample], most: Sequence[int]) -> list[Tree]:
        """Return drafts that continue each sample's text, at most so many tokens for each."""
        ...

    def forget(self, sample: DraftingSample) -> None:
        """Give back what is kept of a sample that has ended."""
        ...


class DraftRunner(Protocol):
    """A second model with the memory of its sequences; see `engine.protocol.Runner`."""

    @property
    def longest_prompt(self) -> int:
        """The most tokens that may be run together."""
        ...

    @property
    def context(self) -> int:
        """The most tokens of a sequence."""
        ...

    def open(self, request_id: str, limit: int) -> Any:
        """Return a new, empty sequence."""
        ...

    def prefill(self, sequence: Any, tokens: list[int]) -> torch.Tensor:
        """Run tokens after those that a sequence holds."""
        ...

    def reserve(self, sequence: Any, rows: int = 1) -> int:
        """Make sure that more tokens fit."""
        ...

    def advance(self, sequences: list[Any], chains: list[list[int]]) -> torch.Tensor:
        """Run known tokens of each sequence; return the logits after each, float32 [rows, V]."""
        ...

    def close(self, sequence: Any) -> None:
        """Give a sequence's memory back."""
        ...


@dataclass(frozen=True)
class DraftSetting:
    """A cheaper setting of a model.

    It attends by `attention`, to the last `recent` keys (0: all) and the first `sinks`; its layers'
    weights are stored anew by `quant`, unless None; the layers `skipped` are left out.
    """

    attention: Attention
    quant: Quant | None = None
    recent: int = 0
    sinks: int = 0
    skipped: tuple[int, ...] = ()


class DraftSource(Protocol):
    """The models that drafts may come from."""

    def second(self, model: str, quantization: str | None, kv_cache_dtype: str) -> DraftRunner:
        """Load another model, or the same once more.

        Raises InputError, also if it has another vocabulary.
        """
        ...

    def under(self, setting: DraftSetting) -> Callable[[list[Any], list[int]], torch.Tensor]:
        """Return what runs one more token of some of the model's sequences by a cheaper setting.

        It returns logits float32 [B, V]; the rows are committed. Raises InputError for layers that
        the model does not have.
        """
        ...


class Speculator(Protocol):
    """A source of drafts."""

    @property
    def num_speculative_tokens(self) -> int:
        """The most tokens that are drafted for a step."""
        ...

    @property
    def adaptive(self) -> bool:
        """Whether only as many are drafted or checked as pay."""
        ...

    @property
    def from_text(self) -> bool:
        """Whether drafts follow from the text alone, so that making them costs next to nothing."""
        ...

    @classmethod
    def exact_limit(cls) -> Speculator | None:
        """Return the setting whose greedy tokens must equal those of plain decoding."""
        ...

    @property
    def sketched(self) -> bool:
        """Whether drafts need sketches of the keys."""
        ...

    @property
    def drafts_with_own_model(self) -> bool:
        """Whether the model drafts under a cheaper setting, on the caches of its requests.

        Drafts choose the tokens that they see, and what checks them must be exact.
        """
        ...

    def proposer(self, models: DraftSource) -> Proposer:
        """Return what makes the drafts. Raises InputError if it needs a model that is not there."""
        ...


SPECULATORS = Table(
    "speculator",
    {
        "draft_model": "suffice.speculate.draft_model:DraftModel",
        "none": "suffice.speculate.none:NoDrafts",
        "ngram": "suffice.speculate.ngram:NGram",
        "self": "suffice.speculate.self:SelfDraft",
        "suffix": "suffice.speculate.suffix:Suffix",
    },
)
