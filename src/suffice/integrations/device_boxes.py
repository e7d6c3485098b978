"""The boxes of blocks of keys on a GPU, by which `quest` selects what a query reads."""

from __future__ import annotations

import torch

from suffice.backends.triton.call import Blocks, Held, Tokens
from suffice.cache import BLOCK


class Boxes:
    """The least and the greatest key, per channel, of each block of B requests.

    `limited`: some request reads a limited number of blocks.
    """

    def __init__(self, requests: int, heads: int, size: int, device: torch.device) -> None:
        self.low = torch.zeros(requests, heads, 0, size, device=device)
        self.high = torch.zeros_like(self.low)
        self.most = torch.zeros(requests, dtype=torch.int32, device=device)  # 0: all blocks
        self.limited = False

    def reserve(self, rows: int) -> None:
        """Make room for the blocks of `rows` rows."""
        more = -(-rows // BLOCK) - self.low.shape[2]
        self.low, self.high = (
            torch.nn.functional.pad(each, (0, 0, 0, more)) for each in (self.low, self.high)
        )

    def limit(self, request: int, blocks: int) -> None:
        """Let tokens of a request read that many blocks."""
        self.most[request] = blocks
        self.limited = True

    def truncate(self, lengths: torch.Tensor) -> None:
        """Do nothing: each new row makes the box of its block again."""

    def select(self, indices: torch.Tensor) -> None:
        """Let request i go on with the boxes of request `indices[i]`."""
        self.low, self.high, self.most = (
            each[indices] for each in (self.low, self.high, self.most)
        )

    def extend(self, held: Held, lengths: torch.Tensor, new: int) -> None:
        """Make the boxes of the blocks with the last `new` rows, or fewer, of each request.

        That of a block that is not full yet has rows that are not there. It is not looked at: each
        token reads its newest block.
        """
        count = min(-(-new // BLOCK) + 1, self.low.shape[2])
        first = (((lengths + BLOCK - 1) // BLOCK) - count).clamp(min=0)
        blocks = first[:, None] + torch.arange(count, device=lengths.device)
        rows = blocks[..., None] * BLOCK + torch.arange(BLOCK, device=lengths.device)
        at = rows.flatten(1).clamp(max=held.keys.shape[2] - 1)[:, None, :, None]
        heads, size = held.keys.shape[1], held.keys.shape[3]
        keys = held.keys.gather(2, at.long().expand(-1, heads, -1, size)).float()
        keys = keys.view(*keys.shape[:2], count, BLOCK, size)
        to = blocks.long()[:, None, :, None].expand(-1, heads, -1, size)
        self.low.scatter_(2, to, keys.amin(3))
        self.high.scatter_(2, to, keys.amax(3))

    def bytes_read(self, tokens: Tokens) -> torch.Tensor:
        """Return the bytes of boxes that each token reads for each head, int32 [N, G]."""
        others = ((tokens.length + BLOCK - 1) // BLOCK - 1).clamp(min=0)
        each = self.low.element_size() * 2 * self.low.shape[-1]
        return (each * others)[:, None].expand(-1, self.low.shape[1])

    def ranked(self, q: torch.Tensor, tokens: Tokens) -> Blocks:
        """Return the newest block and those that may score highest, for queries [N, H, D]."""
        owner, heads = tokens.owner.long(), self.low.shape[1]
        grouped = q.float().view(len(q), heads, -1, q.shape[-1])
        low, high = self.low[owner], self.high[owner]
        bound = grouped.clamp(min=0) @ high.mT + grouped.clamp(max=0) @ low.mT  # [N, G, R, blocks]
        best = bound.amax(2)
        blocks = (tokens.length + BLOCK - 1) // BLOCK
        place = torch.arange(best.shape[-1], device=q.device)
        newest = (blocks - 1)[:, None, None]
        best = torch.where(place < newest, best, -torch.inf)
        best = torch.where(place == newest, torch.inf, best)
        order = best.sort(dim=-1, descending=True, stable=True).indices
        most = self.most[owner]
        counts = torch.where(most > 0, torch.minimum(blocks, most), blocks)
        return Blocks(order.int(), counts[:, None].expand(best.shape[:2]).contiguous())
