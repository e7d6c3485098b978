"""What drafts have cost beyond what their tokens would have cost without them."""

from __future__ import annotations

_SHARE = 0.01  # of the time may be lost by drafts; more makes them wait
_MEMORY = 2000.0  # steps after which what was lost counts for a third
_MOST = 16.0  # steps without drafts that one step may lose: beyond, something else ran


class Account:
    """Keeps drafts from losing time, whatever was expected of them.

    Chances and costs are estimates, and a first draft may cost what none of them says, as where it
    makes sketches of a long prompt. So what drafts really took is booked, and once they have lost
    more than 1 % of the time there are none until the time has grown.
    """

    def __init__(self) -> None:
        self._spent = self._lost = 0.0  # seconds

    @property
    def open(self) -> bool:
        """Whether drafts may be made."""
        return self._lost <= _SHARE * self._spent

    def add(self, seconds: float, plain: float, steps: float, drafted: bool) -> None:
        """Take a step's time, its drafts' included.

        `plain`: of a step without drafts; `steps`: such steps that its tokens would have taken.
        """
        kept = 1 - 1 / _MEMORY
        self._spent, self._lost = kept * self._spent + seconds, kept * self._lost
        if drafted:
            self._lost += min(seconds - steps * plain, _MOST * plain)
        self._lost = max(self._lost, -_SHARE * self._spent)
