"""The suffix index and the store of finished texts, against a search by hand."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.drafters.suffix_index import Chains, Evidence, SuffixIndex
from foredraft.drafters.suffix_store import SuffixStore
from foredraft.errors import ConfigError

texts = st.lists(st.integers(0, 4), min_size=1, max_size=80)


def recalled(index: SuffixIndex, limit: int = 32) -> Evidence:
    evidence = Evidence(limit, 6)
    index.recall(index.text[-32:], evidence, limit)
    return evidence


def found(store: SuffixStore, tail: list[int], namespace: str = "", limit: int = 8) -> list[list[int]]:
    """Continuations of the longest suffix of `tail` that the store knows."""
    evidence = Evidence(limit, 3)
    store.recall(np.array(tail), evidence, limit, namespace)
    best = evidence.lengths[: evidence.count].max(initial=0)
    rows = evidence.continuations[: evidence.count][evidence.lengths[: evidence.count] == best]
    return [[token for token in row if token >= 0] for row in rows.tolist()]


def matched(text: list[int], end: int) -> int:
    length = 0
    while length < min(end, 32) and text[end - 1 - length] == text[-1 - length]:
        length += 1
    return length


@given(texts)
def test_the_longest_match_is_found(text: list[int]) -> None:
    evidence = recalled(SuffixIndex(text))
    longest = max((matched(text, end) for end in range(1, len(text))), default=0)
    assert evidence.lengths[: evidence.count].max(initial=0) == longest


@given(texts)
def test_every_continuation_followed_a_match_of_its_length(text: list[int]) -> None:
    evidence = recalled(SuffixIndex(text))
    for row in range(evidence.count):
        end = int(evidence.ends[row])
        period = len(text) - end
        assert evidence.lengths[row] == matched(text, end)
        assert evidence.continuations[row].tolist() == [text[end + depth % period] for depth in range(6)]
    assert len(set(evidence.ends[: evidence.count].tolist())) == evidence.count


@given(texts, st.lists(st.integers(1, 7), max_size=20))
def test_appending_piece_by_piece_gives_the_same_index(text: list[int], pieces: list[int]) -> None:
    index = SuffixIndex([])
    start = 0
    for size in pieces:
        index.append(text[start : start + size])
        start += size
    index.append(text[start:])
    pieced, at_once = recalled(index), recalled(SuffixIndex(text))
    assert index.text.tolist() == text
    assert pieced.ends[: pieced.count].tolist() == at_once.ends[: at_once.count].tolist()


def test_growing_past_the_first_buffers_keeps_the_text() -> None:
    text = [token % 97 for token in range(3000)]
    index = SuffixIndex(text[:10])
    for start in range(10, 3000, 7):
        index.append(text[start : start + 7])
    assert index.text.tolist() == text
    assert recalled(index).lengths[0] == 32


def test_tokens_at_the_upper_end_of_32_bits_survive() -> None:
    top = 2**31 - 1
    evidence = recalled(SuffixIndex([top, 5, top - 1, 9, top, 5]))
    assert evidence.continuations[0, :2].tolist() == [top - 1, 9]


def test_a_tree_counts_votes_and_prefers_long_matches() -> None:
    index = SuffixIndex([1, 2, 3, 50, 2, 3, 60, 3, 60, 3, 60, 9, 1, 2, 3])
    tokens, parents, scores, kinds = recalled(index).grow(np.linspace(0.3, 0.9, 80), 0.01, 4, 12)
    assert tokens[0] == 50
    assert 60 in tokens
    assert all(parent < node for node, parent in enumerate(parents))
    assert scores == sorted(scores, reverse=True)
    assert len(kinds) == len(tokens)


def test_a_single_branch_is_a_chain() -> None:
    index = SuffixIndex([1, 2, 50, 1, 2, 60, 1, 2])
    _, parents, _, _ = recalled(index).grow(np.full(80, 0.9), 0.01, 1, 5)
    assert parents == [-1, 0, 1, 2, 3]


def small_store(requests: int = 100) -> SuffixStore:
    return SuffixStore(1024 * Chains.BYTES, requests)


def test_a_stored_text_is_found_again() -> None:
    store = small_store()
    store.add([1, 2, 3, 4, 5])
    assert found(store, [9, 2, 3]) == [[4, 5]]


def test_a_continuation_ends_where_its_text_ends() -> None:
    store = small_store()
    store.add([1, 2, 3])
    store.add([7, 8])
    assert found(store, [1, 2]) == [[3]]


def test_namespaces_never_see_each_other() -> None:
    store = small_store()
    store.add([1, 2, 3, 4], "a")
    store.add([1, 2, 30, 40], "b")
    assert found(store, [1, 2], "a") == [[3, 4]]
    assert found(store, [1, 2], "b") == [[30, 40]]
    assert found(store, [1, 2], "c") == []


def test_memory_stays_what_it_was_and_the_oldest_text_leaves() -> None:
    store = small_store()
    before = store.nbytes
    for start in range(300):
        store.add([10_000 + start, *range(10)])
    assert store.nbytes == before <= 1024 * Chains.BYTES
    assert found(store, [10_000 + 299]) == [[0, 1, 2]]
    assert found(store, [10_000]) == []
    assert store.requests < 100


def test_a_text_that_is_drafted_from_outlives_others() -> None:
    store = small_store(requests=4)
    store.add([500, 501, 502])
    for start in range(40):
        assert found(store, [500]) == [[501, 502]], start
        store.add([1000 + start, 1, 2])
    assert found(store, [1000]) == []
    assert store.requests <= 4


def test_a_text_longer_than_a_quarter_of_the_store_is_kept_by_its_end() -> None:
    store = small_store()
    store.add(list(range(5000)))
    assert found(store, [4990]) == [[4991, 4992, 4993]]
    assert found(store, [100]) == []


def test_a_namespace_that_lost_its_texts_is_forgotten() -> None:
    store = small_store(requests=1)
    store.add([1, 2], "a")
    store.add([3, 4], "b")
    assert found(store, [1], "a") == []
    assert found(store, [3], "b") == [[4]]


@given(st.lists(st.tuples(st.lists(st.integers(0, 9), min_size=1, max_size=120), st.sampled_from("ab")), max_size=60))
def test_whatever_is_recalled_stands_in_a_stored_text(added: list[tuple[list[int], str]]) -> None:
    store = small_store(requests=20)
    for text, namespace in added:
        store.add(text, namespace)
        tail = text[: len(text) // 2 + 1][-8:]
        evidence = Evidence(16, 4)
        store.recall(np.array(tail), evidence, 16, namespace)
        for row in range(evidence.count):
            length = int(evidence.lengths[row])
            follow = [token for token in evidence.continuations[row].tolist() if token >= 0]
            piece = tail[len(tail) - length :] + follow
            assert any(
                own == namespace and held[start : start + len(piece)] == piece
                for held, own in added
                for start in range(len(held) - len(piece) + 1)
            )


def test_threads_may_share_a_store() -> None:
    store = small_store(requests=30)
    failures: list[str] = []

    def work(own: int) -> None:
        for round in range(200):
            text = [own * 1000 + round % 50, own, own + 1, own + 2]
            store.add(text, str(own))
            for continuation in found(store, text[:2], str(own)):
                if continuation[:1] not in ([own + 1], []):
                    failures.append(f"{own}: {continuation}")

    threads = [threading.Thread(target=work, args=(own,)) for own in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize(("size", "requests"), [(100, 10), (1 << 20, 0)])
def test_a_store_too_small_to_hold_anything_is_refused(size: int, requests: int) -> None:
    with pytest.raises(ConfigError, match="holds nothing useful"):
        SuffixStore(size, requests)
