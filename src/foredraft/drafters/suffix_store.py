"""A bounded store of finished texts, shared by the requests of a server and searched like a request's own text.

Texts are kept in one ring with the chains of suffix_kernels.py, so its memory is fixed from the start. When room is
needed the oldest text leaves, unless it was drafted from since its turn last came: then it moves to the front (the
clock algorithm, least recently used to within one turn). Tokens are stored together with their namespace, so that a
text of one namespace never matches, and therefore never shows, in another. All methods may be called from several
threads."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from foredraft.drafters.suffix_index import Chains, Evidence
from foredraft.errors import CapacityError, ConfigError

__all__ = ["SuffixStore"]

END = -1
LAST_POSITION = 2**31 - 1
SECOND_CHANCES = 4
"""Moving used texts to the front costs at most this many times the room that is needed."""


@dataclass(slots=True)
class _Text:
    namespace: str
    start: int
    stop: int
    used: bool = False


class SuffixStore:
    """At most `max_requests` texts and `max_bytes` of memory, to which bookkeeping adds some 300 bytes a text."""

    def __init__(self, max_bytes: int = 64 << 20, max_requests: int = 10_000) -> None:
        capacity = 1 << (max_bytes // Chains.BYTES).bit_length() >> 1
        if capacity < 1024 or max_requests < 1:
            raise ConfigError(
                f"A store of {max_bytes} bytes and {max_requests} requests holds nothing useful; "
                f"give at least {1024 * Chains.BYTES} bytes and 1 request."
            )
        self.max_requests = max_requests
        self._chains = _allocated(capacity)
        self._lock = Lock()
        self._next_salt = 1
        self._stop = 0
        self._texts: list[_Text] = []
        self._starts: list[int] = []
        self._salts: dict[str, int] = {}
        self._held: dict[str, int] = {}

    @property
    def nbytes(self) -> int:
        """Memory of the ring; pages that were never written may not count as resident yet."""
        return self._chains.capacity * Chains.BYTES

    @property
    def requests(self) -> int:
        """Texts held now."""
        return len(self._texts)

    def add(self, tokens: Sequence[int], namespace: str = "") -> None:
        """Remember a text; only its end if it is longer than a quarter of the store."""
        kept = np.array(tokens[-(self._chains.capacity // 4) :], dtype=np.int64)
        if not len(kept):
            return
        with self._lock:
            self._make_room(len(kept) + 1)
            self._append(kept, namespace)

    def recall(self, pattern: NDArray[np.int64], evidence: Evidence, limit: int, namespace: str = "") -> int:
        """Add up to `limit` continuations of the longest suffixes of `pattern` to `evidence`; the longest's length."""
        with self._lock:
            if namespace not in self._salts:
                return 0
            first = evidence.count
            span = (self._starts[0], self._stop)
            self._chains.recall(pattern, span, self._salts[namespace] << 32, evidence, limit)
            if evidence.count == first:
                return 0
            # the first continuation is that of the longest and latest match
            self._texts[bisect_right(self._starts, int(evidence.ends[first]) - 1) - 1].used = True
            return int(evidence.lengths[first])

    def _append(self, tokens: NDArray[np.int64], namespace: str) -> None:
        if namespace not in self._salts:
            self._salts[namespace] = self._next_salt
            self._held[namespace] = 0
            self._next_salt += 1
        self._held[namespace] += 1
        text = _Text(namespace, self._stop, self._stop + len(tokens))
        self._starts.append(text.start)
        self._texts.append(text)
        self._chains.write(text.start, np.append(tokens | (self._salts[namespace] << 32), END))
        self._stop = text.stop + 1

    def _make_room(self, needed: int) -> None:
        if self._stop + needed > LAST_POSITION - SECOND_CHANCES * needed - self._chains.capacity:
            self._chains = _allocated(self._chains.capacity)
            self._stop = 0
            for kept in (self._texts, self._starts, self._salts, self._held):
                kept.clear()
        chances = SECOND_CHANCES * needed
        while self._texts and (
            self._stop + needed - self._starts[0] > self._chains.capacity or len(self._texts) >= self.max_requests
        ):
            text = self._texts.pop(0)
            del self._starts[0]
            self._held[text.namespace] -= 1
            if text.used and chances > 0:
                chances -= text.stop - text.start
                self._append(self._read(text), text.namespace)
            elif not self._held[text.namespace]:
                del self._held[text.namespace], self._salts[text.namespace]

    def _read(self, text: _Text) -> NDArray[np.int64]:
        positions = np.arange(text.start, text.stop) % self._chains.capacity
        return self._chains.tokens[positions] & 0xFFFFFFFF


def _allocated(capacity: int) -> Chains:
    try:
        return Chains(capacity)
    except (MemoryError, ValueError) as error:  # numpy's ValueError: more than can be addressed
        raise CapacityError(
            f"A store of {capacity * Chains.BYTES} bytes for earlier texts doesn't fit into memory; lower "
            "suffix_decoding_max_cached_bytes."
        ) from error
