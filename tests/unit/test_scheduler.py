"""The scheduler: who works on how many tokens, who waits, who is evicted; and slots that always come back."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from foredraft.engine.scheduler import Scheduler
from foredraft.target.kv_cache import CacheShape, KVCache
from foredraft.types import Batch, SamplingParams, Sequence

SHAPE = CacheShape((1,), (1,), (1,))


class Bench:
    """A scheduler, and an engine that computes nothing: it commits what was scheduled and emits a token per root."""

    def __init__(self, slots: int = 3, tokens: int = 100, room: int = 1000, drafts: int = 0) -> None:
        self.cache = KVCache(SHAPE, slots, torch.float32)
        self.log: list[tuple[str, int]] = []
        self.scheduler = Scheduler(
            self.cache,
            max_batched_tokens=tokens,
            kv_room=room,
            draft_room=drafts,
            on_admit=lambda sequence: self.log.append(("admit", sequence.id)),
            on_leave=lambda sequence: self.log.append(("leave", sequence.id)),
        )

    def add(self, id: int, prompt: list[int]) -> Sequence:
        sequence = Sequence(id, SamplingParams(max_tokens=None), list(prompt), len(prompt), 0)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> dict[int, int]:
        """-> tokens scheduled by sequence id, in order."""
        batch = self.scheduler.schedule()
        running = self.scheduler.running
        needed = sum(len(sequence.tokens) + self.scheduler.draft_room for sequence in running)
        assert self.cache.retained <= max(0, self.scheduler.kv_room - needed)
        self.commit(batch)
        return {chunk.sequence.id: chunk.count for chunk in batch.chunks}

    def commit(self, batch: Batch) -> None:
        for chunk in batch.chunks:
            sequence = chunk.sequence
            assert sequence.slot is not None
            decodes = chunk.decodes
            tokens = sequence.tokens[sequence.cached : sequence.cached + chunk.count]
            self.cache.keep(sequence.slot, sequence.cached, list(range(chunk.count)), tokens)
            sequence.cached += chunk.count
            if decodes:
                sequence.tokens.append(7)
        self.check()

    def check(self) -> None:
        running = self.scheduler.running
        self.cache.check_integrity({s.slot: s.tokens[: s.cached] for s in running if s.slot is not None})
        assert all(sequence.slot is None and sequence.cached == 0 for sequence in self.scheduler.waiting)
        here = [id for what, id in self.log if what == "admit"]
        gone = [id for what, id in self.log if what == "leave"]
        for id in set(here):
            assert here.count(id) - gone.count(id) == (id in {sequence.id for sequence in running})


def test_prompts_are_read_in_chunks_while_others_decode() -> None:
    bench = Bench(tokens=8)
    bench.add(0, [1, 2, 3])
    assert bench.step() == {0: 3}
    bench.add(1, list(range(10, 30)))
    assert bench.step() == {0: 1, 1: 7}
    assert bench.step() == {0: 1, 1: 7}
    assert bench.step() == {0: 1, 1: 6}
    assert bench.step() == {0: 1, 1: 1}


def test_decoding_comes_before_prompts_whoever_came_first() -> None:
    bench = Bench(tokens=4)
    bench.add(0, [1, 2])
    bench.step()
    bench.add(1, list(range(10, 30)))
    bench.step()
    bench.scheduler.running.reverse()
    assert list(bench.step().items()) == [(0, 1), (1, 3)]


def test_a_sequence_waits_for_a_slot() -> None:
    bench = Bench(slots=1)
    first = bench.add(0, [1, 2])
    bench.add(1, [3, 4])
    assert bench.step() == {0: 2}
    assert bench.step() == {0: 1}
    bench.scheduler.remove(first)
    assert bench.step() == {1: 2}


def test_a_sequence_waits_for_room_with_everybodys_drafts() -> None:
    """Each needs its tokens and 5 drafts: 3 + 5 and 4 + 5 are above 16 only after the first step."""
    bench = Bench(room=16, drafts=5)
    bench.add(0, [1, 2, 3])
    assert bench.step() == {0: 3}
    bench.add(1, [4, 5, 6])
    assert bench.step() == {0: 1}
    bench.scheduler.kv_room = 18
    assert bench.step() == {0: 1, 1: 3}


def test_one_sequence_is_admitted_however_large() -> None:
    bench = Bench(room=4)
    bench.add(0, [1] * 6)
    assert bench.step() == {0: 6}


def test_the_youngest_is_evicted_and_returns_first() -> None:
    bench = Bench(room=14)
    first = bench.add(0, [1, 2, 3, 4])
    bench.add(1, [5, 6, 7, 8])
    bench.add(2, [9, 9, 9, 9])
    assert bench.step() == {0: 4, 1: 4, 2: 4}
    assert bench.step() == {0: 1, 1: 1}  # 15 tokens
    assert bench.scheduler.preemptions == 1
    assert [sequence.id for sequence in bench.scheduler.waiting] == [2]
    bench.add(3, [1])
    bench.scheduler.remove(first)
    step = bench.step()
    assert step[2] == 1  # all its tokens but the root were still in its old slot
    assert bench.log[:4] == [("admit", 0), ("admit", 1), ("admit", 2), ("leave", 2)]


def test_a_prefix_that_is_just_being_read_is_waited_for() -> None:
    bench = Bench(tokens=6)
    prompt = list(range(10, 30))
    bench.add(0, prompt)
    bench.add(1, [*prompt[:12], 5, 6])
    bench.add(2, prompt)
    assert bench.step() == {0: 6}
    assert bench.step() == {0: 6}
    third = bench.step()  # twelve tokens are read, all that the second can use
    assert third[0] == 6
    while 2 not in third:
        third = bench.step()
    assert third[2] == 1
    running = {sequence.id: sequence for sequence in bench.scheduler.running}
    assert (running[1].prompt_tokens_cached, running[2].prompt_tokens_cached) == (12, 19)


def test_removal_anywhere_leaves_nothing() -> None:
    bench = Bench(slots=1)
    running, waiting, stranger = bench.add(0, [1]), bench.add(1, [2]), Sequence(9, SamplingParams(), [1], 1, 0)
    bench.step()
    for sequence in (waiting, stranger, running, running):
        bench.scheduler.remove(sequence)
        bench.check()
    assert bench.scheduler.idle
    assert bench.cache.free_slots == 1
    assert bench.log == [("admit", 0), ("leave", 0)]
    assert bench.step() == {}


def test_finished_sequences_leave_no_more_than_there_is_room_for() -> None:
    """One at a time, each with a prompt of its own: the slots may not fill up one after the other."""
    bench = Bench(slots=8, room=50)
    for id in range(12):
        sequence = bench.add(id, [100 + id] * 18)
        for _ in range(3):
            bench.step()
        bench.scheduler.remove(sequence)
        held = sum(len(bench.cache.tokens(slot)) for slot in range(8))
        assert held <= 50
        assert held >= min(id + 1, 2) * 20, "there was room for two"
    again = bench.add(12, [111] * 18)
    assert bench.step() == {12: 1}, "what was left last is still there"
    assert again.prompt_tokens_cached == 17


@given(
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(12, 40),
    st.integers(0, 4),
    st.lists(
        st.one_of(
            st.just("step"),
            st.tuples(st.just("add"), st.lists(st.integers(0, 1), min_size=1, max_size=8)),
            st.tuples(st.just("remove"), st.integers(0, 9)),
        ),
        max_size=30,
    ),
)
def test_any_order_of_events_keeps_the_books(
    slots: int, tokens: int, room: int, drafts: int, events: list[str | tuple[str, object]]
) -> None:
    bench = Bench(slots, tokens, room, drafts)
    ids = itertools.count()
    alive: list[Sequence] = []
    for event in events:
        match event:
            case "step":
                scheduled = bench.step()
                assert bool(scheduled) == bool(alive), "an engine that isn't idle makes progress"
                assert sum(scheduled.values()) <= tokens
                needed = sum(len(s.tokens) - 1 + drafts for s in bench.scheduler.running)
                assert needed <= room or len(bench.scheduler.running) == 1
                for sequence in [s for s in alive if len(s.tokens) >= 12]:
                    bench.scheduler.remove(sequence)
                    alive.remove(sequence)
            case ("add", list() as prompt):
                alive.append(bench.add(next(ids), prompt))
            case ("remove", int() as index) if index < len(alive):
                bench.scheduler.remove(alive.pop(index))
        bench.check()
    for _ in range(600):
        if not alive:
            break
        bench.step()
        for sequence in [s for s in alive if len(s.tokens) >= 12]:
            bench.scheduler.remove(sequence)
            alive.remove(sequence)
    assert bench.scheduler.idle, "somebody starves"
    assert bench.cache.free_slots == slots
