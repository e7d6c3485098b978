"""Every cached token may be read, in the order of the text.

Exact    always.
"""

from __future__ import annotations

from dataclasses import dataclass

from suffice.policy.choice import KeepAll


@dataclass(frozen=True)
class Full(KeepAll):
    """Nothing is left out."""

    @classmethod
    def exact_limit(cls) -> Full:
        """Return the only setting."""
        return cls()
