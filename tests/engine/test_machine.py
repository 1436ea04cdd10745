"""The engine as a state machine: requests come and go in any order, and each gets what it would get alone.

Hypothesis adds, steps and aborts against an engine with few slots, little room and an adversary as drafter. After every
step the cache holds exactly the running sequences' tokens; every finished answer is the solo, plain one, every aborted
answer a beginning of it.
"""

from __future__ import annotations

from functools import cache

import pytest
from drafters import ADVERSARIES
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from models import VOCAB, tiny_target

from foredraft.engine.engine import Engine
from foredraft.engine.requests import Request
from foredraft.testing import Answer, Ask, CapriciousController, decode_plainly, difference, mixed_asks
from foredraft.types import FinishReason


@cache
def solo(temperature: float, index: int) -> tuple[Ask, Answer]:
    ask = mixed_asks(VOCAB, temperature, max_tokens=10)[index]
    return ask, decode_plainly(lambda: tiny_target(slots=1), [ask])[0]


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        name=st.sampled_from(["Flaky", "Thicket", "Twins", "RandomTree", "EndEverywhere"]),
        slots=st.integers(1, 4),
        tokens=st.integers(3, 40),
        room=st.integers(56, 130),
        capricious=st.booleans(),
    )
    def start(self, name: str, slots: int, tokens: int, room: int, capricious: bool) -> None:
        self.answers: dict[tuple[str, int], list[int]] = {}
        self.open: dict[str, tuple[Request, Answer]] = {}
        self.slots = slots
        self.count = 0
        self.engine = Engine(
            tiny_target(slots=slots),
            ADVERSARIES[name](self.answers),
            num_speculative_tokens=5,
            controller=CapriciousController() if capricious else None,
            max_batched_tokens=tokens,
            kv_room=room,
        )

    @precondition(lambda self: len(self.open) < 6)
    @rule(temperature=st.sampled_from([0.0, 0.7, 1.0]), index=st.integers(0, 5))
    def add(self, temperature: float, index: int) -> None:
        ask, answer = solo(temperature, index)
        id = f"request {self.count}"
        self.count += 1
        for choice, output in enumerate(answer):
            self.answers[id, choice] = output.token_ids
        self.open[id] = self.engine.add(ask.prompt, ask.params, request_id=id), answer

    @rule(times=st.integers(1, 4))
    def step(self, times: int) -> None:
        for _ in range(times):
            emitted = self.engine.step()
            self.engine.check_integrity()
            assert emitted or self.engine.report.prompt_rows or not self.open
            for id in {delta.request_id for delta in emitted}:
                self.settle(id)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.open)))
        self.engine.abort(id)
        self.settle(id)
        assert id not in self.open

    @invariant()
    def every_slot_belongs_to_a_running_sequence(self) -> None:
        if hasattr(self, "engine"):
            self.engine.check_integrity()

    def settle(self, id: str) -> None:
        """Compare a request that is over."""
        request, answer = self.open[id]
        if request.result().finished:
            found = [choice.output for choice in request.choices]
            assert difference(found, answer) is None
            del self.open[id]

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(2000):
            if self.engine.idle:
                break
            self.step(1)
        assert self.engine.idle
        assert not self.open
        assert self.engine.target.cache.free_slots == self.slots


EngineMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestEngineMachine = EngineMachine.TestCase


@pytest.mark.slow
class TestEngineMachineAtLength(EngineMachine.TestCase):
    settings = settings(
        max_examples=300, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
    )


def test_the_solo_answers_end_in_every_way() -> None:
    endings = {
        output.finish_reason
        for temperature in (0.0, 0.7, 1.0)
        for index in range(6)
        for output in solo(temperature, index)[1]
    }
    assert endings == {FinishReason.STOP, FinishReason.LENGTH}
