"""How far the traversal of keys and values goes, and with which arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from suffice.registry import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from suffice.attention.levels import Levels
    from suffice.attention.rule import AttentionRule
    from suffice.attention.traversal import Attended

__all__ = ["ATTENTIONS", "SOFTMAXES", "Attention"]


class Attention(Protocol):
    """A way to attend."""

    @property
    def sketched(self) -> bool:
        """Whether the cache must keep a sketch of the keys."""
        ...

    @property
    def needs_all_tokens(self) -> bool:
        """Whether it chooses and orders the cached tokens itself, so that no policy may."""
        ...

    @property
    def needs_exact_softmax(self) -> bool:
        """Whether what it promises holds for the exact softmax only."""
        ...

    @property
    def applies_to_prompts(self) -> bool:
        """Whether prompts are attended to as decode steps are: with it nothing is ever left out."""
        ...

    @property
    def stateless(self) -> bool:
        """Whether a head remembers nothing of the tokens before, so that drafts can be undone."""
        ...

    @property
    def calibrated(self) -> bool:
        """Whether a calibration gives its thresholds, one for each layer and key/value head."""
        ...

    @classmethod
    def exact_limit(cls) -> Attention | None:
        """Return the setting that must equal `exact`, None if the technique has a bound instead."""
        ...

    def reference(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        scale: float,
        visible: torch.Tensor | None = None,
        states: list[Any] | None = None,
        levels: Sequence[Levels] | None = None,
    ) -> Attended:
        """Return the output [H, T, D] of one request, computed as the source defines it, and what
        was read for it.

        `q` [H, T, D], `k` and `v` [G, S, D], `visible` bool [T, S]: the cached tokens that a new
        one attends to (None = all). `states` [G]: what the heads kept from the tokens before, which
        is changed (None: nothing yet). `levels` [H]: those of a coded softmax (None: e^x).
        """
        ...

    def rule(self) -> AttentionRule | None:
        """Return what a backend reads, None if it reads everything."""
        ...


ATTENTIONS = Table(
    "attention",
    {
        "aet": "suffice.attention.aet:AET",
        "art": "suffice.attention.art:ART",
        "certified": "suffice.attention.certified:Certified",
        "exact": "suffice.attention.exact:Exact",
    },
    native=frozenset({"aet", "art", "certified", "exact"}),
)

SOFTMAXES = Table(
    "softmax",
    {
        "exact": "suffice.attention.softmax:ExactSoftmax",
        "exaq": "suffice.attention.exaq:EXAQ",
        "exaq_km": "suffice.attention.exaq_km:EXAQKM",
    },
    native=frozenset({"exact", "exaq", "exaq_km"}),
)
