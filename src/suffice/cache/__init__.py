"""The cache of keys and values, and how it grows.

`kv.KVCache` holds the rows of one request. A growth policy decides the new capacity when the rows
no longer fit. Keys and values each have a type; `types_of` parses both from one text.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from suffice.errors import InputError, brief, unknown
from suffice.registry import Table

__all__ = [
    "BLOCK",
    "GROWTHS",
    "JOINT_DTYPES",
    "KV_DTYPES",
    "Growth",
    "LayerRows",
    "alike",
    "check_rows",
    "fits_keys",
    "next_capacity",
    "row_bytes",
    "tail_of",
    "token_bytes",
    "types_of",
    "with_defaults",
]

BLOCK = 16  # rows of a cache that lie together and are read together

# Bits per element.
_BITS = {"float32": 32, "bfloat16": 16, "float16": 16, "int8": 8, "kmeans4": 4, "planes": 8}
_SCALED = ("int8", "kmeans4", "planes")  # types with a float32 scale for each row
_FITTED = ("kmeans4", "planes")  # types whose rounding is fitted to the model's keys
KV_DTYPES = tuple(_BITS)
_MOST, _MOST_JOINT = 512, 576  # elements of a head, and of a joint row
JOINT_DTYPES = ("float32", "bfloat16", "float16", "int8")  # of rows that are keys and values


@dataclass(frozen=True)
class LayerRows:
    """The rows of a layer: a key and a value of `size` entries in each of `heads` heads.

    `shares`: the earlier layer whose rows it reads, which are of this shape; it then has none.
    """

    heads: int
    size: int
    shares: int | None = None


def alike(layers: int, heads: int, size: int) -> tuple[LayerRows, ...]:
    """Return layers that each have `heads` heads of `size` entries."""
    return (LayerRows(heads, size),) * layers


def tail_of(rows: Sequence[LayerRows]) -> float:
    """Return the share of layers, the last ones, that store nothing."""
    last = max((at for at, own in enumerate(rows) if own.shares is None), default=0)
    return 1 - (last + 1) / len(rows)


def row_bytes(dtype: str, size: int, *, based: bool = False) -> int:
    """Return the bytes of a key or a value of `size` elements, its scale included.

    `based`: with a base, if its type has none.
    """
    base = row_bytes("kmeans4", size) if based and dtype not in _FITTED else 0
    return size * _BITS[dtype] // 8 + (4 if dtype in _SCALED else 0) + base


def token_bytes(
    keys: str, values: str, layers: Sequence[LayerRows], *, joint: bool = False, based: bool = False
) -> int:
    """Return the bytes of a token's keys and values in all layers.

    `joint`: the value is a part of the key, and is stored with it; see `kv.KVCache`.
    """
    found = 0
    for rows in layers:
        value = row_bytes(values, 0 if joint else rows.size, based=based)
        if rows.shares is None:
            found += rows.heads * (row_bytes(keys, rows.size, based=based) + value)
    return found


def check_rows(size: int, joint: int, keys: str, values: str) -> None:
    """Refuse sizes and types of keys and values that a cache cannot have; see `kv.KVCache`.

    Raises:
        InputError: A head size that is not supported, an unknown type, or one for joint rows.
    """
    for dtype in (keys, values):
        if dtype not in KV_DTYPES:
            raise unknown("KV cache dtype", dtype, KV_DTYPES)
    most = _MOST_JOINT if joint else _MOST
    if size % 16 or not 16 <= size <= most:
        raise InputError(f"head_size={size} must be a multiple of 16 up to {most}")
    if joint and (keys != values or keys not in JOINT_DTYPES):
        given = keys if keys == values else f"{keys}/{values}"
        raise InputError(
            f"KV cache dtype '{given}': this model stores keys and values as one row, in one type "
            f"of {', '.join(JOINT_DTYPES)}"
        )


def fits_keys(dtype: str) -> bool:
    """Return whether the rounding of keys of a type is fitted to the model's keys."""
    return dtype in _FITTED


def types_of(dtype: str) -> tuple[str, str]:
    """Return the types of keys and of values: `dtype` is "KEYS/VALUES", or one name for both."""
    keys, slash, values = dtype.partition("/")
    return keys, values if slash else keys


class Growth(Protocol):
    """A policy that decides when to allocate, and how much."""

    def next_capacity(self, needed: int, capacity: int, limit: int) -> int:
        """Return the new capacity in rows: at least `needed`, at most `limit`.

        `capacity` is the current one (0 before the first allocation) and `limit` the context
        length, both in rows. Only called when `needed > capacity`.
        """
        ...


def with_defaults(growth: Growth, **found: Any) -> Growth:
    """Return the policy with its unset fields (None) taken from `found`.

    `found` has properties of the model and the machine; those without a field are ignored.
    """
    policy: Any = growth
    own = dataclasses.fields(policy) if dataclasses.is_dataclass(policy) else ()
    open_fields = {field.name for field in own if getattr(policy, field.name) is None}
    taken = {name: value for name, value in found.items() if name in open_fields}
    return dataclasses.replace(policy, **taken) if taken else growth


GROWTHS = Table(
    "growth",
    {
        "bmc": "suffice.cache.bmc:BMC",
        "iterative": "suffice.cache.growth:Iterative",
        "upfront": "suffice.cache.growth:Upfront",
        "step": "suffice.cache.growth:Step",
        "double": "suffice.cache.growth:Double",
    },
    outside=("growth", Growth),
)


def next_capacity(growth: Growth, needed: int, capacity: int, limit: int) -> int:
    """Return what a policy decides; see `Growth.next_capacity`.

    Raises:
        InputError: It is no whole number from `needed` to `limit`.
    """
    found: Any = growth.next_capacity(needed, capacity, limit)
    if isinstance(found, numbers.Integral) and needed <= int(found) <= limit:
        return int(found)
    raise InputError(
        f"growth '{GROWTHS.name_of(growth)}': next_capacity({needed}, {capacity}, {limit}) returns "
        f"{brief(found)}: must be a whole number from {needed} to {limit}"
    )
