"""The rows that `aet` always reads: its state of each request, on the device of its keys.

As `suffice.attention.aet.Known`: sinks, global and local blocks, and the softmax mass that these
have had. A block that stops being local replaces the lightest global one.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton

from suffice.backends.triton.aet import always_read, learn_masses
from suffice.backends.triton.call import Blocks, Call, Sums
from suffice.cache import BLOCK


class AetSets:
    """The states of B requests' G key/value heads in one layer."""

    def __init__(
        self, parameters: Mapping[str, float], requests: int, heads: int, device: torch.device
    ) -> None:
        self._sinks, self._most = int(parameters["sinks"]), int(parameters["globals"])
        self._locals = int(parameters["locals"])  # tokens
        local = -(-self._locals // BLOCK) + 1  # blocks, at most
        self._kinds = {
            "MOST": triton.next_power_of_2(max(self._most, 1)),
            "LOCALS": triton.next_power_of_2(local),
            "LISTED": triton.next_power_of_2(self._sinks + self._most + local),
        }
        shape = requests, heads
        self._ends = torch.zeros(*shape, 3, dtype=torch.int32, device=device)
        self._kept = torch.zeros(*shape, self._kinds["MOST"], dtype=torch.int32, device=device)
        self._masses = torch.zeros(*shape, self._kinds["MOST"], device=device)
        self._local_masses = torch.zeros(*shape, self._kinds["LOCALS"], device=device)

    def select(self, indices: torch.Tensor) -> None:
        """Let request i go on with the state of request `indices[i]`."""
        for name in ("_ends", "_kept", "_masses", "_local_masses"):
            setattr(self, name, getattr(self, name)[indices])

    def always(self, call: Call) -> tuple[Blocks, torch.Tensor]:
        """Return the blocks that a token of each request always reads; `marks` [N, G, M] of them.

        Each request has one token.
        """
        blocks = call.zeros(self._kinds["LISTED"])
        counts, marks = call.zeros(), call.zeros(call.units(BLOCK, None), dtype=torch.int8)
        always_read[(call.pairs,)](
            call.tokens.owner, call.tokens.length, self._ends, self._kept, self._masses,
            self._local_masses, blocks, counts, marks,
            call.heads, self._sinks, self._most, self._locals, marks.shape[-1], **self._kinds,
        )  # fmt: skip
        shape = call.count, call.heads
        return Blocks(blocks.view(*shape, -1), counts.view(shape)), marks.view(*shape, -1)

    def learn(
        self, call: Call, listed: Blocks, peaks: torch.Tensor, totals: torch.Tensor, sums: Sums
    ) -> None:
        """Add the masses that tokens gave the blocks of `always`: their sums, and those of all."""
        learn_masses[(call.pairs,)](
            call.tokens.owner, self._ends, self._masses, self._local_masses, listed.counts,
            peaks, totals, sums.peaks, sums.totals, call.heads, self._sinks, peaks.shape[1],
            GROUP=call.group, ROWS=call.rows, **self._kinds,
        )  # fmt: skip
