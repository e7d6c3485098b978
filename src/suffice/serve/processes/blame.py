"""Which request an engine died of, so that the others never lose their answers with it.

A request that has got no token from an engine that died is suspected. After two such deaths it is
tried: it gets into an engine only when no other request waits there for its first token. A request
is to blame if the engine died while it alone waited so, and is given up the third time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from suffice.serve.processes.pending import Ticket

SUSPECT = 2  # engines that died under a request since its last token
MOST_BLAMED = 3


class Blame:
    """What of one instance's tickets is sent to its engine, and when."""

    def __init__(self, send: Callable[[Ticket], None], places: int) -> None:
        self._send, self._places = send, places
        self._held: deque[Ticket] = deque()  # not sent yet, in order
        self._sent: dict[str, Ticket] = {}  # those without a token from this engine

    def begin(self, tickets: Iterable[Ticket]) -> None:
        """Send the open tickets to a new engine: those that are suspected last, one by one."""
        self._held.clear()
        self._sent.clear()
        self._held.extend(
            sorted(tickets, key=lambda each: (each.tries >= SUSPECT, each.blamed, each.created))
        )
        self._pump()

    def add(self, ticket: Ticket) -> None:
        """Send a ticket, now or when those before it have been tried."""
        self._held.append(ticket)
        self._pump()

    def passed(self, ticket: Ticket) -> None:
        """Note that a ticket has got something from the engine, or has ended."""
        if self._sent.pop(ticket.work.id, None) is None and ticket in self._held:
            self._held.remove(ticket)
        self._pump()

    def died(self) -> list[Ticket]:
        """Note that the engine died; return the tickets to give up."""
        silent, running = list(self._sent.values()), self._running()
        for ticket in running:
            ticket.tries += 1
            if len(silent) == 1:
                ticket.blamed += 1
        self._sent.clear()
        self._held.clear()  # the next engine gets all that is open
        return [ticket for ticket in running if ticket.blamed >= MOST_BLAMED]

    def _pump(self) -> None:
        while self._held:
            suspected = self._held[0].tries >= SUSPECT
            if self._sent and (suspected or self._trying()):
                return
            ticket = self._held.popleft()
            ticket.silent = True
            self._sent[ticket.work.id] = ticket
            self._send(ticket)

    def _trying(self) -> bool:
        return any(ticket.tries >= SUSPECT for ticket in self._sent.values())

    def _running(self) -> list[Ticket]:
        """Return the silent tickets that have places by priority and order; others wait."""
        found, taken = [], 0
        for ticket in sorted(self._sent.values(), key=lambda each: each.work.priority):
            if taken < self._places:
                found.append(ticket)
            taken += ticket.samples
        return found
