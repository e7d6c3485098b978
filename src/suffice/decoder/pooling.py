"""From the last states of a text's tokens to its embedding, as sentence-transformers does it.

A text is pooled to one vector, which matrices may change and which may be normalized. Sums are
float64 and go row by row, so that no bit depends on how the text was cut.

Source: sentence_transformers' modules Pooling, Dense and Normalize.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffice.errors import InputError, unknown

LAST = "lasttoken"
MODES = (LAST, "mean", "mean_sqrt_len_tokens", "weightedmean", "max", "cls")
ACTIVATIONS = ("Identity", "Tanh")
_LEAST_NORM = 1e-12  # as PyTorch's normalize


@dataclass(frozen=True, eq=False)
class Dense:
    """A matrix [N, K] after pooling, with a bias [N] if it has one, and one of ACTIVATIONS."""

    weight: NDArray[np.float32]
    bias: NDArray[np.float32] | None
    activation: str = "Identity"

    def of(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what a vector [K] becomes, [N]; a sum has one order, whatever BLAS has."""
        found: NDArray[np.float64] = np.einsum("nk,k->n", self.weight, vector)
        if self.bias is not None:
            found = found + self.bias
        return np.tanh(found) if self.activation == "Tanh" else found


@dataclass(frozen=True, eq=False)
class Pooling:
    """How a model's states become an embedding of `size` entries; 0 if they become none.

    Attributes:
        mode: One of MODES. `weightedmean` weighs a token by its position, counted from 1.
        declared: Whether the model's files say that it embeds, and how.
        headless: Whether it can do nothing else: its files have no head.
        prompts: Texts that stand before a text, by name.
        default_prompt: The name of the one that is used if none is asked for.
        yes_no: The tokens by which the files say that it ranks, the one for "relevant" first.
    """

    size: int
    mode: str = LAST
    dense: tuple[Dense, ...] = ()
    normalize: bool = True
    declared: bool = False
    headless: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    yes_no: tuple[int, int] | None = None

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Pooling:
        """Return it from what `plain` gave, or from JSON of that."""
        pair = plain.get("yes_no")
        return cls(**{**plain, "yes_no": None if pair is None else (int(pair[0]), int(pair[1]))})

    @property
    def plain(self) -> dict[str, Any]:
        """Its fields, without matrices, as values that JSON can hold."""
        return {
            each.name: getattr(self, each.name) for each in fields(self) if each.name != "dense"
        }

    @property
    def embeds(self) -> bool:
        """Whether its files say that it embeds, or it can do nothing else."""
        return (self.declared or self.headless) and self.yes_no is None

    @property
    def whole(self) -> bool:
        """Whether it needs the states of all tokens, not of the last alone."""
        return self.mode != LAST

    def prompt(self, name: str | None) -> str:
        """Return the text that stands before a text, by its name or by default.

        Raises:
            InputError: There is none of that name.
        """
        if name is None:
            name = self.default_prompt
        if name is None:
            return ""
        if name not in self.prompts:
            raise unknown("prompt_name", name, self.prompts)
        return self.prompts[name]

    def embedding(
        self, pooled: NDArray[np.float64], dimensions: int | None, normalize: bool | None
    ) -> NDArray[np.float32]:
        """Return the embedding of a pooled text; `dimensions` keeps its first entries alone.

        It is normalized after that, unless the model or the caller does not want it.

        Raises:
            InputError: It has NaN or an infinity.
        """
        for each in self.dense:
            pooled = each.of(pooled)
        pooled = pooled[:dimensions]
        if not np.isfinite(pooled).all():
            raise InputError("the embedding is not finite: the model's weights may be damaged")
        if self.normalize if normalize is None else normalize:
            pooled = pooled / max(math.sqrt(float(np.square(pooled).sum())), _LEAST_NORM)
        return pooled.astype(np.float32)


class Pool:
    """The pooled states of a text so far."""

    def __init__(self, mode: str) -> None:
        self.rows = 0
        self._mode = mode
        self._value = np.zeros(0)

    def add(self, states: NDArray[np.float32]) -> None:
        """Take the states [T, W] of the next tokens."""
        for row in states:
            state = row.astype(np.float64)
            self.rows += 1
            if self._mode == LAST or self.rows == 1:
                self._value = state
            elif self._mode == "max":
                self._value = np.maximum(self._value, state)
            elif self._mode != "cls":
                self._value = self._value + self._weight(self.rows) * state

    def _weight(self, position: int) -> int:
        return position if self._mode == "weightedmean" else 1

    @property
    def value(self) -> NDArray[np.float64]:
        """The pooled states [W]; there must be some."""
        count = self.rows
        divisors = {
            "mean": float(count),
            "mean_sqrt_len_tokens": math.sqrt(count),
            "weightedmean": count * (count + 1) / 2,
        }
        return self._value / divisors.get(self._mode, 1.0)
