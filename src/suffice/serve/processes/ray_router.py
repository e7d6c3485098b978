"""How Ray Serve chooses a replica: a session's own one, else the one of two that has less to do."""

from __future__ import annotations

import random
from typing import Any

from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter


class SessionRouter(ConsistentHashRouter):  # type: ignore[misc]
    """Sends requests of a session to one replica, which has kept what they begin with.

    A replica that is full gives them to the next one on the ring. Requests without a session go to
    the less busy one of two replicas.
    """

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: Any = None
    ) -> list[list[Any]]:
        """Return ranks of candidates; the least busy one of the first rank that accepts gets it."""
        if pending_request is not None and pending_request.metadata.session_id:
            ranks: list[list[Any]] = await super().choose_replicas(
                candidate_replicas, pending_request
            )
            return ranks
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        two = random.sample(candidate_replicas, min(2, len(candidate_replicas)))
        return [two] if two else []
