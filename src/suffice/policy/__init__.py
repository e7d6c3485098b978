"""Which cached tokens are eligible for attention, and in which order they are read."""

from __future__ import annotations

from typing import Protocol

from suffice.registry import Table

__all__ = ["POLICIES", "Policy"]


class Policy(Protocol):
    """A choice of cached tokens."""

    @classmethod
    def exact_limit(cls) -> Policy | None:
        """Return the setting that must equal `full`, None if there is none."""
        ...


POLICIES = Table("policy", {"full": "suffice.policy.full:Full"})
