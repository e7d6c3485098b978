"""The model itself guesses, with attention that leaves something out.

Source   The weights and the cache are the target's, as in QuantSpec and MagicDec: drafts read fewer
         keys and values, and are checked by attention to all of them.
Exact    always: what is drafted is checked.
Cost     A step of the model for each draft. Its keys and values go to the rows in which the drafts
         are checked, and are forgotten before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from suffice.attention import ATTENTIONS, Attention
from suffice.errors import InputError
from suffice.speculate import Drafted, Models
from suffice.speculate.tree import NO_DRAFTS, Tree, check_drafts

if TYPE_CHECKING:
    import torch

_ALLOWED = ("art", "certified")  # they keep no state that an exact step would have to undo


@dataclass(frozen=True)
class SelfDraft:
    """Drafts with another `attention`, which must leave something out."""

    alone = "num_speculative_tokens"
    from_text: ClassVar[bool] = False

    num_speculative_tokens: int = 4
    adaptive: bool = True  # make only as many drafts as pay
    attention: str = "certified:eps=0.3,bounded=false"

    def __post_init__(self) -> None:
        check_drafts("self", self.num_speculative_tokens)
        technique = self.technique
        rule = technique.rule()
        if ATTENTIONS.name_of(technique) not in _ALLOWED or rule is None or rule.exact:
            raise InputError(
                f"speculator 'self': attention='{self.attention}': must be one of "
                f"{', '.join(_ALLOWED)} with a setting that leaves something out"
            )

    @property
    def technique(self) -> Attention:
        """How drafts attend."""
        found: Attention = ATTENTIONS.build(self.attention)
        return found

    @property
    def sketched(self) -> bool:
        """Whether drafts need sketches of the keys."""
        return self.technique.sketched

    @classmethod
    def exact_limit(cls) -> SelfDraft:
        """Return any setting."""
        return cls()

    def proposer(self, models: Models) -> ByItself:
        """Return what makes the drafts."""
        return ByItself(models.under(self.technique))


class ByItself:
    """Lets the model decode some tokens ahead, all samples together, and takes them back."""

    def __init__(self, step: Callable[[list[Any], list[int]], torch.Tensor]) -> None:
        self._step = step

    def propose(self, samples: Sequence[Drafted], most: Sequence[int]) -> list[Tree]:
        """Return drafts that continue each sample's text, at most so many tokens for each."""
        from suffice.speculate.chains import Chains

        if not any(most):  # as in most steps where drafts do not pay
            return [NO_DRAFTS] * len(samples)
        chains = Chains([sample.state for sample in samples], most)
        waiting = {at: s.state.output[-1] for at, s in enumerate(samples) if most[at] > 0}
        lengths = {at: samples[at].sequence.cache.length for at in waiting}
        try:
            while waiting:
                logits = self._step([samples[at].sequence for at in waiting], [*waiting.values()])
                drafted = {
                    at: chains.draft(at, row) for at, row in zip(waiting, logits, strict=True)
                }
                waiting = {at: token for at, token in drafted.items() if token is not None}
        finally:
            for at, length in lengths.items():
                samples[at].sequence.cache.truncate(length)
        return chains.trees()

    def forget(self, sample: Drafted) -> None:
        """Do nothing: nothing is kept."""
