"""No guesses: plain decoding, which is speculation with zero drafts.

Exact    always.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NoDrafts:
    """One new token per step."""

    @classmethod
    def exact_limit(cls) -> NoDrafts:
        """Return the only setting there is."""
        return cls()
