"""What users of speculative decoding report elsewhere, each as a test: the engine must not have these faults.

The target recites a script, so that every end, stop and character falls exactly where the test wants it, and drafts
reach across it. Each case runs plainly and under drafters that are right, wrong and full of end tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from byte_tokenizer import EOS, VOCAB, byte_tokenizer, encode, word
from drafters import ADVERSARIES, Adversary, Nodes, chain
from models import scripted_target

from foredraft.engine.engine import Engine
from foredraft.engine.outputs import CompletionOutput, Delta
from foredraft.types import FinishReason, SamplingParams, Sequence

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
PROMPT = encode("Say: ")
DRAFTERS = ["plain", "Oracle", "Flaky", "Thicket", "Twins", "EndEverywhere", "Empty", "Liar"]


@dataclass
class Run:
    """One request decoded to its end."""

    output: CompletionOutput
    deltas: list[Delta] = field(default_factory=list)

    @property
    def summary(self) -> tuple[str, FinishReason | None, int | str | None, int]:
        """Text, finish and stop reason, number of tokens."""
        output = self.output
        return output.text, output.finish_reason, output.stop_reason, len(output.token_ids)


def decode(answer: list[int], params: SamplingParams, name: str = "Oracle", *, max_model_len: int = 256) -> Run:
    """The scripted answer, with the drafter of that name."""
    target = scripted_target(
        PROMPT, answer, vocab_size=VOCAB, tokenizer=byte_tokenizer(), slots=2, max_model_len=max_model_len
    )
    drafter = None if name == "plain" else ADVERSARIES[name]({("r", 0): [*answer, *[3] * 40]})
    engine = Engine(target, drafter, num_speculative_tokens=6)
    request = engine.add(PROMPT, params, request_id="r")
    run = Run(request.choices[0].output)
    while not engine.idle:
        run.deltas += engine.step()
        engine.check_integrity()
    assert target.cache.free_slots == 2
    assert "".join(delta.text for delta in run.deltas) == run.output.text
    assert [token for delta in run.deltas for token in delta.token_ids] == run.output.token_ids
    return run


GREEDY = SamplingParams(temperature=0, max_tokens=30)


def greedy(**more: object) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 30, **more})  # type: ignore[arg-type]


# answer of the script, parameters -> text, finish and stop reason, number of tokens
CASES = {
    "an end token in the middle of a block": (
        [*encode("ab"), EOS, *encode("cdef")],
        greedy(),
        ("ab", STOP, None, 3),
    ),
    "an end token at once": (
        [EOS, *encode("ab")],
        greedy(),
        ("", STOP, None, 1),
    ),
    "an end token that is ignored": (
        [*encode("ab"), EOS, *encode("c")],
        greedy(ignore_eos=True, max_tokens=4),
        ("abc", LENGTH, None, 4),
    ),
    "an end token on the last place": (
        [*encode("abc"), EOS],
        greedy(max_tokens=4),
        ("abc", STOP, None, 4),
    ),
    "an end token beyond the last place": (
        [*encode("abcd"), EOS],
        greedy(max_tokens=4),
        ("abcd", LENGTH, None, 4),
    ),
    "a stop token in the middle of a block": (
        encode("abXcdef"),
        greedy(stop_token_ids=encode("X")),
        ("ab", STOP, encode("X")[0], 3),
    ),
    "a stop string inside a block": (
        encode("one two three"),
        greedy(stop=" t"),
        ("one", STOP, " t", 5),
    ),
    "a stop string across blocks": (
        encode("abcdefgSTOPx"),
        greedy(stop="STOP"),
        ("abcdefg", STOP, "STOP", 11),
    ),
    "a stop string in front of max_tokens": (
        encode("abcdefgh"),
        greedy(stop="de", max_tokens=5),
        ("abc", STOP, "de", 5),
    ),
    "a stop string behind max_tokens": (
        encode("abcdefgh"),
        greedy(stop="de", max_tokens=4),
        ("abcd", LENGTH, None, 4),
    ),
    "a stop string within a token": (
        [*encode("x"), word("stop"), *encode("y")],
        greedy(stop="to"),
        ("xs", STOP, "to", 2),
    ),
    "a stop string that is kept": (
        encode("ab. cd"),
        greedy(stop=". ", include_stop_str_in_output=True),
        ("ab. ", STOP, ". ", 4),
    ),
    "a character over three tokens": (
        encode("日本é"),
        greedy(max_tokens=8),
        ("日本é", LENGTH, None, 8),
    ),
    "a character cut off at the end": (
        encode("日本")[:5],
        greedy(max_tokens=5),
        ("日\N{REPLACEMENT CHARACTER}", LENGTH, None, 5),
    ),
    "one token": (
        encode("abc"),
        greedy(max_tokens=1),
        ("a", LENGTH, None, 1),
    ),
}


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("case", CASES)
def test_the_answer_ends_where_it_should(case: str, name: str) -> None:
    answer, params, summary = CASES[case]
    assert decode(answer, params, name).summary == summary


def test_a_stop_string_is_never_streamed_in_part() -> None:
    for name in DRAFTERS:
        run = decode(encode("text STOP"), greedy(stop="STOP"), name)
        assert run.output.text == "text "
        assert all("S" not in delta.text for delta in run.deltas)


def test_no_delta_splits_a_character() -> None:
    for name in DRAFTERS:
        run = decode([*encode("日本語 é 😀"), EOS], GREEDY, name)
        assert run.output.text == "日本語 é 😀"
        assert all("\N{REPLACEMENT CHARACTER}" not in delta.text for delta in run.deltas)


@pytest.mark.parametrize("name", DRAFTERS)
def test_min_tokens_masks_every_end_below_the_minimum(name: str) -> None:
    """The script wants to end at once and always: the runner-up is the next id until five tokens are there."""
    run = decode([EOS] * 20, greedy(min_tokens=5), name)
    assert run.output.token_ids == [EOS + 1] * 5 + [EOS]
    run = decode([EOS] * 20, greedy(min_tokens=5, stop_token_ids=[EOS + 1]), name)
    assert run.output.token_ids == [EOS + 2] * 5 + [EOS]


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_penalty_counts_the_drafts_of_its_own_path(name: str) -> None:
    """The script repeats one token; with a frequency penalty above the gap of 1 it is overtaken, again and again."""
    token = encode("a")[0]
    once = decode([token] * 20, greedy(frequency_penalty=1.6, max_tokens=5), name)
    assert once.output.token_ids == [token, token + 1, token, token + 2, token + 1]


def test_a_draft_that_is_right_without_its_penalty_is_refused() -> None:
    """The oracle drafts the repetition; acceptance must stop where the penalised target stops."""
    token = encode("a")[0]
    run = decode([token] * 20, greedy(presence_penalty=1.5, max_tokens=4), "Oracle")
    assert run.output.token_ids == [token, token + 1, token, token]
    assert run.output.drafted == [True, False, True, False]  # the last place needs no draft


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("count", [0, 3])
def test_logprobs_are_the_raw_ones_of_every_emitted_token(name: str, count: int) -> None:
    answer = [*encode("ab"), EOS, *encode("cd")]
    params = greedy(logprobs=count, repetition_penalty=1.5, logit_bias={50: -3.0})
    output = decode(answer, params, name).output
    assert output.logprobs is not None
    assert len(output.logprobs) == len(output.token_ids) == 3
    row = torch.arange(0, -VOCAB, -1, dtype=torch.float64).log_softmax(dim=0)
    for token, entry in zip(output.token_ids, output.logprobs, strict=True):
        best = [(token + rank) % VOCAB for rank in range(max(count, 1))]
        assert list(entry) == best
        for rank, other in enumerate(best):
            assert entry[other].rank == rank + 1
            assert entry[other].logprob == pytest.approx(float(row[rank]))
    assert [output.logprobs[i][output.token_ids[i]].decoded_token for i in (0, 1)] == ["a", "b"]


def test_the_logprob_of_a_token_that_is_not_the_likeliest_has_its_rank() -> None:
    token = encode("a")[0]
    output = decode([token] * 9, greedy(logprobs=2, logit_bias={token + 3: 10.0}, max_tokens=3)).output
    assert output.token_ids == [token + 3] * 3
    assert output.logprobs is not None
    for entry in output.logprobs:
        assert [(other, value.rank) for other, value in entry.items()] == [(token + 3, 4), (token, 1), (token + 1, 2)]


class EndOnly(Adversary):
    """Drafts nothing but an end token."""

    def draft(self, sequence: Sequence, coming: list[int], budget: int) -> Nodes:
        return chain([EOS][:budget])


def test_an_end_token_that_was_only_drafted_ends_nothing() -> None:
    target = scripted_target(PROMPT, encode("abcdef"), vocab_size=VOCAB, tokenizer=byte_tokenizer())
    engine = Engine(target, EndOnly(), num_speculative_tokens=3)
    request = engine.add(PROMPT, greedy(max_tokens=6))
    while not engine.idle:
        engine.step()
    assert request.choices[0].output.text == "abcdef"
    assert request.choices[0].output.finish_reason is LENGTH


@pytest.mark.parametrize("name", DRAFTERS)
def test_statistics_count_what_was_emitted(name: str) -> None:
    """An answer cut by its end: drafts accepted beyond it were not emitted, so they don't count."""
    output = decode([*encode("abcde"), EOS, *encode("fghijkl")], GREEDY, name).output
    stats = output.speculative_decoding
    assert stats.emitted == len(output.token_ids) == 6
    assert stats.accepted == sum(output.drafted)
    assert stats.steps == stats.as_dict()["num_spec_steps"]
    assert sum(stats.as_dict()["acceptance_histogram"]) == stats.steps  # type: ignore[call-overload]
    if name == "Oracle":
        assert stats.steps == 1
    if name in ("plain", "Empty", "Liar"):
        assert (stats.steps, stats.acceptance_length) == (6, 1.0)


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_context_end_is_reached_and_not_passed(name: str) -> None:
    run = decode(encode("abcdefgh"), greedy(max_tokens=None), name, max_model_len=len(PROMPT) + 5)
    assert run.summary == ("abcde", LENGTH, None, 5)


@pytest.mark.parametrize("name", ["Oracle", "Flaky", "Thicket"])
def test_a_request_may_switch_speculation_off_or_lower_it(name: str) -> None:
    for params, most in ((greedy(speculative=False), 0), (greedy(num_speculative_tokens=2), 2), (GREEDY, 6)):
        target = scripted_target(PROMPT, encode("abcdefghijklmnop"), vocab_size=VOCAB)
        drafter = ADVERSARIES[name]({("r", 0): encode("abcdefghijklmnop")})
        engine = Engine(target, drafter, num_speculative_tokens=6)
        request = engine.add(PROMPT, params, request_id="r")
        drafted = []
        while not engine.idle:
            engine.step()
            drafted += engine.report.drafted
        assert max(drafted) == most or (name == "Thicket" and 0 < max(drafted) <= most)
        assert request.choices[0].output.speculative_decoding.limit == most


def test_every_step_reports_what_it_did() -> None:
    target = scripted_target(PROMPT, encode("abcdefghijkl"), vocab_size=VOCAB)
    drafter = ADVERSARIES["Oracle"]({("r", 0): encode("abcdefghijkl")})
    engine = Engine(target, drafter, num_speculative_tokens=3, method="oracle")
    engine.add(PROMPT, greedy(max_tokens=12), request_id="r")
    engine.step()
    report = engine.report
    assert (report.method, report.batch, report.rows, report.prompt_rows) == ("oracle", 1, 8, 4)
    assert (report.drafted, report.accepted, report.accepted_per_depth) == ([3], [3], [1, 1, 1])
    assert report.cached_tokens == 0
    engine.step()
    assert (engine.report.rows, engine.report.prompt_rows, engine.report.cached_tokens) == (4, 0, 8)
    assert min(report.draft_seconds, report.verify_seconds, report.host_seconds) > 0
