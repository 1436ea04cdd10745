"""The offline benchmark on a tiny model: what it counts and shares, and that differences are found and explained."""

from __future__ import annotations

import json
from collections.abc import Sequence as Collection
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import torch
from models import VOCAB, tiny_target

from foredraft.bench.decode import BlockRun, decode_block
from foredraft.bench.differences import first_difference, top_two_gap
from foredraft.bench.methods import methods_from
from foredraft.bench.offline import OFF, Method, Plan, measure_offline
from foredraft.bench.report import as_json, difference_lines, offline_table
from foredraft.bench.workloads import EncodedPrompt
from foredraft.drafters.base import BaseDrafter
from foredraft.engine.engine import Engine
from foredraft.engine.requests import Choice
from foredraft.errors import ConfigError
from foredraft.target.target import Target
from foredraft.tree import TokenTree
from foredraft.types import SamplingParams, Sequence

KEYS = {
    "method",
    "workload",
    "concurrency",
    "temperature",
    "output_throughput",
    "plain_throughput",
    "speedup",
    "acceptance_length",
    "acceptance_rate",
    "identical",
    "draft_s",
    "verify_s",
    "host_s",
    "peak_memory_mb",
    "draft_share",
    "mean_ttft_ms",
    "mean_tpot_ms",
    "mean_itl_ms",
    "spec_decode_acceptance_rate",
    "spec_decode_acceptance_length",
    "spec_decode_per_position_acceptance_rates",
}


@dataclass
class Clerk(BaseDrafter):
    """Proposes from answers it was given, spoiling every third draft token, and notes the requests it saw."""

    answers: dict[tuple[int, ...], list[int]]
    seen: list[tuple[int, ...]] = field(default_factory=list)
    predictions: list[tuple[int, ...]] = field(default_factory=list)

    def begin(self, sequence: Sequence) -> None:
        self.seen.append(tuple(sequence.tokens))
        self.predictions.append(sequence.prediction)

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        drafts = []
        for sequence, room in zip(batch, budget, strict=True):
            done = sequence.output_length
            known = self.answers.get(tuple(sequence.tokens[: sequence.prompt_length]), [])[done : done + room]
            drafts.append([token if at % 3 < 2 else (token + 1) % VOCAB for at, token in enumerate(known)])
        return TokenTree.chain(drafts)


class Opener:
    """Opens engines over one target and keeps them for inspection."""

    def __init__(self, target: Target, temperature: float = 0.0) -> None:
        self.target = target
        self.opened: list[tuple[Method, Engine]] = []
        params = SamplingParams(temperature=temperature, max_tokens=24)
        known = [*prompts(3, "a"), *prompts(2, "b")]
        runs = [decode_block(Engine(tiny_target()), [prompt], params) for prompt in known]
        self.answers = {prompt.tokens: run.answers[0].tokens for prompt, run in zip(known, runs, strict=True)}

    def __call__(self, method: Method) -> Engine:
        drafter = None if method.config is None else Clerk(self.answers)
        engine = Engine(self.target, drafter, num_speculative_tokens=4 if drafter else 0)
        self.opened.append((method, engine))
        return engine


def prompts(count: int, workload: str = "w") -> list[EncodedPrompt]:
    return [
        EncodedPrompt(
            tuple((5 * index + 7 * step) % 20 + 3 for step in range(12)), workload, f"{workload} {index}", (9, 8), index
        )
        for index in range(count)
    ]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("concurrency", [1, 2])
def test_cells_add_up(temperature: float, concurrency: int) -> None:
    opener = Opener(tiny_target(), temperature)
    plan = Plan([OFF, Method("clerk", {})], [temperature], [concurrency], max_tokens=12, repeat=2)
    cells = measure_offline(opener.target, opener, [*prompts(3, "a"), *prompts(2, "b")], plan)
    assert [(cell.method, cell.workload) for cell in cells] == [
        (method, workload) for method in ("off", "clerk") for workload in ("a", "b", "overall")
    ]
    for cell in cells:
        assert cell.identical
        assert not cell.differences
        assert cell.temperature == temperature
        assert cell.concurrency == concurrency
        assert cell.num_prompts == {"a": 3, "b": 2, "overall": 5}[cell.workload]
        assert cell.total_input_tokens == 12 * cell.num_prompts
        assert cell.speedup == pytest.approx(cell.output_throughput / cell.plain_throughput)
        assert cell.speedup_p25 <= cell.speedup_median <= cell.speedup_p75
        assert cell.draft_s + cell.verify_s + cell.host_s > 0
        assert cell.peak_memory_mb > 10
    plain, clerk = cells[2], cells[5]
    assert plain.speedup == 1
    assert plain.acceptance_length == 1
    assert plain.acceptance_rate == 0
    assert plain.spec_decode_per_position_acceptance_rates == []
    assert clerk.acceptance_length > 1
    assert 0 < clerk.acceptance_rate <= 1
    rates = clerk.spec_decode_per_position_acceptance_rates
    assert all(first >= second for first, second in pairwise(rates))
    assert clerk.speedup_geometric_mean == pytest.approx((cells[3].speedup * cells[4].speedup) ** 0.5)
    assert plain.total_output_tokens == clerk.total_output_tokens


def test_acceptance_counts_are_those_of_the_steps() -> None:
    target = tiny_target()
    opener = Opener(target)
    run = decode_block(opener(Method("clerk", {})), prompts(1), SamplingParams(temperature=0, max_tokens=24))
    [answer] = run.answers
    stats = answer.stats
    assert run.steps == stats.steps == len(answer.times) > 1
    assert len(answer.tokens) == stats.emitted
    [cell] = measure_offline(target, opener, prompts(1), Plan([Method("clerk", {})], max_tokens=24))
    assert cell.acceptance_length == pytest.approx(len(answer.tokens) / stats.steps)
    assert cell.acceptance_rate == pytest.approx(stats.accepted / stats.drafted)
    assert cell.steps == stats.steps


def test_nothing_is_shared_that_would_favour_a_method() -> None:
    opener = Opener(tiny_target())
    plan = Plan([Method("clerk", {})], max_tokens=6, repeat=2)
    members = prompts(3)
    measure_offline(opener.target, opener, members, plan)
    drafters = [engine.drafter for method, engine in opener.opened if method.config is not None]
    assert len(drafters) == 2, "a drafter for each repeat"
    for drafter in drafters:
        assert isinstance(drafter, Clerk)
        assert drafter.seen[1:] == [prompt.tokens for prompt in members], "each prompt once, after the warm-up"


def test_cache_is_empty_before_every_block() -> None:
    engine = Engine(tiny_target())
    params = SamplingParams(temperature=0, max_tokens=6)
    rows = []
    for _ in range(2):
        run = decode_block(engine, prompts(1), params)
        rows.append((run.answers[0].tokens, run.steps, max(engine.target.cache.prefixes(prompts(1)[0].tokens))))
    assert rows[0] == rows[1]
    request = engine.add(prompts(1)[0].tokens, params)
    engine.step()
    assert request.result().num_cached_tokens == 11, "without clearing, the prompt would have been reused"


def test_predictions_reach_only_methods_that_may_see_them() -> None:
    for predicts, expected in ((False, ()), (True, (9, 8))):
        opener = Opener(tiny_target())
        measure_offline(opener.target, opener, prompts(1), Plan([Method("clerk", {}, predicts)], max_tokens=3))
        drafter = opener.opened[-1][1].drafter
        assert isinstance(drafter, Clerk)
        assert drafter.predictions[-1] == expected


def test_concurrency_keeps_that_many_in_flight() -> None:
    engine = Engine(tiny_target(slots=3))
    batches = []
    step = engine.step

    def watched() -> list[object]:
        deltas = step()
        batches.append(engine.report.batch)
        return list(deltas)

    engine.step = watched  # type: ignore[assignment,method-assign]
    run = decode_block(engine, prompts(7), SamplingParams(temperature=0, max_tokens=5, ignore_eos=True), concurrency=3)
    assert max(batches) == 3
    assert [len(answer.tokens) for answer in run.answers] == [5] * 7
    alone = [
        decode_block(Engine(tiny_target()), [prompt], SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
        for prompt in prompts(7)
    ]
    assert [answer.tokens for answer in run.answers] == [one.answers[0].tokens for one in alone]


def test_a_request_that_fails_ends_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of being waited for for ever, or counted as an answer."""
    engine = Engine(tiny_target())

    def fail(*_: object) -> None:
        raise ValueError("the tokenizer is broken")

    monkeypatch.setattr(Choice, "extend", fail)
    with pytest.raises(ValueError, match="the tokenizer is broken"):
        decode_block(engine, prompts(2), SamplingParams(temperature=0, max_tokens=5), concurrency=2)


class Lying(Engine):
    """An engine that exchanges the fourth token of every answer: what a broken speculation would look like."""

    def step(self) -> list[object]:  # type: ignore[override]
        deltas = super().step()
        for delta in deltas:
            tokens = self._choices_tokens(delta.request_id)
            if len(tokens) == 4:
                tokens[3] = (tokens[3] + 1) % VOCAB
        return list(deltas)

    def _choices_tokens(self, request_id: str) -> list[int]:
        request = self._requests.get(request_id)
        return request.choices[0].output.token_ids if request else []


def test_differences_are_found_with_their_gap() -> None:
    target = tiny_target()

    def open_engine(method: Method) -> Engine:
        return Engine(target) if method.config is None else Lying(target)

    [cell] = measure_offline(target, open_engine, prompts(2), Plan([Method("lying", {})], max_tokens=8))
    assert not cell.identical
    assert {difference.position for difference in cell.differences} <= {3}
    for difference, prompt in zip(cell.differences, prompts(2), strict=True):
        assert difference.source == prompt.source
        assert difference.other == (difference.plain + 1) % VOCAB
        assert difference.gap > 0
    [line, _] = difference_lines([cell])
    assert "w 0: token 3 is" in line
    assert "differ" in str(next(iter(offline_table([cell]).columns[-1].cells)))


def test_gap_is_that_of_the_two_best_logits() -> None:
    target = tiny_target()
    prompt = list(prompts(1)[0].tokens)
    engine = Engine(target)
    request = engine.add(prompt, SamplingParams(temperature=0, max_tokens=4, logprobs=2, ignore_eos=True))
    while not engine.idle:
        engine.step()
    output = request.result().outputs[0]
    assert output.logprobs is not None
    for position, entry in enumerate(output.logprobs):
        best, second = sorted((value.logprob for value in entry.values()), reverse=True)[:2]
        gap = top_two_gap(target, prompt, output.token_ids[:position], SamplingParams(temperature=0))
        assert gap == pytest.approx(best - second, abs=1e-5)
    sampled = top_two_gap(target, prompt, [], SamplingParams(temperature=1, seed=4))
    assert sampled > 0
    assert sampled != pytest.approx(top_two_gap(target, prompt, [], SamplingParams(temperature=1, seed=5)))
    target.cache.check_integrity({})


def test_reference_takes_its_turn_uncompared() -> None:
    opener = Opener(tiny_target())
    calls = []

    def reference(block: Collection[EncodedPrompt], params: SamplingParams, concurrency: int) -> BlockRun:
        calls.append(([prompt.source for prompt in block], concurrency))
        return decode_block(Engine(tiny_target(seed=1)), block, params, concurrency)

    plan = Plan([Method("clerk", {})], max_tokens=6)
    clerk, other = measure_offline(opener.target, opener, prompts(2), plan, references={"other": reference})
    assert calls == [(["w 0"], 1), (["w 1"], 1)]
    assert (clerk.identical, other.identical) == (True, None)
    assert other.method == "other"
    assert other.plain_throughput == clerk.plain_throughput


def test_first_difference() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 4, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2
    assert first_difference([], [1]) == 0


def test_json_has_the_agreed_keys() -> None:
    opener = Opener(tiny_target())
    cells = measure_offline(opener.target, opener, prompts(1), Plan([Method("clerk", {})], max_tokens=1))
    report = json.loads(as_json({"model": "tiny"}, cells))
    assert set(report) == {"meta", "cells"}
    assert set(report["meta"]) >= {"date", "argv", "git_sha", "versions", "machine", "model"}
    assert report["meta"]["versions"]["torch"] == torch.__version__
    [cell] = report["cells"]
    assert set(cell) >= KEYS
    assert cell["mean_tpot_ms"] is None, "one token has no time per further token"
    assert cell["identical"] is True


@pytest.mark.parametrize(
    ("plan", "complaint"),
    [
        ({"methods": []}, "no method"),
        ({"methods": [OFF], "concurrencies": [4, 0]}, "concurrency is 0"),
        ({"methods": [OFF], "repeat": 0}, "repeat is 0"),
        ({"methods": [OFF, OFF]}, "'off' is asked for twice"),
    ],
)
def test_senseless_plans_are_refused(plan: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Plan(**plan)  # type: ignore[arg-type]


def test_methods_by_name_and_by_config() -> None:
    methods = methods_from(["off", "suffix"], ['{"method": "ngram", "num_speculative_tokens": 8}'])
    assert [method.name for method in methods] == ["off", "suffix", "ngram"]
    assert methods[0] == OFF
    twins = methods_from(
        ["prediction"],
        ['{"method": "ngram", "num_speculative_tokens": 4}', '{"method": "ngram", "num_speculative_tokens": 8}'],
        num_speculative_tokens=6,
    )
    assert [method.name for method in twins] == [
        "prediction", "ngram num_speculative_tokens=4", "ngram num_speculative_tokens=8",
    ]  # fmt: skip
    assert twins[0].config == {"method": "prediction", "num_speculative_tokens": 6}
    assert [method.predicts for method in twins] == [True, False, False]
    assert all(method.predicts for method in methods_from(["suffix"], [], predict=True))
    for text in ("{method: ngram}", "[1]"):
        with pytest.raises(ConfigError, match="--speculative-config"):
            methods_from([], [text])
