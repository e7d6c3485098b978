"""A trained head drafts: one layer that reads the model's own hidden states.

Source   Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via
         Training-Time Test", section 3.1. The head fuses the hidden states of three layers of the
         model at a token with the embedding of the next one; further ahead it reads its own.
         Siblings (`width`) are the most likely tokens, or drawn without replacement as in Chen et
         al., "Sequoia".
Differs  EAGLE-2's trees branch everywhere; here only the first of several siblings goes on.
Exact    always: every draft is checked. A chain gives the bits of single steps. Siblings next to it
         do so up to rounding, which may decide between tokens of nearly equal probability.
Cost     a step of one layer and of the head's vocabulary for each draft of the chain; its keys and
         values of every token, which a prompt's tokens make too. A sibling costs its row in the
         step that checks it.
Example  eagle3:model=FOLDER,num_speculative_tokens=5
Options
    model                   the head: a folder or a hub id, in the format of EAGLE, SGLang and vLLM
    num_speculative_tokens  maximum length of the chain of drafts in a step
    width                   maximum number of siblings: tokens drafted for the same place
    adaptive                draft fewer, or none, while drafts do not save time
    quantization            how its weights are stored; none: as in its files
    kv_cache_dtype          type of its keys and values: float32, bfloat16, float16 or int8
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from suffice.errors import InputError
from suffice.registry import spelling
from suffice.speculate import DraftHead, DraftingSample, DraftSource
from suffice.speculate.tree import NO_DRAFTS, Tree, Widths, check_drafts

if TYPE_CHECKING:
    import numpy as np

    from suffice.cache.with_head import CacheWithHead
    from suffice.speculate.proposers import Drafting


@dataclass(frozen=True)
class Eagle3:
    """Drafts of the head `model`, a folder or a hub id, that was trained for the model.

    Its weights are stored by `quantization` (None: as in its files), its keys and values in
    `kv_cache_dtype`.
    """

    sketched: ClassVar[bool] = False
    based: ClassVar[bool] = False
    drafts_with_own_model: ClassVar[bool] = False
    from_text: ClassVar[bool] = False

    model: str = field(default="", metadata=spelling(alone=True))
    num_speculative_tokens: int = 4
    width: int = 1
    adaptive: bool = True  # make only as many drafts as save time
    quantization: str | None = None
    kv_cache_dtype: str = "auto"

    def __post_init__(self) -> None:
        if not self.model:
            raise InputError(
                "speculator 'eagle3': needs 'model': a folder or a hub id of a head that was "
                "trained for the model; `suffice train-drafter` trains one"
            )
        check_drafts("eagle3", self.num_speculative_tokens, self.width)

    @classmethod
    def exact_limit(cls) -> None:
        """Return None: any head is exact, but one must be named."""

    def proposer(self, models: DraftSource) -> ByHead:
        """Load the head and return the proposer.

        Raises:
            InputError: It cannot be used, or is of another model.
        """
        return ByHead(models.head(self.model, self.quantization, self.kv_cache_dtype))


class ByHead:
    """Drafts ahead with a head, all samples together."""

    def __init__(self, head: DraftHead) -> None:
        self._head = head

    def propose(self, samples: Sequence[DraftingSample], shapes: Sequence[Widths]) -> list[Tree]:
        """Return drafts that continue each sample's text, in shape i or less of it."""
        from suffice.speculate.proposers import Drafting

        caches = {at: sample.sequence.cache for at, sample in enumerate(samples)}
        self._head.follow([*caches.values()])
        going = [at for at, cache in caches.items() if shapes[at] and _can_begin(cache)]
        if not going:
            return [NO_DRAFTS] * len(samples)
        drafting = Drafting([sample.state for sample in samples], shapes)
        try:
            last = [samples[at].state.output[-1] for at in going]
            logits = self._head.begin([caches[at] for at in going], last)
            while waiting := _drafted(drafting, going, logits):
                going = [at for at in waiting if caches[at].head.spare]
                tokens = [waiting[at] for at in going]
                logits = self._head.go_on([caches[at] for at in going], tokens) if going else []
        finally:
            self._head.end([*caches.values()])
        return drafting.trees()

    def forget(self, sample: DraftingSample) -> None:
        """Do nothing: the head's rows are in the sample's cache."""


def _drafted(drafting: Drafting, going: list[int], logits: list[np.ndarray]) -> dict[int, int]:
    """Draft one more depth; return the tokens whose logits the next one needs."""
    found = {at: drafting.draft(at, row) for at, row in zip(going, logits, strict=True)}
    return {at: token for at, token in found.items() if token is not None}


def _can_begin(cache: CacheWithHead) -> bool:
    """Whether the head has followed a text, and hidden states of its last token wait."""
    return cache.followed and 0 < cache.waiting <= cache.head.spare
