"""Attention techniques: which keys and values decode steps read, and with which arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from suffice.attention.softmax import Softmax
from suffice.outside import is_outside, reported
from suffice.registry import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from suffice.attention.levels import Levels
    from suffice.attention.rule import AttentionRule
    from suffice.attention.traversal import Attended

__all__ = ["ATTENTIONS", "SOFTMAXES", "Attention", "in_python", "rule_of"]


class Attention(Protocol):
    """An attention technique."""

    @property
    def sketched(self) -> bool:
        """Whether the cache must keep a sketch of the keys."""
        ...

    @property
    def based(self) -> bool:
        """Whether the cache must keep a base of each row, 4 bits of it that are read alone."""
        ...

    @property
    def needs_all_tokens(self) -> bool:
        """Whether it selects from all cached tokens itself, so that no policy may."""
        ...

    @property
    def needs_exact_softmax(self) -> bool:
        """Whether its bound holds for the exact softmax only."""
        ...

    @property
    def applies_to_prompts(self) -> bool:
        """Whether prompts run as decode steps do: only if it never leaves anything out."""
        ...

    @property
    def unread_in_prompts(self) -> float:
        """The largest share of its softmaxes that a tile of a prompt leaves unread, on average."""
        ...

    @property
    def stateless(self) -> bool:
        """Whether heads keep no state from token to token, so that drafts can be undone."""
        ...

    @property
    def estimates(self) -> bool:
        """Whether its softmax has estimated weights, so that it is off rather than incomplete."""
        ...

    @property
    def confidence(self) -> float:
        """The probability with which its bound holds, if it has one, for each softmax."""
        ...

    @property
    def calibrated(self) -> bool:
        """Whether a calibration sets its thresholds, one for each layer and key/value head."""
        ...

    @property
    def ladders(self) -> Mapping[str, tuple[float, ...]]:
        """The thresholds that `suffice calibrate --budget` finds, and the values that it tries."""
        ...

    @classmethod
    def exact_limit(cls) -> Attention | None:
        """Return a setting that must equal `exact`; None if the technique has a bound instead."""
        ...

    def reference(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        *,
        scale: float,
        visible: np.ndarray | None = None,
        states: list[Any] | None = None,
        levels: Sequence[Levels] | None = None,
    ) -> Attended:
        """Return the output [H, T, D] of one request, as the source defines it, and the rows read.

        `q` [H, T, D], `k` and `v` [G, S, D], `visible` bool [T, S]: the cached tokens that a new
        one attends to (None = all). `states` [G]: the heads' states, which are updated (None: new
        ones). `levels` [H]: the levels of a coded softmax (None: e^x).
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
        "skip_softmax": "suffice.attention.skip_softmax:SkipSoftmax",
        "tiers": "suffice.attention.tiers:Tiers",
    },
    native=frozenset({"aet", "art", "certified", "exact", "skip_softmax", "tiers"}),
    outside=("attention", Attention),
)

SOFTMAXES = Table(
    "softmax",
    {
        "exact": "suffice.attention.softmax:ExactSoftmax",
        "exaq": "suffice.attention.exaq:EXAQ",
        "exaq_km": "suffice.attention.exaq_km:EXAQKM",
    },
    native=frozenset({"exact", "exaq", "exaq_km"}),
    outside=("softmax", Softmax),
)


def rule_of(attention: Attention) -> AttentionRule | None:
    """Return what a backend reads for a technique, None if it reads everything.

    A technique from outside has native code if its own class says so by a rule of a native kind:
    one that it inherits from a built-in technique would leave out what the class changes. Without
    native code the rule names the technique.
    """
    if not is_outside(type(attention)):
        return attention.rule()
    with reported(f"attention '{ATTENTIONS.name_of(attention)}': rule() or exact_limit() fails"):
        own, limit = attention.rule(), type(attention).exact_limit()
    says = next(kind for kind in type(attention).__mro__ if "rule" in vars(kind))
    if own is not None and own.kind in _kinds() and is_outside(says):
        return own
    exact = own.exact if own is not None else attention == limit
    from suffice.attention.rule import AttentionRule

    return AttentionRule("python", exact=exact, technique=attention)


def in_python(attention: Attention) -> bool:
    """Whether the engine runs a technique's reference."""
    rule = rule_of(attention)
    return rule is not None and rule.technique is not None


def _kinds() -> frozenset[str]:
    """Return the kinds of rules that have native code."""
    return (ATTENTIONS.native or frozenset()) | {"read_all"}
