"""A family's name map: where a checkpoint has each of a decoder's weights.

An entry is a stored name, or a `Slice` of a matrix that holds several of the decoder's, or that is
transposed, or what a vector is `Filled` with. Names are without `.weight` or `.bias`, with `{i}`
instead of a layer's index and `{e}` instead of an expert's; that of a vector which is stored as
another's bias ends with `.bias`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from suffice.decoder.config import DecoderConfig

Rows = Callable[["DecoderConfig", str], tuple[int, ...]]


@dataclass(frozen=True)
class Slice:
    """A matrix of a layer that is stored with others, one below the other, as one of their names.

    `stored` is that name, as in a name map, and `parts` are the decoder's names of all of them, in
    order. `by_head`: the rows of a head of each part come one after the other, then those of the
    next head. `by_expert`: likewise those of an expert, and the stored matrix is [E, N, K].
    `alternating`: a row of each part comes after the other. `transposed`: the stored matrix is
    [K, N], or [E, K, N], and the parts are side by side. `rows` says for a part which of the stored
    rows it has, where none of these orders is theirs. `dims`: the stored dimensions of a
    vector, with -1 for its length; one number may have none.
    """

    stored: str
    part: str
    parts: tuple[str, ...]
    by_head: bool = False
    by_expert: bool = False
    transposed: bool = False
    alternating: bool = False
    rows: Rows | None = None
    dims: tuple[int, ...] | None = None

    def shape(self, rows: int, shape: tuple[int, ...], experts: int) -> tuple[int, ...]:
        """Return the stored shape for the `rows` of all parts; `shape` is a part's."""
        if self.dims is not None:
            return tuple(shape[0] if size < 0 else size for size in self.dims)
        own = (rows // experts if self.by_expert else rows, *shape[1:])
        own = own[::-1] if self.transposed else own
        return (experts, *own) if self.by_expert else own


@dataclass(frozen=True)
class Filled:
    """A vector that no file has: all its entries are `value`."""

    value: float


@dataclass(frozen=True)
class Half:
    """A stack of a matrix [N, K] for each head, stored with another, head by head, as `stored`.

    `parts` are the decoder's names of both, in the order of a head's rows. The first one is stored
    as [K, N].
    """

    stored: str
    part: str
    parts: tuple[str, str]

    def split(self, wanted: Mapping[str, tuple[int, ...]]) -> tuple[int, int, tuple[int, int]]:
        """Return the stored rows of each part in a head, and the stored shape, of the parts'."""
        (rows, turned), (others, columns) = (wanted[part] for part in self.parts)
        heads = rows // columns
        return turned, others // heads, (heads * turned + others, columns)


Templates = Mapping[str, "str | Slice | Half | Filled"]


def stored_by_head(stored: str, turned: str, other: str) -> dict[str, Half]:
    """Return entries of a name map for two stacks, the first of them turned; see `Half`."""
    return {f"layers.{part}": Half(stored, part, (turned, other)) for part in (turned, other)}


def stored_together(
    stored: str,
    *parts: str,
    by_head: bool = False,
    by_expert: bool = False,
    transposed: bool = False,
    alternating: bool = False,
    rows: Rows | None = None,
    dims: tuple[int, ...] | None = None,
) -> dict[str, Slice]:
    """Return entries of a name map for matrices of a layer that are stored as one."""
    orders = by_head, by_expert, transposed, alternating, rows, dims
    return {f"layers.{part}": Slice(stored, part, parts, *orders) for part in parts}
