"""Which sequences work in a step, and on how many tokens.

Continuous batching: decoding sequences first, then prompts in chunks, all in the same pass. A sequence is admitted when
a cache slot is free and its tokens fit into the KV room along with everybody's next step (root and drafts are reserved
before a step, so that no pass can run out of room). When running sequences outgrow the room, the youngest one is
preempted and computed again later. What sequences leave behind in their slots may fill what room is left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from foredraft.target.kv_cache import KVCache, common_prefix
from foredraft.types import Batch, Chunk, Sequence

__all__ = ["Scheduler"]


class Scheduler:
    """Owns the waiting and the running sequences and their cache slots.

    max_batched_tokens  prompt and root tokens per pass
    kv_room             cached tokens over all slots, those of free ones included
    draft_room          most draft nodes a sequence may add in a step
    on_admit, on_leave  called when a sequence gets and loses its slot
    """

    def __init__(
        self,
        cache: KVCache,
        *,
        max_batched_tokens: int,
        kv_room: int,
        draft_room: int,
        on_admit: Callable[[Sequence], None] = lambda _: None,
        on_leave: Callable[[Sequence], None] = lambda _: None,
    ) -> None:
        self.cache = cache
        self.max_batched_tokens = max_batched_tokens
        self.kv_room = kv_room
        self.draft_room = draft_room
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0
        self._on_admit = on_admit
        self._on_leave = on_leave

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """A sequence is over: finished or aborted, waiting or running."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._release(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def schedule(self) -> Batch:
        """The next step's work; empty only when idle."""
        while self._room_beside(self.running) < 0 and len(self.running) > 1:
            self._preempt(self.running[-1])
        self._admit()
        self.cache.retain(self._room_beside(self.running))
        budget = self.max_batched_tokens
        chunks = []
        # Steady decoders need one token each; serving them first keeps their latency flat while prompts are read.
        for sequence in sorted(self.running, key=lambda sequence: sequence.pending > 1):
            count = min(sequence.pending, max(budget, 0))
            if count:
                chunks.append(Chunk(sequence, count))
                budget -= count
        return Batch(tuple(chunks))

    def _admit(self) -> None:
        while self.waiting and self.cache.free_slots:
            sequence = self.waiting[0]
            if self.running and self._room_beside([*self.running, sequence]) < 0:
                return
            if self._prefix_is_being_read(sequence):
                return
            room = self._room_beside([*self.running, sequence])
            claimed = self.cache.claim(sequence.tokens, sequence.params.cache_salt, room)
            if claimed is None:
                return
            self.waiting.popleft()
            sequence.slot, sequence.cached = claimed
            if sequence.output_length == 0:
                sequence.prompt_tokens_cached = sequence.cached
            self.running.append(sequence)
            self._on_admit(sequence)

    def _room_beside(self, sequences: list[Sequence]) -> int:
        """What these sequences leave of the room during a step; below 0 where it doesn't suffice for them."""
        return self.kv_room - sum(len(sequence.tokens) + self.draft_room for sequence in sequences)

    def _prefix_is_being_read(self, sequence: Sequence) -> bool:
        """Whether waiting a step or two lets it copy a longer prefix that another sequence is just computing (n > 1,
        say).
        """
        limit, salt = len(sequence.tokens) - 1, sequence.params.cache_salt
        have = max(self.cache.prefixes(sequence.tokens, salt))
        return any(
            other.pending > 1
            and other.params.cache_salt == salt
            and common_prefix(other.tokens, sequence.tokens, limit) > max(have, other.cached)
            for other in self.running
        )

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release(sequence)
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def _release(self, sequence: Sequence) -> None:
        assert sequence.slot is not None
        try:
            self._on_leave(sequence)
        finally:  # the slot is free whatever a drafter makes of it
            self.cache.release(sequence.slot)
            sequence.slot = None
            sequence.cached = 0
