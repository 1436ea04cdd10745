"""The promise: with any drafter, every request emits what it emits alone and plainly - tokens, end, log-probabilities.

Every method of the product and every adversary, at temperature 0, 0.7 and 1, over all kinds of processing, alone and in
ragged batches with prompts read in chunks, with aborts and preemption. Equality is list equality, in float64.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from drafters import CASES, method_names
from models import tiny_target

from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.engine.engine import Engine
from foredraft.testing import Answer, Ask, decode, decode_plainly, difference, mixed_asks, with_predictions
from foredraft.types import FinishReason

TEMPERATURES = (0.0, 0.7, 1.0)
BUDGET = 6


@cache
def reference(
    temperature: float, family: str = "llama", max_tokens: int = 14, seed: int = 0
) -> tuple[list[Ask], list[Answer]]:
    vocab_size = tiny_target(family).vocab_size
    asks = mixed_asks(vocab_size, temperature, max_tokens=max_tokens, seed=seed)
    plain = decode_plainly(lambda: tiny_target(family, slots=1), asks)
    return with_predictions(asks, plain), plain


@cache
def endless_reference(temperature: float) -> tuple[list[Ask], list[Answer]]:
    """Short prompts with answers that go on past end tokens: what a small cache can admit but not finish."""
    asks, _ = reference(temperature, max_tokens=30)
    asks = [replace(ask, params=replace(ask.params, ignore_eos=True)) for ask in (asks[2], asks[4], asks[0])]
    plain = decode_plainly(lambda: tiny_target(slots=1), asks)
    return with_predictions(asks, plain), plain


def answers_of(asks: list[Ask], plain: list[Answer]) -> dict[tuple[str, int], list[int]]:
    return {
        (ask.name, index): choice.token_ids
        for ask, answer in zip(asks, plain, strict=True)
        for index, choice in enumerate(answer)
    }


def check(
    name: str,
    asks: list[Ask],
    plain: list[Answer],
    *,
    family: str = "llama",
    slots: int = 3,
    max_batched_tokens: int = 512,
    kv_room: int | None = None,
    **how: object,
) -> Engine:
    """Decode with the drafter of that name and compare; the engine, for a closer look."""
    engine = Engine(
        tiny_target(family, slots=slots),
        CASES[name](answers_of(asks, plain)),
        num_speculative_tokens=BUDGET,
        max_batched_tokens=max_batched_tokens,
        kv_room=kv_room,
    )
    found = decode(engine, asks, after_step=engine.check_integrity, **how)  # type: ignore[arg-type]
    for ask, answer, expected in zip(asks, found, plain, strict=True):
        assert (different := difference(answer, expected)) is None, f"{ask.name}: {different}"
    assert engine.target.cache.free_slots == slots
    return engine


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("name", CASES)
class TestEveryDrafter:
    def test_alone(self, name: str, temperature: float) -> None:
        asks, plain = reference(temperature)
        for ask, expected in zip(asks, plain, strict=True):
            check(name, [ask], [expected], slots=2)

    def test_three_at_once(self, name: str, temperature: float) -> None:
        asks, plain = reference(temperature)
        check(name, asks[1:4], plain[1:4])

    def test_a_ragged_crowd_with_prompts_read_in_chunks(self, name: str, temperature: float) -> None:
        asks, plain = reference(temperature)
        check(name, asks, plain, max_batched_tokens=7, arrivals=[0, 0, 2, 2, 5, 9])

    def test_aborts_in_mid_flight(self, name: str, temperature: float) -> None:
        asks, plain = reference(temperature)
        aborts = {1: asks[3].name, 2: asks[0].name, 3: asks[4].name, 5: asks[5].name}
        check(name, asks, plain, max_batched_tokens=24, aborts=aborts)

    def test_preemption(self, name: str, temperature: float) -> None:
        asks, plain = endless_reference(temperature)
        engine = check(name, asks, plain, slots=4, kv_room=75)
        assert engine.scheduler.preemptions > 0


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("Oracle", 0.8, 1.0),
        ("Flaky", 0.4, 0.8),
        ("Thicket", 0.4, 0.8),
        ("Twins", 0.3, 0.8),
        ("EndEverywhere", 0.5, 0.9),
        ("RandomTree", 0.0, 0.1),
        ("Liar", 0.0, 0.0),
        ("Empty", 0.0, 0.0),
    ],
)
def test_adversaries_are_as_right_as_they_claim(name: str, least: float, most: float) -> None:
    """Otherwise the tests above would prove little: the share of emitted tokens that were accepted drafts."""
    asks, plain = reference(0.7)
    engine = Engine(tiny_target(), CASES[name](answers_of(asks, plain)), num_speculative_tokens=BUDGET)
    drafted = [mark for answer in decode(engine, asks) for choice in answer for mark in choice.drafted]
    assert least <= sum(drafted) / len(drafted) <= most


@pytest.mark.parametrize("name", method_names())
def test_every_method_is_put_to_the_test(name: str) -> None:
    """In the workload above it drafts, and some of its drafts are accepted and some are not."""
    drafted = accepted = 0
    for temperature in TEMPERATURES:
        engine = Engine(tiny_target(), CASES[name]({}), num_speculative_tokens=BUDGET)
        for answer in decode(engine, reference(temperature)[0]):
            drafted += sum(choice.speculative_decoding.drafted for choice in answer)
            accepted += sum(choice.speculative_decoding.accepted for choice in answer)
    assert 0 < accepted < drafted


def test_a_draft_model_that_is_the_target_is_always_right() -> None:
    """Same weights, same processors, same noise: every draft that is verified is accepted, also those beside an end."""
    drafter = DraftModelDrafter("target:3", draft_min_token_prob=0.0)
    for temperature in TEMPERATURES:
        asks, plain = reference(temperature)
        engine = Engine(tiny_target(), drafter, num_speculative_tokens=BUDGET, max_batched_tokens=16)

        def all_accepted(engine: Engine = engine) -> None:
            assert engine.report.accepted == engine.report.drafted

        found = decode(engine, asks, after_step=all_accepted)
        assert [difference(one, other) for one, other in zip(found, plain, strict=True)] == [None] * len(asks)


def test_the_workload_has_every_kind_of_ending() -> None:
    endings = {
        (choice.finish_reason, choice.stop_reason is None)
        for temperature in TEMPERATURES
        for answer in reference(temperature)[1]
        for choice in answer
    }
    assert endings >= {(FinishReason.STOP, True), (FinishReason.LENGTH, True)}


@pytest.mark.slow
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("family", ["gemma2", "gpt2", "qwen3"])
@pytest.mark.parametrize("name", CASES)
def test_long_answers_of_other_models(name: str, family: str, temperature: float) -> None:
    asks, plain = reference(temperature, family, 60, 1)
    check(name, asks, plain, family=family, max_batched_tokens=9, arrivals=[0, 1, 2, 3, 5, 8])
    check(name, asks, plain, family=family, max_batched_tokens=16, kv_room=160, aborts={9: asks[1].name})
