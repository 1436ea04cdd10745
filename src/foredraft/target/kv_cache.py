"""Keys and values of everything computed so far, in slots.

A slot belongs to one sequence at a time and holds its tokens' keys and values in order of position. Buffers grow by
doubling; what is reserved but never written costs address space only (pages are touched on first use). A freed slot
keeps its content while there is room, and `claim` starts a new sequence from the longest common prefix of any slot,
copying it when that slot is still in use or holds much more than the prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import torch
from torch import Tensor

from foredraft.errors import CapacityError
from foredraft.target.machine import hand_back

__all__ = ["CacheShape", "KVCache"]

FIRST_CAPACITY = 256


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Per layer: key/value heads and their sizes."""

    kv_heads: tuple[int, ...]
    key_dim: tuple[int, ...]
    value_dim: tuple[int, ...]

    @property
    def layers(self) -> int:
        return len(self.kv_heads)

    def planes(self) -> list[tuple[int, int, int]]:
        """(buffers, kv_heads, dim) of each tensor that holds buffers: keys of all layers, then values."""
        buffers = [*zip(self.kv_heads, self.key_dim, strict=True), *zip(self.kv_heads, self.value_dim, strict=True)]
        if len(set(buffers)) == 1:
            return [(len(buffers), *buffers[0])]
        return [(1, *buffer) for buffer in buffers]

    def bytes_per_token(self, element_size: int) -> int:
        return element_size * sum(
            heads * (key + value) for heads, key, value in zip(self.kv_heads, self.key_dim, self.value_dim, strict=True)
        )


@dataclass(slots=True)
class _Slot:
    """tokens: ids whose keys and values are valid, in order; salt: who may copy them; busy: owned by a sequence; used:
    when last owned."""

    tokens: list[int] = field(default_factory=list)
    salt: str = ""
    busy: bool = False
    used: int = 0


class KVCache:
    """keys[layer], values[layer]: [slots, kv_heads, capacity, dim], contiguous.

    Both are views of `planes` [P, slots, kv_heads, capacity, dim], one tensor where all layers are alike (else one for
    each buffer), so that moving accepted entries is a single indexed copy.
    """

    def __init__(
        self,
        shape: CacheShape,
        slots: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.device = torch.device(device)
        self.capacity = 0
        self.planes: list[Tensor] = []
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self._slots = [_Slot() for _ in range(slots)]
        self._clock = 0
        self.reserve(FIRST_CAPACITY)

    @property
    def slots(self) -> int:
        return len(self._slots)

    @property
    def free_slots(self) -> int:
        return sum(not slot.busy for slot in self._slots)

    def tokens(self, slot: int) -> list[int]:
        """The token ids whose keys and values `slot` holds."""
        return self._slots[slot].tokens

    @property
    def retained(self) -> int:
        """Tokens that free slots hold for sequences to come."""
        return sum(len(slot.tokens) for slot in self._slots if not slot.busy)

    def claim(self, tokens: Sequence[int], salt: str = "", room: float = inf) -> tuple[int, int] | None:
        """A free slot for a sequence that starts with `tokens`, and how many of them it already holds (never all: the
        root stays open). Only what was computed under the same `salt` is held for it. The slots that stay free retain
        at most `room` tokens.

        None when every slot is busy.
        """
        free = [index for index, slot in enumerate(self._slots) if not slot.busy]
        if not free:
            return None
        shared = self.prefixes(tokens, salt)
        source = max(range(self.slots), key=lambda index: (shared[index], not self._slots[index].busy))
        held = self._slots[source]
        # Another conversation with the same beginning stays whole, where there is room for it.
        stays = held.busy or 2 * shared[source] < len(held.tokens) <= room
        if shared[source] and not stays:
            target = source
            held.busy = True
            self.retain(room)
        else:  # sacrifice the slot unused for longest instead
            self.retain(room, spared=source if shared[source] else None)
            target = min(free, key=lambda index: (bool(self._slots[index].tokens), self._slots[index].used))
            self._copy(source, target, shared[source])
        slot = self._slots[target]
        if len(slot.tokens) > len(tokens):
            self._hand_back(target, len(tokens))
        slot.tokens = list(tokens[: shared[source]])
        slot.salt, slot.busy = salt, True
        return target, shared[source]

    def retain(self, room: float, *, spared: int | None = None) -> None:
        """Forget free slots, those unused for longest first and `spared` last, until they hold no more than `room`."""
        while self.retained > room:
            held = [index for index, slot in enumerate(self._slots) if slot.tokens and not slot.busy]
            if not held:  # the room doesn't even suffice for the busy ones
                return
            self.forget(min(held, key=lambda index: (index == spared, self._slots[index].used)))

    def forget(self, slot: int) -> None:
        """Drop all that a slot holds, and the memory it takes up."""
        self.truncate(slot, 0)
        self._hand_back(slot, 0)

    def prefixes(self, tokens: Sequence[int], salt: str = "") -> list[int]:
        """For each slot, how many leading `tokens` it holds that a sequence with this `salt` may take over."""
        limit = len(tokens) - 1
        return [common_prefix(slot.tokens, tokens, limit) if slot.salt == salt else 0 for slot in self._slots]

    def release(self, slot: int) -> None:
        """Give the slot back; its content stays until another sequence needs the room."""
        self._clock += 1
        self._slots[slot].busy = False
        self._slots[slot].used = self._clock

    def reserve(self, length: int) -> None:
        """Make every slot hold at least `length` entries. Raises CapacityError when memory doesn't suffice."""
        if length <= self.capacity:
            return
        capacity = max(FIRST_CAPACITY, 1 << (length - 1).bit_length())
        try:
            planes = [
                torch.empty((count, self.slots, heads, capacity, dim), dtype=self.dtype, device=self.device)
                for count, heads, dim in self.shape.planes()
            ]
        except (RuntimeError, MemoryError) as error:
            needed = capacity * self.slots * self.shape.bytes_per_token(self.dtype.itemsize)
            raise CapacityError(
                f"The KV cache needs {needed / 2**30:.1f} GiB for {self.slots} sequences of {capacity} tokens, more "
                "than there is; lower --max-model-len or --max-num-seqs."
            ) from error
        for old, new in zip(self.planes, planes, strict=False):
            for index, slot in enumerate(self._slots):
                new[:, index, :, : len(slot.tokens)] = old[:, index, :, : len(slot.tokens)]
        buffers = [buffer for plane in planes for buffer in plane]
        self.planes, self.capacity = planes, capacity
        self.keys, self.values = buffers[: self.shape.layers], buffers[self.shape.layers :]

    def append(self, layer: int, slot: int, start: int, key: Tensor, value: Tensor) -> None:
        """Write rows [n, kv_heads, dim] to the entries from `start` on."""
        stop = start + key.shape[0]
        self.keys[layer][slot, :, start:stop] = key.transpose(0, 1)
        self.values[layer][slot, :, start:stop] = value.transpose(0, 1)

    def keep(self, slot: int, start: int, entries: Sequence[int], tokens: Sequence[int]) -> None:
        """Commit: of the entries written from `start` on, keep `entries` (indices relative to `start`, ascending) as
        those of `tokens`.
        """
        moved = next((index for index, entry in enumerate(entries) if entry != index), len(entries))
        if moved < len(entries):
            source = torch.tensor([start + entry for entry in entries[moved:]], device=self.device)
            target = slice(start + moved, start + len(entries))
            for plane in self.planes:
                plane[:, slot, :, target] = plane[:, slot].index_select(2, source)
        del self._slots[slot].tokens[start:]
        self._slots[slot].tokens.extend(tokens)

    def truncate(self, slot: int, length: int) -> None:
        """Forget everything after the first `length` entries; their memory is kept for the next ones."""
        del self._slots[slot].tokens[length:]

    def check_integrity(self, owned: dict[int, Sequence[int]]) -> None:
        """Raise AssertionError unless exactly the slots in `owned` are busy and each holds the given tokens."""
        busy = {index for index, slot in enumerate(self._slots) if slot.busy}
        assert busy == set(owned), f"slots {sorted(busy)} are busy, {sorted(owned)} are owned"
        for index, tokens in owned.items():
            held = self._slots[index].tokens
            assert held == list(tokens), (
                f"slot {index} holds {len(held)} tokens that differ from its sequence's {len(tokens)}"
            )
            assert len(held) <= self.capacity

    def _hand_back(self, slot: int, start: int) -> None:
        """Release the memory of a slot's entries from `start` on, as far as the layout allows.

        A head's entries are contiguous in each buffer, so host memory goes back page by page. A GPU's buffers hold
        their memory from the beginning to the end: there, and in pages that are kept in part, room is merely reused.
        """
        for plane in self.planes:
            for buffer in plane[:, slot]:
                for entries in buffer[:, start:] if start else [buffer]:
                    hand_back(entries)

    def _copy(self, source: int, target: int, length: int) -> None:
        if length and source != target:
            for plane in self.planes:
                plane[:, target, :, :length] = plane[:, source, :, :length]


def common_prefix(held: Sequence[int], tokens: Sequence[int], limit: int) -> int:
    """Length of the longest common prefix, at most `limit`."""
    length = min(len(held), len(tokens), limit)
    if list(held[:length]) == list(tokens[:length]):
        return max(length, 0)
    return next(index for index in range(length) if held[index] != tokens[index])
