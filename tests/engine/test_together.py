"""Requests that share an engine: seeds, choices, prefixes, aborts, refusals - none of which others can feel."""

from __future__ import annotations

from collections.abc import Sequence as Collection

import pytest
import torch
from drafters import ADVERSARIES, RandomTree
from models import VOCAB, tiny_model, tiny_target

from foredraft.engine.engine import Engine
from foredraft.engine.outputs import CompletionOutput
from foredraft.errors import CapacityError, RequestError
from foredraft.testing import CapriciousController
from foredraft.tree import TokenTree
from foredraft.types import FinishReason, SamplingParams, Sequence

PROMPT = [11, 40, 7, 7, 93, 5, 61]
SAMPLED = SamplingParams(temperature=1.0, max_tokens=16, seed=5, ignore_eos=True)


def tokens_of(engine: Engine, *requests: tuple[list[int], SamplingParams]) -> list[list[int]]:
    """Decode requests together -> the tokens of every choice of every request."""
    added = [engine.add(prompt, params) for prompt, params in requests]
    while not engine.idle:
        engine.step()
        engine.check_integrity()
    return [choice.output.token_ids for request in added for choice in request.choices]


def speculative(**options: object) -> Engine:
    return Engine(tiny_target(), ADVERSARIES["RandomTree"](), num_speculative_tokens=6, **options)  # type: ignore[arg-type]


def test_a_seed_gives_the_same_tokens_whatever_the_batch_mates() -> None:
    [alone] = tokens_of(Engine(tiny_target()), (PROMPT, SAMPLED))
    others = [([7, 8, 9], SamplingParams(temperature=0.5, seed=9)), ([3] * 30, SamplingParams(temperature=0))]
    for engine in (Engine(tiny_target()), speculative(), speculative(max_batched_tokens=5)):
        assert tokens_of(engine, *others, (PROMPT, SAMPLED))[-1] == alone
        assert tokens_of(engine, (PROMPT, SAMPLED), *others)[0] == alone


def test_different_seeds_and_choices_give_different_tokens() -> None:
    seeds = [SamplingParams(temperature=1.0, max_tokens=16, seed=seed, ignore_eos=True) for seed in range(4)]
    answers = tokens_of(speculative(), *((PROMPT, params) for params in seeds))
    assert len({tuple(answer) for answer in answers}) == 4
    params = SamplingParams(temperature=1.0, max_tokens=16, seed=5, n=4, ignore_eos=True)
    choices = tokens_of(speculative(), (PROMPT, params))
    assert len({tuple(answer) for answer in choices}) == 4
    assert choices[:1] == tokens_of(Engine(tiny_target()), (PROMPT, SAMPLED)), "choice 0 is the answer to n = 1"


def test_a_request_without_a_seed_gets_one_and_reports_it() -> None:
    params = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
    engine = Engine(tiny_target())
    request = engine.add(PROMPT, params)
    while not engine.idle:
        engine.step()
    output = request.choices[0].output
    again = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True, seed=output.seed)
    assert tokens_of(speculative(), (PROMPT, again)) == [output.token_ids]
    first, second = (tokens_of(Engine(tiny_target(), seed=4), (PROMPT, params)) for _ in range(2))
    assert first == second, "an engine's own seed makes its requests' seeds reproducible"
    assert first != tokens_of(Engine(tiny_target(), seed=5), (PROMPT, params))


def test_temperature_really_samples() -> None:
    """Forty first tokens of a nearly flat distribution aren't all the likeliest one."""
    requests = [([7], SamplingParams(temperature=5.0, max_tokens=1, seed=seed)) for seed in range(40)]
    answers = tokens_of(speculative(), *requests)
    assert len({tuple(answer) for answer in answers}) > 10


def test_choices_read_the_prompt_once() -> None:
    engine = speculative()
    prompt = [index % 50 + 3 for index in range(40)]
    request = engine.add(prompt, SamplingParams(n=3, max_tokens=4, seed=1))
    rows = 0
    while not engine.idle:
        engine.step()
        rows += engine.report.prompt_rows
    assert rows == 39  # every root but the first choice's is read by its own decoding row
    assert request.result().num_cached_tokens == 0  # what the request found when it came, not what it left itself


def test_a_prefix_of_an_earlier_request_is_not_read_again_and_changes_nothing() -> None:
    prompt = [index % 50 + 3 for index in range(30)]
    longer = [*prompt[:25], 9, 8, 7]
    for params in (SamplingParams(temperature=0, max_tokens=12), SAMPLED):
        fresh = tokens_of(Engine(tiny_target()), (longer, params))
        engine = speculative()
        tokens_of(engine, (prompt, params))
        request = engine.add(longer, params)
        while not engine.idle:
            engine.step()
        assert [request.choices[0].output.token_ids] == fresh
        assert request.result().num_cached_tokens == 25


def test_logprobs_are_those_of_the_model() -> None:
    params = SamplingParams(temperature=0.8, top_k=10, seed=3, max_tokens=10, logprobs=3, ignore_eos=True)
    for engine in (Engine(tiny_target()), speculative()):
        request = engine.add(PROMPT, params)
        while not engine.idle:
            engine.step()
        output = request.choices[0].output
        tokens = PROMPT + output.token_ids
        logits = tiny_model.__wrapped__("llama")(torch.tensor([tokens]), use_cache=False).logits[0]
        own = logits.log_softmax(dim=-1)[len(PROMPT) - 1 : -1]
        assert output.logprobs is not None
        for row, token, entry in zip(own, output.token_ids, output.logprobs, strict=True):
            best = row.topk(3)
            assert set(entry) == {token, *best.indices.tolist()}
            for other, value in entry.items():
                assert value.logprob == pytest.approx(float(row[other]), abs=1e-5)
                assert value.rank == 1 + int((row > row[other]).sum())


def test_gpt2_reaches_the_end_of_its_position_table_while_speculating() -> None:
    """A draft one place beyond the table would be an index error; the last token needs no place of its own."""
    prompt = [index % 90 + 3 for index in range(230)]
    params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    engine = Engine(tiny_target("gpt2"))
    [plain] = tokens_of(engine, (prompt, params))
    assert len(plain) == 256 - 230
    for name in ("Oracle", "Flaky", "Thicket", "RandomTree"):
        drafter = ADVERSARIES[name]({("r", 0): plain})
        engine = Engine(tiny_target("gpt2"), drafter, num_speculative_tokens=9)
        request = engine.add(prompt, params, request_id="r")
        while not engine.idle:
            engine.step()
        assert request.choices[0].output.token_ids == plain
        assert request.choices[0].output.finish_reason is FinishReason.LENGTH


def test_a_refused_request_leaves_the_others_alone() -> None:
    engine = speculative()
    request = engine.add(PROMPT, SAMPLED)
    engine.step()
    with pytest.raises(RequestError, match="has 300 tokens, but the model's context holds 256"):
        engine.add([5] * 300, SAMPLED)
    with pytest.raises(RequestError, match=f"token id {VOCAB}"):
        engine.add([VOCAB], SAMPLED)
    while not engine.idle:
        engine.step()
        engine.check_integrity()
    assert [request.choices[0].output.token_ids] == tokens_of(Engine(tiny_target()), (PROMPT, SAMPLED))


def test_an_id_in_use_is_refused_and_free_again_afterwards() -> None:
    engine = speculative()
    engine.add(PROMPT, SAMPLED, request_id="mine")
    with pytest.raises(RequestError, match="'mine' is being decoded already"):
        engine.add(PROMPT, SAMPLED, request_id="mine")
    engine.abort("mine")
    engine.add(PROMPT, SAMPLED, request_id="mine")


def test_a_lone_request_ends_where_the_cache_ends() -> None:
    """Without max_tokens, and with less room than the model's context; speculation accepts and emits the same."""
    params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    answers = []
    for engine in (Engine(tiny_target(), kv_room=40), speculative(kv_room=40)):
        request = engine.add(PROMPT, params)
        while not engine.idle:
            engine.step()
            assert engine.report.cached_tokens + engine.report.rows <= 40
        answers.append(request.choices[0].output.token_ids)
        assert request.choices[0].output.finish_reason is FinishReason.LENGTH
    assert answers[0] == answers[1]
    assert len(PROMPT) + len(answers[0]) == 40
    with pytest.raises(CapacityError, match="KV cache for 41 tokens, but there is room for 40"):
        speculative(kv_room=40).add([5] * 30, SamplingParams(max_tokens=11))


def test_aborts_leave_no_slot_behind() -> None:
    """Forty requests, of which three in four are aborted: waiting, reading their prompt, decoding, half finished."""
    engine = speculative(max_batched_tokens=16)
    requests = [
        engine.add([7, index + 3] * (index % 9 + 1), SamplingParams(n=1 + index % 2, seed=index)) for index in range(40)
    ]
    outputs: list[CompletionOutput] = [choice.output for request in requests for choice in request.choices]
    step = 0
    while not engine.idle:
        engine.step()
        engine.check_integrity()
        step += 1
        if step % 2:
            open_ends = [request for request in requests if not request.result().finished]
            for request in open_ends[: 3 * len(open_ends) // 4 : 3]:
                deltas = engine.abort(request.id)
                assert all(delta.finish_reason is FinishReason.ABORT for delta in deltas)
                engine.check_integrity()
    assert all(output.finished for output in outputs)
    assert {output.finish_reason for output in outputs} >= {FinishReason.ABORT, FinishReason.LENGTH}
    assert engine.target.cache.free_slots == engine.target.cache.slots
    assert engine.abort("request-0") == []
    assert engine.abort("never heard of") == []
    assert engine.step() == []


def test_an_error_while_drafting_leaves_an_engine_that_can_go_on() -> None:
    """Nothing of the step was committed, so the next one does it again."""

    class Stumbling(RandomTree):
        steps = 0

        def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
            self.steps += 1
            if self.steps % 3 == 0:
                raise OSError("no luck")
            return super().propose(batch, budget)

    engine = Engine(tiny_target(), Stumbling(), num_speculative_tokens=4)
    request = engine.add(PROMPT, SAMPLED)
    errors = 0
    while not engine.idle:
        try:
            engine.step()
        except OSError:
            errors += 1
        engine.check_integrity()
    assert errors > 3
    assert [request.choices[0].output.token_ids] == tokens_of(Engine(tiny_target()), (PROMPT, SAMPLED))


def test_a_controller_without_reason_changes_nothing() -> None:
    requests = [(PROMPT, SAMPLED), ([5] * 20, SamplingParams(temperature=0, max_tokens=16))]
    plain = tokens_of(Engine(tiny_target()), *requests)
    answers = {("a", 0): plain[0], ("b", 0): plain[1]}
    for name in ("Oracle", "Thicket", "Twins", "RandomTree"):
        engine = Engine(
            tiny_target(), ADVERSARIES[name](answers), num_speculative_tokens=7, controller=CapriciousController()
        )
        added = [engine.add(prompt, params, request_id=id) for id, (prompt, params) in zip("ab", requests, strict=True)]
        while not engine.idle:
            engine.step()
            engine.check_integrity()
        assert [request.choices[0].output.token_ids for request in added] == plain
