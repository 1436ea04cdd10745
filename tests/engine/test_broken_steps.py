"""A step that raises, and what finished sequences leave behind: nobody waits for ever, and nothing is kept of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random

import pytest
from drafters import ADVERSARIES
from models import tiny_target

from foredraft.drafters.base import BaseDrafter
from foredraft.economics import MeasuredPasses, PassPoint
from foredraft.engine.auto_controller import AutoController
from foredraft.engine.controller import FixedController
from foredraft.engine.engine import Engine
from foredraft.engine.profiler import PassCosts
from foredraft.tree import TokenTree
from foredraft.types import SamplingParams, Sequence, StepReport

PROMPT = [11, 40, 7, 7, 93, 5, 61]


class TroubleError(Exception):
    pass


def answer_of(tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)


@dataclass
class FailsOnce(FixedController):
    """Raises after the step in which it is armed has committed."""

    armed: bool = False

    def observe(self, report: StepReport, tree: TokenTree) -> None:
        if self.armed:
            self.armed = False
            raise TroubleError


@dataclass(eq=False)
class Clinging(BaseDrafter):
    """Can't let go of the sequences with these ids."""

    stuck: set[str] = field(default_factory=set)

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        return TokenTree.empty(len(batch))

    def end(self, sequence: Sequence) -> None:
        if sequence.request_id in self.stuck:
            raise TroubleError


def test_a_request_that_ends_in_a_step_that_raises_is_named() -> None:
    """Its last tokens went to nobody, so whoever waits for them has to be told."""
    controller = FailsOnce()
    engine = Engine(tiny_target(), ADVERSARIES["Empty"](), num_speculative_tokens=4, controller=controller)
    short, long = engine.add(PROMPT, answer_of(3)), engine.add([*PROMPT, 8], answer_of(9))
    engine.step()
    engine.step()
    controller.armed = True
    with pytest.raises(TroubleError):
        engine.step()
    assert short.result().finished
    assert set(engine.drop_running()) == {short.id, long.id}
    assert engine.idle
    assert engine.drop_running() == []
    later = engine.add(PROMPT, answer_of(3))
    while not engine.idle:
        engine.step()
    assert later.choices[0].output.token_ids == short.choices[0].output.token_ids
    assert engine.drop_running() == []


def test_a_drafter_that_cannot_let_go_keeps_no_slot() -> None:
    engine = Engine(tiny_target(slots=2), Clinging({"stuck"}), num_speculative_tokens=4)
    engine.add(PROMPT, answer_of(1), request_id="stuck")
    with pytest.raises(TroubleError):
        engine.step()
    assert engine.target.cache.free_slots == 2
    assert engine.drop_running() == ["stuck"]
    engine.check_integrity()


@pytest.mark.parametrize("name", ["Oracle", "Empty", "RandomTree"])
def test_nothing_is_remembered_about_sequences_that_are_over(name: str) -> None:
    points = [PassPoint(rows, 64 * batch, batch, 50.0) for batch in (1, 4) for rows in (1, 2, 8, 64) if rows >= batch]
    controller = AutoController(PassCosts(MeasuredPasses(tuple(points))))
    engine = Engine(tiny_target(), ADVERSARIES[name](), num_speculative_tokens=4, controller=controller)
    for seed in range(20):
        params = SamplingParams(temperature=1, seed=seed, max_tokens=5 + seed % 4, stop_token_ids=list(range(20, 30)))
        engine.add(PROMPT, params)
        if seed % 3 == 0:
            engine.step()
            engine.abort(f"request-{2 * seed}")
    while not engine.idle:
        engine.step()
    asking = controller._asking
    assert (controller._records, asking._saved, asking._resting) == ({}, {}, [])


def test_the_cache_never_holds_more_than_the_room() -> None:
    random = Random(0)
    engine = Engine(tiny_target(slots=8), kv_room=200)
    cache = engine.target.cache
    for _ in range(8):
        engine.add([random.randrange(3, 90) for _ in range(150)], answer_of(4))
        while not engine.idle:
            engine.step()
            assert sum(len(cache.tokens(slot)) for slot in range(8)) <= 200
            engine.check_integrity()


def test_a_checked_step_raises_what_a_request_failed_of() -> None:
    engine = Engine(tiny_target())
    broken, sound = engine.add(PROMPT, answer_of(5)), engine.add([5] * 8, answer_of(3))

    def fail(*_: object) -> None:
        raise TroubleError

    broken.choices[0].extend = fail  # type: ignore[method-assign,assignment]
    with pytest.raises(TroubleError):
        engine.checked_step()
    while not engine.idle:
        engine.checked_step()
    assert len(sound.choices[0].output.token_ids) == 3
