"""The bases of a layer's keys and values, 4 bits of each element that are read alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import triton

from suffice.attention.planes import LEVELS, rotated
from suffice.backends.triton.call import Held
from suffice.backends.triton.encode import encode, encode_fitted

ELEMENTS, _WARPS = 256, 8  # elements that a program rounds at a time
_OF_KEYS = ("key_codes", "key_scales", "key_shares", "key_errors")
_KEPT = (*_OF_KEYS, "value_codes", "value_scales", "value_errors")


class Rounding(NamedTuple):
    """How keys are rounded, as `suffice.decoder.key_rounding` fits it: of G key/value heads.

    `channels`, its scales, `means` and `weights` are float32 [G, D], `passed` [G, D, D]. Of queries
    come the `inverses` of channels, and `duals` float64 [G, D, D]: the length of a query times
    these times that of what a base lacks bounds their product.
    """

    channels: torch.Tensor
    means: torch.Tensor
    passed: torch.Tensor
    weights: torch.Tensor
    inverses: torch.Tensor
    duals: torch.Tensor

    @classmethod
    def of(cls, parts: Sequence[np.ndarray], device: torch.device) -> Rounding:
        """Return the rounding of scales, means, what is passed on, and weights of one layer."""
        held = (torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in parts)
        scales, means, passed, weights = held
        one = torch.eye(scales.shape[-1], dtype=torch.float64, device=device)
        inverse = torch.linalg.solve_triangular(one + passed.double(), one, upper=True)
        duals = inverse.mT / weights.double().sqrt()[:, None]
        return cls(scales, means, passed, weights, 1 / scales, duals)


class Bases:
    """The bases of B requests' rows: they are made once and stay as they are.

    Codes are uint8 [B, G, C, D / 2], `key_scales` and `key_shares` (of the mean key) bfloat16 [B,
    G, C], `value_scales` float32, and the errors bytes.
    """

    def __init__(
        self,
        requests: int,
        heads: int,
        size: int,
        rows: int,
        device: torch.device,
        rounding: Rounding | None = None,
    ) -> None:
        self.size, self.rows, self.rounding = size, rows, rounding  # rows: room for each request

        def room(*rest: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
            return torch.zeros(requests, heads, rows, *rest, dtype=dtype, device=device)

        self.key_codes, self.value_codes = room(size // 2), room(size // 2)
        self.key_errors, self.value_errors = room(), room()
        self.key_scales, self.key_shares = (room(dtype=torch.bfloat16) for _ in range(2))
        self.value_scales = room(dtype=torch.float32)
        self._made = torch.zeros(requests, dtype=torch.int32, device=device)  # rows

    @property
    def rotation(self) -> dict[str, int]:
        """Compile-time values: the size of the parts that are rotated, and its logarithm."""
        part = self.size & -self.size
        return {"PART": part, "STEPS": part.bit_length() - 1}

    def reserve(self, rows: int) -> None:
        """Make room for `rows` rows of each request."""
        for name in _KEPT:
            held: torch.Tensor = getattr(self, name)
            more = held.new_zeros(*held.shape[:2], rows - self.rows, *held.shape[3:])
            setattr(self, name, torch.cat((held, more), 2))
        self.rows = rows

    def truncate(self, lengths: torch.Tensor) -> None:
        """Forget the rows beyond the first `lengths` [B] of each request."""
        torch.minimum(self._made, lengths, out=self._made)  # in place: graphs read it

    def select(self, indices: torch.Tensor) -> None:
        """Let request i go on with the bases of request `indices[i]`."""
        for name in (*_KEPT, "_made"):
            setattr(self, name, getattr(self, name)[indices])

    def extend(self, held: Held, lengths: torch.Tensor, new: int) -> None:
        """Make the bases of the first rows [B] of each request; at most `new` have none yet."""
        requests, heads, room = self.key_scales.shape
        table = self._made if held.table is None else held.table
        where = heads, room, *held.strides, 0 if held.table is None else table.stride(0)
        dim = triton.next_power_of_2(self.size)
        how = {**self.rotation, "D": self.size, "DIM": dim, "PAGE": held.page}
        run = min(triton.next_power_of_2(new), ELEMENTS // dim)
        how |= {"RUN": run, "num_warps": _WARPS if run > 1 else max(dim // 64, 1)}
        grid = -(-new // run), requests * heads
        for keys, x in ((True, held.keys), (False, held.values)):
            rounding = self.rounding if keys else None
            if rounding is None:
                side = "key" if keys else "value"
                to = [getattr(self, f"{side}_{name}") for name in ("codes", "scales", "errors")]
                encode[grid](x, table, *to, self._made, lengths, *where, **how, KEYS=keys)
            else:
                to = [getattr(self, name) for name in _OF_KEYS]
                encode_fitted[grid](
                    x, table, *to, self._made, lengths, *rounding[:4], *where, **how
                )
        self._made.copy_(lengths)

    def values(self) -> torch.Tensor:
        """Return what values are by their bases, float32 [B, G, C, D]."""
        device = self.value_codes.device
        levels = torch.from_numpy(LEVELS.astype(np.float32)).to(device)
        turn = torch.from_numpy(rotated(np.eye(self.size, dtype=np.float32))).to(device)
        codes = torch.stack((self.value_codes & 15, self.value_codes >> 4), -1).flatten(-2)
        return levels[codes.int()] * self.value_scales[..., None] @ turn
