"""Where keys and values live, and how they grow.

A growth policy decides how many rows a cache is given when it runs out; `kv.KVCache` holds the
rows of one request.
"""

from __future__ import annotations

from typing import Protocol

from suffice.registry import Table

__all__ = ["GROWTHS", "KV_DTYPES", "Growth"]

KV_DTYPES = ("float32", "bfloat16", "float16", "int8")


class Growth(Protocol):
    """When to allocate, and how much."""

    def next_capacity(self, needed: int, capacity: int, limit: int) -> int:
        """Return the new capacity in rows: at least `needed`, at most `limit`.

        `capacity` is what the cache has now (0 before the first allocation) and `limit` the
        context length, both in rows. Only called when `needed > capacity`.
        """
        ...


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
