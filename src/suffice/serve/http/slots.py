"""The places of a server, by llama.cpp's API: which text each of them ended with last.

Any request can take any place, and keys and values are in no place but in the engines' stores. A
place is a name for a text, by which clients save it and have it back.
"""

from __future__ import annotations

from collections.abc import Sequence

from suffice.serve.processes import wire
from suffice.serve.processes.pending import Ticket


class Slots:
    """A number of places; 0: places are not told apart."""

    def __init__(self, count: int) -> None:
        self._texts: list[wire.Submit | None] = [None] * count  # a text is the work's whole prompt
        self._users = [0] * count

    @property
    def busy(self) -> list[bool]:
        """Whether requests run in each place."""
        return [users > 0 for users in self._users]

    def take(self, ticket: Ticket, asked: int) -> None:
        """Give a ticket the place that is asked for, or with -1 the best.

        That is a free one, the one whose text begins as the prompt does for longest, the first of
        these. Of texts of other API keys or salts nobody learns whether they begin so.
        """
        if not self._texts:
            return
        work = ticket.work

        def rank(at: int) -> tuple[int, int]:
            text = self.text(at, work.group)
            return self._users[at], 0 if text is None else -common(text.prompt, work.prompt)

        ticket.place = min(range(len(self._texts)), key=rank) if asked < 0 else asked
        self._users[ticket.place] += 1

    def leave(self, ticket: Ticket) -> None:
        """Let a ticket leave its place, whose text is now that of its first sample."""
        if ticket.place < 0:
            return
        self._users[ticket.place] -= 1
        if ticket.first_at is not None:
            self.put(ticket.place, plain(ticket.work, [*ticket.work.prompt, *ticket.emitted[0]]))

    def text(self, place: int, group: str) -> wire.Submit | None:
        """Return what a place ended with, if it is of this group."""
        found = self._texts[place]
        return found if found is not None and found.group == group else None

    def put(self, place: int, text: wire.Submit | None) -> None:
        """Have a place end with a text, or with none."""
        self._texts[place] = text


def plain(work: wire.Submit, tokens: list[int]) -> wire.Submit:
    """Return the work that runs a text of the same kind; the token that follows it is not run."""
    return wire.Submit(
        id="",
        prompt=tokens,
        params={"max_tokens": 1},
        key=work.key,
        attention=work.attention,
        adapter=work.adapter,
        group=work.group,
    )


def common(first: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two texts begin with in common."""
    most = min(len(first), len(other))
    if first[:most] == other[:most]:  # compared as a whole, which is what most are
        return most
    return next(at for at in range(most) if first[at] != other[at])
