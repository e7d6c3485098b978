"""The rows that `aet` always reads: its state of each request, on the device of its keys.

As `suffice.attention.aet.Known`: sinks, global and local blocks, and the softmax mass that these
have had. A block that stops being local replaces the lightest global one.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch

from suffice.cache import BLOCK


class AetSet:
    """The state of one request's G key/value heads in one layer."""

    def __init__(self, parameters: Mapping[str, float], heads: int, device: torch.device) -> None:
        self._sinks, self._most = int(parameters["sinks"]), int(parameters["globals"])
        self._locals = int(parameters["locals"])  # tokens
        self._heads, self._device = heads, device
        self._next = self._local = 0  # the first block not seen yet, and the first local one
        self._globals = torch.zeros(heads, 0, dtype=torch.int32, device=device)
        self._masses = torch.zeros(heads, 0, device=device)  # of these
        self._local_masses = torch.zeros(heads, 0, device=device)

    def copy(self) -> AetSet:
        """Return the same state, which goes on by itself: its tensors are replaced, not changed."""
        return copy.copy(self)

    def always(self, length: int) -> torch.Tensor:
        """Return the blocks that a token which sees `length` keys always reads, int32 [G, M]."""
        self._see(length)
        while self._local < self._next and (self._local + 1) * BLOCK <= length - self._locals:
            self._retire()
        sinks, local = (
            torch.arange(*ends, dtype=torch.int32, device=self._device).expand(self._heads, -1)
            for ends in ((0, min(self._sinks, self._next)), (self._local, self._next))
        )
        return torch.cat((sinks, self._globals, local), 1)

    def learn(self, masses: torch.Tensor) -> None:
        """Add the masses [G, M] that a token gave the blocks of `always`."""
        sinks, kept = min(self._sinks, self._next), self._globals.shape[1]
        self._masses = self._masses + masses[:, sinks : sinks + kept]
        self._local_masses = self._local_masses + masses[:, sinks + kept :]

    def _see(self, length: int) -> None:
        """Make the blocks of new tokens local."""
        blocks = -(-length // BLOCK)
        self._local = max(self._local, min(self._sinks, blocks))
        if self._next == 0:  # of blocks without mass the newest become global
            self._local = max(self._local, (length - self._locals) // BLOCK - self._most)
        new = max(blocks - max(self._next, self._local), 0)
        self._next = max(self._next, blocks)
        zeros = torch.zeros(self._heads, new, device=self._device)
        self._local_masses = torch.cat((self._local_masses, zeros), 1)

    def _retire(self) -> None:
        """Make the first local block global, in place of the lightest one if all are taken."""
        block, mass = self._local, self._local_masses[:, :1]
        self._local, self._local_masses = block + 1, self._local_masses[:, 1:]
        if not self._most:
            return
        if self._globals.shape[1] == self._most:
            # Of equally light ones the first: they are in the order in which they came.
            lightest = self._masses.argmin(1, keepdim=True)
            others = torch.arange(self._most - 1, device=self._device)
            others = others + (others >= lightest)
            self._globals, self._masses = (
                x.gather(1, others) for x in (self._globals, self._masses)
            )
        new = torch.full((self._heads, 1), block, dtype=torch.int32, device=self._device)
        self._globals = torch.cat((self._globals, new), 1)
        self._masses = torch.cat((self._masses, mass), 1)
