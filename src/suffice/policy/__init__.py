"""Which cached tokens are eligible for attention, and in which order they are read.

A policy is a frozen value; what it keeps of a request lives in the request's cache. It is asked
when a cache is made (`prepare`), after each prompt (`after_prompt`) and after each decode step
(`after_step`); what each query may see follows from what it has told the cache by then.

Prompts themselves are run with every token. Layers with a sliding window are not thinned out: of
these an evicting policy lets go what no later token can see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from suffice.registry import Table

if TYPE_CHECKING:
    import torch

    from suffice.cache.kv import KVCache

__all__ = ["POLICIES", "Policy", "QueryObserver", "Windows"]

Windows = Sequence[int | None]  # of each layer: the last tokens that one sees; None: all


class QueryObserver(Protocol):
    """What a policy looks at while a prompt is run."""

    def add(self, layer: int, q: torch.Tensor, end: int) -> None:
        """Take the queries q [H, T, D], rotated, of the T tokens before token `end`.

        The layer's cache has their keys.
        """
        ...


class Policy(Protocol):
    """A choice of cached tokens."""

    @property
    def chooses(self) -> bool:
        """Whether any tokens are left out, or read in another order than that they came in."""
        ...

    @property
    def by_query(self) -> bool:
        """Whether each query reads tokens of its own choice."""
        ...

    @property
    def evicts(self) -> bool:
        """Whether tokens are lost, so that a later prompt cannot build on them."""
        ...

    @property
    def at_prompt(self) -> bool:
        """Whether the choice is made of a prompt, so that without one nothing is left out."""
        ...

    @property
    def needs_whole_softmax(self) -> bool:
        """Whether attention must compute the weight of every eligible token."""
        ...

    @property
    def one_by_one(self) -> bool:
        """Whether each token changes what the next one sees, so that steps are of one token."""
        ...

    @property
    def keeps(self) -> tuple[str, ...]:
        """Return what the cache must keep beside keys and values: options of `KVCache`."""
        ...

    @classmethod
    def exact_limit(cls) -> Policy | None:
        """Return the setting that must equal `full`, None if there is none."""
        ...

    def prepare(self, cache: KVCache, windows: Windows) -> None:
        """Set up a new cache."""
        ...

    def watch(self, cache: KVCache, windows: Windows, scale: float) -> QueryObserver | None:
        """Return what looks at the next prompt of a cache, None if nothing need.

        `scale` is what scores are multiplied by.
        """
        ...

    def after_prompt(self, cache: KVCache, windows: Windows, watch: QueryObserver | None) -> None:
        """Choose from the tokens of a cache, now that a prompt has been run."""
        ...

    def after_step(self, cache: KVCache) -> None:
        """Choose again: a token was decoded."""
        ...


POLICIES = Table(
    "policy",
    {
        "full": "suffice.policy.full:Full",
        "h2o": "suffice.policy.h2o:H2O",
        "pyramidkv": "suffice.policy.pyramidkv:PyramidKV",
        "quest": "suffice.policy.quest:Quest",
        "snapkv": "suffice.policy.snapkv:SnapKV",
        "streaming": "suffice.policy.streaming:Streaming",
    },
)
