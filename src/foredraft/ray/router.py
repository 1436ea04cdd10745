"""Ray Serve's request router for engine replicas: by the beginning of the prompt, and by load."""

from __future__ import annotations

import random
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from foredraft.ray.forwarding import ForwardedRequest
from foredraft.ray.prefixes import PrefixIndex, rank

__all__ = ["PrefixRouter"]


class PrefixRouter(RequestRouter):  # type: ignore[misc]  # Ray is not checked, so its class is Any
    """Prefers the replica that has the longest part of the prompt in its cache, as long as it isn't much busier than
    the others. What each replica has read is what this router has sent it.
    """

    def initialize_state(self, imbalance: int = 4) -> None:
        """imbalance  requests that a replica may have more than the least busy one before others are preferred"""
        self._imbalance = imbalance
        self._index: PrefixIndex[ReplicaID] = PrefixIndex()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Candidates from the best one to the worst; the first that has room gets the request."""
        candidates = {replica.replica_id: replica for replica in candidate_replicas}
        shuffled = random.sample(list(candidates), len(candidates))  # so that equals take turns
        loads = {name: self.replica_queue_len_cache.get(name) or 0 for name in shuffled}
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        ranked = rank(_names(pending_request), loads, self._index, imbalance=self._imbalance)
        return [[candidates[name]] for name in ranked]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        self._index.add(_names(pending_request), replica_id)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._index.forget(replica_id)


def _names(pending: PendingRequest | None) -> tuple[bytes, ...]:
    request = pending.args[0] if pending is not None and pending.args else None
    return request.prefix if isinstance(request, ForwardedRequest) else ()
