"""Routing by the beginning of a prompt, without Ray."""

from __future__ import annotations

import json
import random

from foredraft.ray.prefixes import BLOCK_BYTES, PrefixIndex, prefix_names, rank


def chat(*contents: str) -> bytes:
    messages = [{"role": "user", "content": content} for content in contents]
    return json.dumps({"model": "tiny", "messages": messages, "temperature": 0}).encode()


def test_a_conversation_keeps_its_beginning() -> None:
    first, second = "a" * 500, "b" * 300
    before, after = prefix_names(chat(first)), prefix_names(chat(first, second))
    shared = sum(a == b for a, b in zip(before, after, strict=False))
    assert 500 // BLOCK_BYTES <= shared < len(after)
    assert len(after) > len(before)
    other = prefix_names(chat("x" + first[1:]))
    assert not set(before) & set(other)


def test_bodies_without_a_prompt() -> None:
    bodies = [b"", b"{", b"[]", b"3", b"{}", b'{"prompt": ""}', b'{"prompt": "short"}', b"\xff", b"[" * 100_000]
    assert [prefix_names(body) for body in bodies] == [()] * len(bodies)
    assert prefix_names(json.dumps({"prompt": list(range(1000))}).encode())
    long = prefix_names(json.dumps({"prompt": "x" * 10**6}).encode())
    assert len(long) == len(set(long)) == 256


def test_the_longest_shared_beginning_wins_unless_it_is_busy() -> None:
    index: PrefixIndex[str] = PrefixIndex()
    names = [bytes([i]) for i in range(10)]
    index.add(names[:3], "a")
    index.add(names[:7], "b")
    assert rank(names, {"a": 0, "b": 3, "c": 0}, index, imbalance=4) == ["b", "a", "c"]
    assert rank(names, {"a": 0, "b": 4, "c": 0}, index, imbalance=4) == ["a", "c", "b"]
    assert rank((), {"a": 2, "b": 1, "c": 0}, index, imbalance=4) == ["c", "b", "a"]
    index.forget("b")
    assert index.shared(names, "b") == 0
    assert index.shared(names, "a") == 3


def test_a_block_counts_only_after_those_before_it() -> None:
    index: PrefixIndex[str] = PrefixIndex(capacity=4)
    names = [bytes([i]) for i in range(6)]
    index.add(names, "a")  # the first two are forgotten
    assert index.shared(names, "a") == 0
    assert index.shared(names[2:], "a") == 4


def test_conversations_stay_and_load_is_even() -> None:
    """Twenty conversations of five turns in any order: each stays where it began, and no replica gets far more."""
    generator = random.Random(5)
    index: PrefixIndex[int] = PrefixIndex()
    homes: dict[int, list[int]] = {}
    turns = [conversation for conversation in range(20) for _ in range(5)]
    generator.shuffle(turns)
    for conversation in turns:
        history = [f"{conversation} " * 200] * (len(homes.get(conversation, ())) + 1)
        names = prefix_names(chat(*history))
        replicas = list(range(3))
        generator.shuffle(replicas)
        chosen = rank(names, dict.fromkeys(replicas, 0), index, imbalance=4)[0]
        index.add(names, chosen)
        homes.setdefault(conversation, []).append(chosen)
    assert all(len(set(places)) == 1 for places in homes.values())
    assert len({places[0] for places in homes.values()}) == 3
