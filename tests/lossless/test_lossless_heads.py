"""Drafting heads change nothing: every kind of head, as chain and as tree, greedy and sampled, in every kind of batch.

Heads that copy their target are right most of the time, worn copies now and then, random ones hardly ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from tiny_heads import copied_head, cycle, eagle_head, medusa_heads, reciting_heads, shallow_target

from foredraft.drafters.base import BaseDrafter
from foredraft.drafters.eagle import Eagle3Drafter, EagleDrafter
from foredraft.drafters.hybrid import HybridDrafter
from foredraft.drafters.medusa import MedusaDrafter
from foredraft.drafters.suffix import SuffixDrafter
from foredraft.engine.engine import Engine
from foredraft.target.target import Target
from foredraft.testing import Answer, Ask, decode, decode_plainly, difference, mixed_asks
from foredraft.types import SamplingParams

Tree = dict[str, int] | None
SHAPES: dict[str, Tree] = {"chain": None, "tree": {"depth": 4, "top_k": 3, "nodes": 10}}
HEADS: dict[str, Callable[[Tree], BaseDrafter]] = {
    "eagle, copied": lambda tree: EagleDrafter("", head=copied_head(1), tree=tree),
    "eagle, worn": lambda tree: EagleDrafter("", head=copied_head(1, wear=0.15), tree=tree, draft_min_token_prob=0.0),
    "eagle, HASS": lambda tree: EagleDrafter(
        "", head=eagle_head(1, para_norm=True, fc_bias=True), tree=tree, draft_min_token_prob=0.0
    ),
    "eagle3, copied": lambda tree: Eagle3Drafter("", head=copied_head(3), tree=tree, draft_min_token_prob=0.0),
    "eagle3, reduced": lambda tree: Eagle3Drafter(
        "", head=eagle_head(3, reduced=True, aux_layers=(0, 0, -1)), tree=tree, draft_min_token_prob=0.0
    ),
    "eagle3.1": lambda tree: Eagle3Drafter(
        "",
        head=eagle_head(3, aux_layers=(0,), fc_norm=True, norm_output=True, norm_before_residual=True, qk_norm=True),
        tree=tree,
        draft_min_token_prob=0.0,
    ),
    "medusa": lambda tree: MedusaDrafter("", heads=medusa_heads(), tree=tree, draft_min_token_prob=0.0),
    "medusa, reduced": lambda tree: MedusaDrafter(
        "", heads=medusa_heads(reduced=True), tree=tree, draft_min_token_prob=0.0
    ),
    "hybrid": lambda tree: HybridDrafter(
        drafters=(
            SuffixDrafter(),
            Eagle3Drafter("", head=copied_head(3), tree=tree),
            EagleDrafter("", head=copied_head(1)),
        )
    ),
}


@cache
def case(temperature: float) -> tuple[list[Ask], list[Answer]]:
    asks = mixed_asks(96, temperature, max_tokens=14)
    return asks, decode_plainly(lambda: shallow_target(slots=1), asks)


@cache
def endless(temperature: float) -> tuple[list[Ask], list[Answer]]:
    """Short prompts with long answers: what a small cache can admit but not finish."""
    asks = mixed_asks(96, temperature, max_tokens=26)
    asks = [replace(ask, params=replace(ask.params, ignore_eos=True)) for ask in (asks[2], asks[4], asks[0])]
    return asks, decode_plainly(lambda: shallow_target(slots=1), asks)


def check(drafter: BaseDrafter, target: Target, case: tuple[list[Ask], list[Answer]], **how: object) -> Engine:
    room = {name: how.pop(name) for name in ("kv_room", "max_batched_tokens") if name in how}
    engine = Engine(target, drafter, num_speculative_tokens=10, **room)  # type: ignore[arg-type]
    found = decode(engine, case[0], after_step=engine.check_integrity, **how)  # type: ignore[arg-type]
    for ask, answer, expected in zip(case[0], found, case[1], strict=True):
        assert (different := difference(answer, expected)) is None, f"{ask.name}: {different}"
    return engine


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", HEADS)
class TestEveryHead:
    def test_one_after_the_other(self, name: str, shape: str, temperature: float) -> None:
        asks, plain = case(temperature)
        drafter = HEADS[name](SHAPES[shape])
        for ask, expected in zip(asks, plain, strict=True):
            check(drafter, shallow_target(slots=2), ([ask], [expected]))

    def test_a_ragged_crowd_with_prompts_read_in_chunks(self, name: str, shape: str, temperature: float) -> None:
        arrivals = [0, 0, 2, 2, 5, 9]
        check(HEADS[name](SHAPES[shape]), shallow_target(), case(temperature), max_batched_tokens=7, arrivals=arrivals)

    def test_aborts_in_mid_flight(self, name: str, shape: str, temperature: float) -> None:
        asks, _ = case(temperature)
        aborts = {1: asks[3].name, 2: asks[0].name, 3: asks[4].name, 5: asks[5].name}
        check(HEADS[name](SHAPES[shape]), shallow_target(), case(temperature), max_batched_tokens=24, aborts=aborts)

    def test_preemption(self, name: str, shape: str, temperature: float) -> None:
        engine = check(HEADS[name](SHAPES[shape]), shallow_target(slots=4), endless(temperature), kv_room=75)
        assert engine.scheduler.preemptions > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_drafts_of_the_copied_heads_are_accepted_in_this_workload(shape: str, temperature: float) -> None:
    """Otherwise equality would prove little."""
    for name in ("eagle, copied", "eagle3, copied", "eagle, worn"):
        engine = Engine(shallow_target(), HEADS[name](SHAPES[shape]), num_speculative_tokens=10)
        choices = [choice for answer in decode(engine, case(temperature)[0]) for choice in answer]
        accepted = sum(choice.speculative_decoding.accepted for choice in choices)
        assert accepted > 0.2 * sum(len(choice.token_ids) for choice in choices)
        assert accepted < sum(choice.speculative_decoding.drafted for choice in choices)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_medusa_heads_that_recite(shape: str, temperature: float) -> None:
    """Whole drafts are accepted at temperature 0, parts of them above."""
    tokens = cycle(5)
    asks = [replace(ask, prompt=tuple(tokens[index:] + tokens)) for index, ask in enumerate(case(temperature)[0])]
    plain = decode_plainly(lambda: shallow_target(slots=1, attention=False), asks)
    drafter = MedusaDrafter("", heads=reciting_heads(tokens), tree=SHAPES[shape], draft_min_token_prob=0.0)
    check(drafter, shallow_target(attention=False), (asks, plain), max_batched_tokens=16, arrivals=[0, 0, 1, 1, 2, 2])


def test_processors_reach_a_reduced_draft_vocabulary() -> None:
    """A bias is by the target's ids: the one token it leaves is drafted if the head has it, and emitted in any case."""
    head = eagle_head(3, reduced=True, aux_layers=(0, 0, -1))
    assert head.draft_ids is not None
    own = {int(token) for token in head.draft_ids}
    other = next(token for token in range(3, 96) if token not in own)
    for allowed, drafts in ((other, False), (min(own - {2}), True)):
        bias = {token: -100.0 for token in range(96) if token != allowed}
        params = SamplingParams(temperature=1.0, max_tokens=12, seed=1, ignore_eos=True, logit_bias=bias)
        engine = Engine(
            shallow_target(), Eagle3Drafter("", head=head, draft_min_token_prob=0.1), num_speculative_tokens=4
        )
        request = engine.add([5, 6, 7], params)
        while not engine.idle:
            engine.step()
        output = request.choices[0].output
        assert output.token_ids == [allowed] * 12
        if drafts:
            assert output.speculative_decoding.acceptance_length > 2
