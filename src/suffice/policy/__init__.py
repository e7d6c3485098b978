"""Policies select the cached tokens that attention may read, and their order.

A policy is a frozen value; its state of a request is in the request's cache. It is called when a
cache is made (`prepare`), after each prompt (`after_prompt`) and after each decode step
(`after_step`). Each time it tells the cache which rows later queries see.

Prompts attend to all their tokens. In layers with a sliding window, an evicting policy only drops
rows that no later token can see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from suffice.registry import Table

if TYPE_CHECKING:
    import numpy as np

    from suffice.cache.kv import KVCache

__all__ = ["POLICIES", "Policy", "QueryObserver", "Windows"]

# of each layer: the number of last tokens that a token sees; None: all; 0: the layer has no rows of
# its own, and sees those that an earlier one keeps
Windows = Sequence[int | None]


class QueryObserver(Protocol):
    """Collects the queries of a prompt for a policy."""

    def add(self, layer: int, q: np.ndarray, end: int) -> None:
        """Take the queries q float32 [H, T, D], rotated, of the T tokens before token `end`.

        The layer's cache has their keys.
        """
        ...


class Policy(Protocol):
    """A selection of cached tokens."""

    @property
    def chooses(self) -> bool:
        """Whether any tokens are left out, or read in another order than that of the text."""
        ...

    @property
    def by_query(self) -> bool:
        """Whether each query selects its own tokens."""
        ...

    @property
    def evicts(self) -> bool:
        """Whether tokens are lost, so that a later prompt cannot build on them."""
        ...

    @property
    def at_prompt(self) -> bool:
        """Whether the budget comes from a prompt, so that nothing is left out without one."""
        ...

    @property
    def needs_whole_softmax(self) -> bool:
        """Whether attention must compute the weight of every token that may be read."""
        ...

    @property
    def one_by_one(self) -> bool:
        """Whether each token changes the rows that the next one sees: steps have one token then."""
        ...

    @property
    def watches(self) -> bool:
        """Whether the choice depends on the queries of a whole prompt, which `watch` collects."""
        ...

    @property
    def keeps(self) -> tuple[str, ...]:
        """Return the additional data that the cache must keep: names of options of `KVCache`."""
        ...

    @classmethod
    def exact_limit(cls) -> Policy | None:
        """Return a setting that must equal `full`; None if there is none."""
        ...

    def prepare(self, cache: KVCache, windows: Windows) -> None:
        """Set up a new cache."""
        ...

    def watch(self, cache: KVCache, windows: Windows, scale: float) -> QueryObserver | None:
        """Return an observer for the next prompt of a cache; None if the policy needs none.

        `scale` is the factor of scores.
        """
        ...

    def after_prompt(self, cache: KVCache, windows: Windows, watch: QueryObserver | None) -> None:
        """Select from the tokens of a cache after a prompt."""
        ...

    def after_step(self, cache: KVCache) -> None:
        """Select again after a decode step."""
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
    outside=("policy", Policy),
)
