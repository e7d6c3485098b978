"""Where keys and values live, and how they grow.

A growth policy decides how many rows a cache is given when it runs out; `kv.KVCache` holds the
rows of one request.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

from suffice.registry import Table

__all__ = ["GROWTHS", "KV_BYTES", "KV_DTYPES", "Growth", "fitted"]

KV_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}  # of an element
KV_DTYPES = tuple(KV_BYTES)


class Growth(Protocol):
    """When to allocate, and how much."""

    def next_capacity(self, needed: int, capacity: int, limit: int) -> int:
        """Return the new capacity in rows: at least `needed`, at most `limit`.

        `capacity` is what the cache has now (0 before the first allocation) and `limit` the
        context length, both in rows. Only called when `needed > capacity`.
        """
        ...


def fitted(growth: Growth, **found: Any) -> Growth:
    """Return the policy with those of its fields that are open (None) as `found` says.

    `found` is what is known of the model and the machine; a policy takes what it has a field for.
    """
    policy: Any = growth
    taken = {name: value for name, value in found.items() if getattr(policy, name, value) is None}
    return dataclasses.replace(policy, **taken) if taken else growth


GROWTHS = Table(
    "growth",
    {
        "bmc": "suffice.cache.bmc:BMC",
        "iterative": "suffice.cache.iterative:Iterative",
        "upfront": "suffice.cache.upfront:Upfront",
        "step": "suffice.cache.step:Step",
        "double": "suffice.cache.double:Double",
    },
)
