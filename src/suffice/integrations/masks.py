"""Reads transformers' attention masks: which columns are padding, and the sliding window."""

from __future__ import annotations

import torch

from suffice.errors import InputError


class Columns:
    """The columns of a batch of padded sequences, and which of them hold a token.

    `held` bool [B, S] marks columns that hold a token. `added` bool [B, T] marks those of the
    columns added last; None: all of them.
    """

    def __init__(self) -> None:
        self.held = torch.zeros(0, 0, dtype=torch.bool)
        self.added: torch.Tensor | None = None
        self._added = 0
        self._masks: list[tuple[torch.Tensor, int | None]] = []  # of this pass, with their windows

    @property
    def count(self) -> int:
        """Columns so far, S."""
        return self.held.shape[1]

    def add(self, batch: int, count: int, mask: torch.Tensor | None) -> list[int]:
        """Add columns; return the number of tokens they bring to each request.

        `mask` bool [B, 1, count, S + count]; None: there is no padding. A token sees itself; no
        token sees padding.

        Raises:
            InputError: A mask of another shape or type.
        """
        new = torch.ones(batch, count, dtype=torch.bool)
        if mask is not None:
            seen = _rows(mask, count, self.count + count)
            new = seen.diagonal(self.count, 1, 2).expand(batch, count).cpu()
        before = self.held if self.count else new[:, :0]
        self.held = torch.cat([before, new], 1)
        self.added = None if bool(new.all()) else new
        self._added, self._masks = count, []
        return [int(tokens) for tokens in new.sum(1)]

    def continued(self, mask: torch.Tensor) -> bool:
        """Return whether `mask` [B, S + 1] hides the padding so far and nothing else.

        Waits for the mask's device.
        """
        if mask.shape != (len(self.held), self.count + 1):
            return False
        seen = mask.bool().cpu()
        return bool(seen[:, -1].all()) and torch.equal(seen[:, :-1], self.held)

    def lost(self, columns: int) -> list[int]:
        """Return the number of each request's tokens in the last columns."""
        return [int(tokens) for tokens in self.held[:, self.count - columns :].sum(1)]

    def drop(self, columns: int) -> None:
        """Drop the last columns."""
        self.held = self.held[:, : self.count - columns]

    def select(self, indices: list[int]) -> None:
        """Keep the requests in `indices`, in that order."""
        self.held = self.held[indices]

    def window(self, mask: torch.Tensor | None) -> int | None:
        """Return the most tokens that new ones see by a mask, themselves included; None for all.

        Raises:
            InputError: The mask is neither causal nor that of a sliding window.
        """
        if mask is None:
            return None
        for known, window in self._masks:
            if known is mask:
                return window
        window = self._window(_rows(mask, self._added, self.count).cpu())
        self._masks.append((mask, window))
        return window

    def _window(self, seen: torch.Tensor) -> int | None:
        """Return the window for `seen` bool [B, T, S]."""
        columns = torch.arange(self.count)
        rows = columns[self.count - self._added :, None]
        tokens = self.held[:, self.count - self._added :]
        seen = seen.expand(len(self.held), -1, -1)
        causal = self.held[:, None] & (columns <= rows)
        if torch.equal(seen[tokens], causal[tokens]):
            return None
        window = int(seen[tokens].sum(-1).max())
        within = causal & (columns > rows - window)
        # Masks have windows of columns, suffice of tokens: the same if no padding is in between.
        places = self.held.cumsum(1)[:, self.count - self._added :].clamp(max=window)
        if torch.equal(seen[tokens], within[tokens]) and torch.equal(
            within.sum(-1)[tokens], places[tokens]
        ):
            return window
        raise InputError(
            "attention_mask hides other tokens than padding: decode steps see all tokens so far, "
            "or those of a sliding window without padding in it"
        )


def _rows(mask: torch.Tensor, count: int, columns: int) -> torch.Tensor:
    """Return a mask as bool [B, count, columns]."""
    if mask.dtype != torch.bool or mask.dim() != 4 or mask.shape[1] != 1:
        raise InputError(
            f"attention_mask of shape {list(mask.shape)} and {mask.dtype}: must be [B, S], or bool "
            "[B, 1, T, S]"
        )
    if tuple(mask.shape[2:]) != (count, columns):
        raise InputError(
            f"attention_mask for {mask.shape[2]} x {mask.shape[3]} tokens: there are {count} x "
            f"{columns}"
        )
    return mask[:, 0]
