"""The cache in slots: what is written stays, what is committed moves, prefixes are found, nothing leaks."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foredraft.bench.memory import resident_mb
from foredraft.errors import CapacityError
from foredraft.target.kv_cache import CacheShape, KVCache, common_prefix

SHAPE = CacheShape((2, 1), (3, 4), (3, 2))  # layers that differ in heads and sizes


def cache_of(slots: int = 3) -> KVCache:
    return KVCache(SHAPE, slots, torch.float64)


def write(cache: KVCache, slot: int, start: int, marks: list[float]) -> None:
    """Entries whose every number is the mark of its row (and differs by layer)."""
    for layer, (heads, key, value) in enumerate(zip(SHAPE.kv_heads, SHAPE.key_dim, SHAPE.value_dim, strict=True)):
        rows = torch.tensor(marks, dtype=torch.float64).view(-1, 1, 1) + layer / 10
        cache.append(layer, slot, start, rows.expand(-1, heads, key), rows.expand(-1, heads, value) + 0.05)


def marks(cache: KVCache, slot: int, length: int) -> list[float]:
    """The marks of a slot's entries, the same in every layer, head and dimension or the test fails."""
    found = cache.keys[0][slot, 0, :length, 0]
    for layer in range(SHAPE.layers):
        keys, values = cache.keys[layer][slot, :, :length], cache.values[layer][slot, :, :length]
        assert torch.allclose(keys, (found + layer / 10).view(1, -1, 1).expand_as(keys))
        assert torch.allclose(values, (found + layer / 10 + 0.05).view(1, -1, 1).expand_as(values))
    return found.tolist()


def fill(cache: KVCache, tokens: list[int]) -> int:
    """Claim a slot for a sequence and compute all of its tokens, each marked by its id."""
    claimed = cache.claim([*tokens, 0])
    assert claimed is not None
    slot, cached = claimed
    write(cache, slot, cached, [float(token) for token in tokens[cached:]])
    cache.keep(slot, cached, list(range(len(tokens) - cached)), tokens[cached:])
    return slot


@given(st.integers(0, 5), st.lists(st.integers(0, 9), max_size=10), st.data())
def test_keep_moves_the_accepted_entries_together(start: int, written: list[int], data: st.DataObject) -> None:
    cache = cache_of(1)
    cache.claim([1] * 50)
    write(cache, 0, 0, [float(-1 - at) for at in range(start)])
    cache.keep(0, 0, list(range(start)), [50] * start)
    write(cache, 0, start, [float(10 * at + token) for at, token in enumerate(written)])
    entries = [at for at in range(len(written)) if data.draw(st.booleans())]
    cache.keep(0, start, entries, [written[at] for at in entries])
    assert cache.tokens(0) == [50] * start + [written[at] for at in entries]
    assert marks(cache, 0, start + len(entries)) == [
        *(float(-1 - at) for at in range(start)),
        *(float(10 * at + written[at]) for at in entries),
    ]


def test_growing_keeps_what_was_computed() -> None:
    cache = cache_of()
    slot = fill(cache, [4, 5, 6])
    before = cache.capacity
    cache.reserve(before + 1)
    assert cache.capacity == 2 * before
    assert marks(cache, slot, 3) == [4.0, 5.0, 6.0]
    cache.reserve(10)
    assert cache.capacity == 2 * before


def test_a_cache_that_memory_cannot_hold_is_a_capacity_error() -> None:
    with pytest.raises(CapacityError, match=r"GiB for 3 sequences .* lower --max-model-len or --max-num-seqs"):
        cache_of().reserve(1 << 45)


def test_a_freed_slot_is_taken_over_with_the_prefix_it_holds() -> None:
    cache = cache_of()
    slot = fill(cache, [1, 2, 3, 4])
    cache.release(slot)
    assert cache.claim([1, 2, 3, 9, 9]) == (slot, 3)
    assert marks(cache, slot, 3) == [1.0, 2.0, 3.0]
    assert cache.tokens(slot) == [1, 2, 3]


def test_the_root_is_never_taken_from_the_cache() -> None:
    cache = cache_of()
    cache.release(fill(cache, [1, 2, 3, 4]))
    claimed = cache.claim([1, 2, 3])
    assert claimed is not None
    assert claimed[1] == 2


def test_a_prefix_of_a_busy_slot_is_copied() -> None:
    cache = cache_of()
    busy = fill(cache, [1, 2, 3, 4])
    claimed = cache.claim([1, 2, 3, 4, 5])
    assert claimed is not None
    slot, cached = claimed
    assert slot != busy
    assert cached == 4
    assert marks(cache, slot, 4) == [1.0, 2.0, 3.0, 4.0]
    assert cache.tokens(busy) == [1, 2, 3, 4]


def test_entries_of_rejected_drafts_are_no_prefix() -> None:
    cache = cache_of()
    slot = fill(cache, [1, 2])
    write(cache, slot, 2, [7.0, 8.0])  # drafts under way
    claimed = cache.claim([1, 2, 7, 8, 9])
    assert claimed is not None
    assert claimed[1] == 2


def test_of_the_free_slots_the_one_unused_for_longest_is_sacrificed() -> None:
    cache = cache_of()
    first, second, third = (fill(cache, [number, number]) for number in (1, 2, 3))
    for slot in (second, third, first):
        cache.release(slot)
    assert cache.claim([9, 9]) == (second, 0)
    assert cache.claim([8, 8]) == (third, 0)


def test_conversations_that_share_a_beginning_keep_their_own_slots() -> None:
    """A system prompt in common must not make one conversation evict the other, turn by turn."""
    cache = cache_of()
    system = [1, 2, 3]
    one, other = [*system, *range(10, 30)], [*system, *range(40, 60)]
    cache.release(fill(cache, one))
    cache.release(fill(cache, other))
    assert max(cache.prefixes([*one, 5])) == len(one)
    assert max(cache.prefixes([*other, 5])) == len(other)


def test_a_prefix_is_shared_only_under_the_same_salt() -> None:
    cache = cache_of()
    slot = fill(cache, [1, 2, 3, 4])
    cache.release(slot)
    assert cache.prefixes([1, 2, 3, 9], "tenant") == [0, 0, 0]
    claimed = cache.claim([1, 2, 3, 9], "tenant")
    assert claimed is not None
    other, cached = claimed
    assert other != slot
    assert cached == 0
    write(cache, other, 0, [1.0, 2.0])
    cache.keep(other, 0, range(2), [1, 2])
    cache.release(other)
    assert cache.prefixes([1, 2, 5])[other] == 0
    assert cache.claim([1, 2, 5], "tenant") == (other, 2)


def test_without_a_free_slot_there_is_nothing_to_claim() -> None:
    cache = cache_of(1)
    fill(cache, [1, 2])
    assert cache.free_slots == 0
    assert cache.claim([1, 2, 3]) is None


def test_the_integrity_check_sees_leaks_and_foreign_tokens() -> None:
    cache = cache_of()
    slot = fill(cache, [1, 2])
    cache.check_integrity({slot: [1, 2]})
    with pytest.raises(AssertionError, match="busy"):
        cache.check_integrity({})
    with pytest.raises(AssertionError, match="differ"):
        cache.check_integrity({slot: [1, 3]})
    cache.truncate(slot, 1)
    cache.check_integrity({slot: [1]})
    cache.release(slot)
    cache.check_integrity({})


@given(st.lists(st.integers(0, 2), max_size=8), st.lists(st.integers(0, 2), max_size=8), st.integers(0, 9))
def test_common_prefix(held: list[int], tokens: list[int], limit: int) -> None:
    length = common_prefix(held, tokens, limit)
    assert held[:length] == tokens[:length]
    assert length <= limit
    assert length == min(len(held), len(tokens), limit) or held[length] != tokens[length]


def test_bytes_per_token_count_every_layer() -> None:
    assert SHAPE.bytes_per_token(8) == 8 * (2 * (3 + 3) + 1 * (4 + 2))


def test_what_free_slots_hold_stays_within_the_room() -> None:
    """Those unused for longest go first; what fits can still be taken over."""
    cache = cache_of(3)
    for number in (1, 2, 3):
        cache.release(fill(cache, [number] * 10))
    assert cache.retained == 30
    cache.retain(30)
    assert cache.retained == 30
    cache.retain(25)
    assert cache.retained == 20
    assert cache.claim([1] * 11, room=20) == (0, 0), "the oldest was forgotten"
    assert cache.claim([3] * 11, room=10) == (2, 10), "the youngest was not"
    assert cache.retained == 10
    cache.retain(-1)
    assert cache.retained == 0
    cache.check_integrity({0: [], 2: [3] * 10})


def test_a_prefix_is_copied_only_where_both_fit() -> None:
    """Else the sequence takes the slot over, whose rest there is no room for."""
    system, other = [1, 2, 3], [9] * 4
    for room, retained, taken_over in ((13, 13, False), (12, 9, False), (8, 4, True)):
        cache = cache_of(4)
        cache.release(fill(cache, [*system, *range(10, 16)]))
        cache.release(fill(cache, other))
        cache.retain(13)
        claimed = cache.claim([*system, 50, 51], room=room)
        assert claimed is not None
        assert claimed[1] == 3
        assert cache.retained == retained
        assert (claimed[0] == 0) == taken_over
        assert marks(cache, claimed[0], 3) == [1.0, 2.0, 3.0]


@pytest.mark.skipif(sys.platform != "linux", reason="memory is handed back on Linux only")
def test_the_memory_of_what_is_forgotten_goes_back() -> None:
    """Of whole slots, and of what a shorter sequence leaves of a longer one; nothing beside it changes."""
    cache = KVCache(CacheShape((2,) * 16, (64,) * 16, (64,) * 16), 3, torch.float32)
    megabytes = 4000 * cache.shape.bytes_per_token(4) / 1e6
    cache.reserve(4000)

    def written(mark: int, length: int = 4000) -> int:
        claimed = cache.claim([mark] * (length + 1))
        assert claimed is not None
        for plane in cache.planes:
            plane[:, claimed[0], :, :length] = mark
        cache.keep(claimed[0], 0, range(length), [mark] * length)
        return claimed[0]

    first, second = written(1), written(2)
    before = resident_mb()
    cache.release(first)
    cache.retain(0)
    assert before - resident_mb() > 0.9 * megabytes
    cache.release(second)
    written(3)  # on the third slot
    longer = resident_mb()
    cache.release(written(4))
    before = resident_mb()
    assert before - longer > 0.9 * megabytes, "that one is on the first slot again"
    assert cache.claim([2] * 2001) == (second, 2000)
    assert before - resident_mb() > 0.4 * megabytes
    assert all(bool((plane[:, second, :, :2000] == 2).all()) for plane in cache.planes)
