"""What every drafter must do, as checks that anyone can run against theirs.

A drafter can't change what is emitted as long as it keeps its hands off the sequences and the target; it can crash
the engine, exceed its budget, leak, or get confused when a sequence is aborted, preempted or decoded plainly for a
while. Each check stages one of these.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Collection
from dataclasses import dataclass, field, replace
from types import FunctionType, ModuleType
from typing import TypeAlias

from foredraft.drafters.base import Drafter
from foredraft.engine.controller import Controller
from foredraft.engine.engine import Engine
from foredraft.target.target import Target
from foredraft.testing.capricious import CapriciousController
from foredraft.testing.random_target import random_target
from foredraft.testing.watched import Watched
from foredraft.testing.workload import Answer, Ask, decode, decode_plainly, difference, mixed_asks, with_predictions
from foredraft.types import SamplingParams, Sequence

__all__ = ["CONTRACT", "Trial", "check_drafter"]

FIRST_ID = 1 << 40  # far from every token, count and slot, so that an id found in a drafter's state is an id
Case: TypeAlias = tuple[list[Ask], list[Answer]]
TEMPERATURES = (0.0, 0.7, 1.0)


@dataclass
class Trial:
    """A kind of drafter on a kind of target, both made anew for every check, so that none sees what another left."""

    make_drafter: Callable[[], Drafter]
    make_target: Callable[[], Target] = random_target
    num_speculative_tokens: int = 6
    _cases: dict[float, Case] = field(default_factory=dict, init=False)

    def engine(
        self,
        *,
        kv_room: int | None = None,
        max_batched_tokens: int = 512,
        controller: Controller | None = None,
    ) -> Engine:
        engine = Engine(
            self.make_target(),
            Watched(self.make_drafter()),
            num_speculative_tokens=self.num_speculative_tokens,
            controller=controller,
            kv_room=kv_room,
            max_batched_tokens=max_batched_tokens,
        )
        engine._ids = itertools.count(FIRST_ID)
        return engine

    def case(self, temperature: float) -> Case:
        """Requests and their plain answers; the requests carry half-right predictions."""
        if temperature not in self._cases:
            asks = mixed_asks(self.make_target().vocab_size, temperature, max_tokens=16)
            plain = decode_plainly(self.make_target, asks)
            self._cases[temperature] = with_predictions(asks, plain), plain
        return self._cases[temperature]

    def cases(self) -> Iterator[Case]:
        """At temperature 0 and above."""
        return map(self.case, TEMPERATURES)


def check_drafter(
    make_drafter: Callable[[], Drafter],
    *,
    make_target: Callable[[], Target] = random_target,
    num_speculative_tokens: int = 6,
) -> None:
    """Run the whole contract suite; takes a few seconds on the default target.

    make_drafter            returns a new drafter at every call: its class, if it needs no arguments
    make_target             returns a target with an empty cache; in float64, if you need one of your own
    num_speculative_tokens  most draft nodes per sequence and step

    Raises AssertionError with a sentence that says what the drafter did wrong.
    """
    trial = Trial(make_drafter, make_target, num_speculative_tokens)
    for check in CONTRACT:
        check(trial)


def same_tokens_alone(trial: Trial) -> None:
    """One request after another on the same engine."""
    for asks, plain in trial.cases():
        engine = trial.engine()
        _compare([decode(engine, [ask])[0] for ask in asks], plain, asks, "decoded alone")


def same_tokens_together(trial: Trial) -> None:
    """Requests that join one by one, with prompts read in chunks of eight tokens in between."""
    for asks, plain in trial.cases():
        answers = decode(trial.engine(max_batched_tokens=8), asks, arrivals=range(0, 2 * len(asks), 2))
        _compare(answers, plain, asks, "decoded together")


def survives_aborts(trial: Trial) -> None:
    """Requests that are aborted in the middle, while waiting, and while their prompt is being read."""
    for asks, plain in trial.cases():
        aborts = {1: asks[3].name, 4: asks[0].name, 5: asks[4].name, 6: asks[5].name}
        answers = decode(trial.engine(max_batched_tokens=16), asks, aborts=aborts)
        _compare(answers, plain, asks, "decoded while others are aborted")


def survives_preemption(trial: Trial) -> None:
    """So little KV room that running sequences are evicted and computed again: `end`, then `begin` once more."""
    for asks, plain in trial.cases():
        longest = max(len(ask.prompt) + (ask.params.max_tokens or 0) for ask in asks)
        engine = trial.engine(kv_room=longest + 2 * trial.num_speculative_tokens)
        _compare(decode(engine, asks), plain, asks, "decoded under preemption")


def survives_a_controller(trial: Trial) -> None:
    """Some steps have no budget, some requests never have one, and proposed trees are cut before they are used."""
    for asks, plain in trial.cases():
        mixed = [
            replace(ask, params=replace(ask.params, speculative=False)) if index % 3 == 1 else ask
            for index, ask in enumerate(asks)
        ]
        engine = trial.engine(controller=CapriciousController())
        _compare(decode(engine, mixed), plain, asks, "decoded under a controller")


def survives_an_empty_history(trial: Trial) -> None:
    """A prompt of a single token, an answer of a single token, and a first step without budget."""
    short = SamplingParams(temperature=0.0, max_tokens=1)
    asks = [Ask("one token", (5,), short), Ask("two tokens", (5,), replace(short, max_tokens=2, ignore_eos=True))]
    plain = decode_plainly(trial.make_target, asks)
    _compare(decode(trial.engine(), asks), plain, asks, "decoded from a single token")


def forgets_what_ended(trial: Trial) -> None:
    """Nothing of a sequence that ended stays behind in the drafter: neither the sequence nor state under its id."""
    asks, _ = trial.case(0.0)
    engine = trial.engine()
    decode(engine, asks, aborts={3: asks[1].name})
    watched = engine.drafter
    assert isinstance(watched, Watched)
    del engine
    gc.collect()
    kept = list(_reachable(watched.drafter))
    sequences = [thing for thing in kept if isinstance(thing, Sequence)]
    assert not sequences, f"{watched.name} still holds {len(sequences)} sequences after they ended; drop them in end()."
    ids = {thing for thing in kept if type(thing) is int and FIRST_ID <= thing < FIRST_ID + 1000}
    assert not ids, f"{watched.name} still holds state of {len(ids)} sequences after they ended; drop it in end()."


CONTRACT: tuple[Callable[[Trial], None], ...] = (
    survives_an_empty_history,
    same_tokens_alone,
    same_tokens_together,
    survives_a_controller,
    survives_aborts,
    survives_preemption,
    forgets_what_ended,
)


def _compare(answers: Collection[Answer], plain: Collection[Answer], asks: Collection[Ask], how: str) -> None:
    for answer, reference, ask in zip(answers, plain, asks, strict=True):
        found = difference(answer, reference)
        assert found is None, (
            f"The request '{ask.name}' at temperature {ask.params.temperature:g}, {how}, {found}. The drafter must "
            "have touched the target or its cache, since tokens that it proposes can't change the answer."
        )


def _reachable(root: object) -> Iterable[object]:
    """Everything that `root` refers to, directly or not, short of code and classes."""
    seen = {id(root)}
    open_ends = [root]
    while open_ends:
        thing = open_ends.pop()
        yield thing
        for other in gc.get_referents(thing):
            if id(other) not in seen and not isinstance(other, (type, ModuleType, FunctionType)):
                seen.add(id(other))
                open_ends.append(other)
