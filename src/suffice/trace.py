"""What a run did: rows and bytes of keys, values and weights read, of how many held."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Trace:
    """Totals over the decode steps of a run, summed over layers and key/value heads.

    A row is one token's key (or value) in one layer and one head.
    """

    steps: int = 0
    key_rows_read: int = 0
    value_rows_read: int = 0
    rows_held: int = 0
    kv_bytes_read: int = 0
    weight_bytes_read: int = 0

    @property
    def key_fraction(self) -> float:
        """Fraction of the held key rows that were read."""
        return self.key_rows_read / self.rows_held if self.rows_held else 0.0

    @property
    def value_fraction(self) -> float:
        """Fraction of the held value rows that were read."""
        return self.value_rows_read / self.rows_held if self.rows_held else 0.0

    def add(self, other: Trace) -> None:
        """Add another trace's totals to this one."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
