"""Which replica has read the beginning of a prompt already. Knows nothing of Ray.

A prompt's text is cut into blocks, and each block is named by a hash of everything up to its end, so two prompts share
as many names as they have blocks in common at the beginning. A replica is remembered for every name it was given.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from hashlib import blake2b
from typing import Generic, TypeVar

__all__ = ["BLOCK_BYTES", "PrefixIndex", "prefix_names", "rank"]

BLOCK_BYTES = 128
MAX_BLOCKS = 256
NAME_BYTES = 8

Replica = TypeVar("Replica", bound=Hashable)


def prefix_names(body: bytes) -> tuple[bytes, ...]:
    """Names of a request body's first blocks; none if it has no prompt."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(fields, dict):
        return ()
    prompt = fields.get("messages") or fields.get("prompt")
    if not prompt:
        return ()
    # Tools come before the conversation in every chat template.
    text = json.dumps([fields.get("tools"), prompt], ensure_ascii=False).encode("utf-8", "replace")
    hashed = blake2b(digest_size=NAME_BYTES)
    names = []
    for begin in range(0, min(len(text), BLOCK_BYTES * MAX_BLOCKS) - BLOCK_BYTES + 1, BLOCK_BYTES):
        hashed.update(text[begin : begin + BLOCK_BYTES])
        names.append(hashed.copy().digest())
    return tuple(names)


class PrefixIndex(Generic[Replica]):
    """Remembers the last `capacity` blocks and who has read them."""

    def __init__(self, capacity: int = 100_000) -> None:
        self._capacity = capacity
        self._readers: OrderedDict[bytes, set[Replica]] = OrderedDict()

    def add(self, names: Sequence[bytes], replica: Replica) -> None:
        """This replica reads a prompt with these blocks."""
        for name in names:
            self._readers.setdefault(name, set()).add(replica)
            self._readers.move_to_end(name)
        while len(self._readers) > self._capacity:
            self._readers.popitem(last=False)

    def forget(self, replica: Replica) -> None:
        """This replica is gone, and what it had read with it."""
        for readers in self._readers.values():
            readers.discard(replica)

    def shared(self, names: Sequence[bytes], replica: Replica) -> int:
        """How many of the first blocks it has read."""
        count = 0
        for name in names:
            if replica not in self._readers.get(name, ()):
                break
            count += 1
        return count


def rank(
    names: Sequence[bytes], loads: Mapping[Replica, int], index: PrefixIndex[Replica], *, imbalance: int
) -> list[Replica]:
    """Replicas, the best one first: the longest shared beginning among those that aren't busy, then the least load.

    loads      requests that each replica has
    imbalance  a replica with so many requests more than the least busy one comes after all others
    """
    least = min(loads.values(), default=0)

    def key(replica: Replica) -> tuple[bool, int, int]:
        load = loads[replica]
        return load - least >= imbalance, -index.shared(names, replica), load

    return sorted(loads, key=key)
