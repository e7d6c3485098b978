"""Base classes of techniques: members they inherit, and the reference of block-by-block ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from suffice.cache import BLOCK
from suffice.errors import InputError, unknown

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from suffice.attention.levels import Levels
    from suffice.attention.rule import AttentionRule
    from suffice.attention.traversal import Attended, Stopping


ORDERS = ("newest", "sketch")


class Technique(ABC):
    """A technique that a backend runs by a rule; see `Attention` for the members."""

    needs_exact_softmax: ClassVar[bool] = False
    applies_to_prompts: ClassVar[bool] = False
    stateless: ClassVar[bool] = True
    calibrated: bool = False
    ladders: ClassVar[dict[str, tuple[float, ...]]] = {}  # of what `calibrate --budget` finds
    estimates: ClassVar[bool] = False

    @property
    def sketched(self) -> bool:
        """Whether the cache must keep a sketch of the keys."""
        return False

    @property
    def based(self) -> bool:
        """Whether the cache must keep a base of each row, 4 bits of it that are read alone."""
        return False

    @property
    def unread_in_prompts(self) -> float:
        """The largest share of its softmaxes that a tile of a prompt leaves unread, on average."""
        return 0.0

    @property
    def confidence(self) -> float:
        """The probability with which a bound holds, for each softmax."""
        return 1.0

    @property
    def needs_all_tokens(self) -> bool:
        """Whether it selects from all tokens itself: yes, if it uses the sketch."""
        return self.sketched

    @abstractmethod
    def rule(self) -> AttentionRule | None:
        """Return what a backend reads, None if it reads everything."""


class BlockByBlock(Technique):
    """A technique that decides after each block whether to stop: a `Stopping` of the traversal.

    `order`: "newest" reads blocks newest first, as in the papers; "sketch" reads them by descending
    mass, estimated from the sketch of the keys that `certified` uses.
    """

    order: str

    @property
    def sketched(self) -> bool:
        """Return whether the cache must keep a sketch of the keys."""
        return self.order == "sketch"

    def check_order(self, name: str, block: int) -> None:
        """Require a known order, and the block size that it needs.

        Raises:
            InputError: The order is unknown, or does not fit the block size.
        """
        if self.order not in ORDERS:
            raise unknown(f"order of {name}", self.order, ORDERS)
        if self.sketched and block != BLOCK:
            raise InputError(
                f"{name}: block={block}: order=sketch needs block={BLOCK}: add block={BLOCK}"
            )

    def reference(
        self: Stopping,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        *,
        scale: float,
        visible: np.ndarray | None = None,
        states: list[Any] | None = None,
        orders: list[list[int]] | None = None,
        levels: Sequence[Levels] | None = None,
    ) -> Attended:
        """Attend by the loop of `suffice.attention.traversal`, which describes `orders`.

        For the rest see `Attention.reference`.
        """
        from suffice.attention.traversal import traverse

        return traverse(
            self,
            q,
            k,
            v,
            scale=scale,
            visible=visible,
            states=states,
            orders=orders,
            levels=levels,
        )
