"""What a caller sees follows from committed tokens alone: ends, text, logprobs; bad requests are refused in words."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from byte_tokenizer import EOS, VOCAB, byte_tokenizer, encode, word
from models import scripted_target, tiny_target

from foredraft.engine.outputs import Delta, Logprob, SpeculationStats
from foredraft.engine.requests import Choice, Request, check_request
from foredraft.errors import CapacityError, ForedraftError, RequestError
from foredraft.types import FinishReason, SamplingParams, Sequence

STOP, LENGTH, ABORT = FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT


@dataclass
class Fed:
    """A choice and what its steps said."""

    choice: Choice
    deltas: list[Delta]

    @property
    def summary(self) -> tuple[str, int, FinishReason | None, int | str | None]:
        output = self.choice.output
        return output.text, len(output.token_ids), output.finish_reason, output.stop_reason


def feed(params: SamplingParams, *steps: list[int], max_length: int = 250) -> Fed:
    """A choice with a prompt of 50 tokens that commits these steps, all but each step's last token drafted."""
    target = scripted_target([], [], vocab_size=VOCAB, tokenizer=byte_tokenizer())
    request = Request("r", None, [5] * 50, params)
    request.add_choice(Sequence(0, params, [5] * 50, 50, 0, request_id="r"), target, 4)
    fed = Fed(request.choices[0], [])
    for step in steps:
        logprobs = None if params.logprobs is None else [{token: Logprob(-1.0, 1)} for token in step]
        fed.deltas.append(fed.choice.extend(step, len(step) - 1, (EOS,), max_length, logprobs))
        if fed.choice.output.finished:
            break
    output = fed.choice.output
    assert "".join(delta.text for delta in fed.deltas) == output.text
    assert (
        [token for delta in fed.deltas for token in delta.token_ids] == output.token_ids == fed.choice.sequence.output
    )
    assert output.logprobs is None or len(output.logprobs) == len(output.token_ids)
    assert [delta.finish_reason for delta in fed.deltas[:-1]] == [None] * (len(fed.deltas) - 1)
    assert fed.deltas[-1].finish_reason == output.finish_reason
    return fed


@pytest.mark.parametrize(
    ("params", "steps", "summary"),
    [
        # an end token inside a block, and one beyond the cap
        (SamplingParams(), [[*encode("ab"), EOS, *encode("cd")]], ("ab", 3, STOP, None)),
        (SamplingParams(max_tokens=2), [[*encode("ab"), EOS]], ("ab", 2, LENGTH, None)),
        (SamplingParams(max_tokens=3), [[*encode("ab"), EOS]], ("ab", 3, STOP, None)),
        (
            SamplingParams(ignore_eos=True, max_tokens=4),
            [[*encode("ab"), EOS, *encode("cd")]],
            ("abc", 4, LENGTH, None),
        ),
        # stop tokens: the first one ends the text and isn't part of it
        (SamplingParams(stop_token_ids=encode("cb")), [encode("abc")], ("a", 2, STOP, encode("b")[0])),
        (SamplingParams(stop_token_ids=[EOS]), [[EOS]], ("", 1, STOP, None)),
        (SamplingParams(stop_token_ids=[EOS], ignore_eos=True), [[EOS]], ("", 1, STOP, EOS)),
        # stop strings: inside a block, across blocks, against max_tokens
        (SamplingParams(stop="c"), [encode("abcd")], ("ab", 3, STOP, "c")),
        (SamplingParams(stop="bcd"), [encode("ab"), encode("cde")], ("a", 4, STOP, "bcd")),
        (SamplingParams(stop="cd", max_tokens=4), [encode("abcdef")], ("ab", 4, STOP, "cd")),
        (SamplingParams(stop="cd", max_tokens=3), [encode("abcdef")], ("abc", 3, LENGTH, None)),
        (SamplingParams(stop="cd", include_stop_str_in_output=True), [encode("abcd")], ("abcd", 4, STOP, "cd")),
        (SamplingParams(stop=["cd", "bc"]), [encode("abcd")], ("a", 3, STOP, "bc")),
        (SamplingParams(stop="x"), [encode("ab"), [*encode("c"), EOS]], ("abc", 4, STOP, None)),
        (SamplingParams(stop="to"), [[word("stop"), *encode("z")]], ("s", 1, STOP, "to")),
        # a stop string counts from min_tokens on
        (SamplingParams(stop="ab", min_tokens=3), [encode("abcab")], ("abc", 5, STOP, "ab")),
        # lengths
        (SamplingParams(max_tokens=1), [encode("abc")], ("a", 1, LENGTH, None)),
        (SamplingParams(max_tokens=5), [encode("abc"), encode("def")], ("abcde", 5, LENGTH, None)),
        # a character split between steps, and one that is cut off
        (SamplingParams(), [encode("é日")[:3], encode("é日")[3:]], ("é日", 5, None, None)),
        (
            SamplingParams(max_tokens=4),
            [encode("é日")[:3], encode("é日")[3:]],
            ("é\N{REPLACEMENT CHARACTER}", 4, LENGTH, None),
        ),
    ],
)
def test_a_choice_ends_where_its_first_end_is(
    params: SamplingParams, steps: list[list[int]], summary: tuple[object, ...]
) -> None:
    assert feed(params, *steps).summary == summary
    token_by_token = [[token] for step in steps for token in step]
    assert feed(params, *token_by_token).summary == summary, "decoded plainly"


def test_the_context_end_is_a_length_finish() -> None:
    assert feed(SamplingParams(max_tokens=None), encode("abcdef"), max_length=54).summary == ("abcd", 4, LENGTH, None)


def test_logprobs_stop_where_the_tokens_stop() -> None:
    fed = feed(SamplingParams(logprobs=0), [*encode("ab"), EOS, *encode("cd")])
    assert fed.choice.output.logprobs is not None
    assert [list(entry) for entry in fed.choice.output.logprobs] == [[encode("a")[0]], [encode("b")[0]], [EOS]]


def test_drafted_marks_only_the_accepted_drafts() -> None:
    fed = feed(SamplingParams(), encode("abc"), encode("d"))
    assert fed.choice.output.drafted == [True, True, False, False]
    assert [piece.drafted for delta in fed.deltas for piece in delta.pieces] == [True, True, False, False]


def test_an_abort_releases_what_was_held_back() -> None:
    fed = feed(SamplingParams(stop="stop"), encode("ast"))
    assert fed.choice.output.text == "a"
    delta = fed.choice.abort()
    assert (delta.text, delta.token_ids, delta.finish_reason) == ("st", [], ABORT)
    assert fed.choice.output.text == "ast"


LONG = list(range(3, 33))


@pytest.mark.parametrize(
    ("prompt", "params", "error", "complaint"),
    [
        ([], SamplingParams(), RequestError, "prompt is empty"),
        (LONG, SamplingParams(max_tokens=None), RequestError, "has 30 tokens, but the model's context holds 30"),
        (
            LONG[:20],
            SamplingParams(max_tokens=11),
            RequestError,
            "20 tokens and max_tokens is 11, .* lower max_tokens to 10",
        ),
        (LONG[:20], SamplingParams(max_tokens=8), CapacityError, "KV cache for 28 tokens, but there is room for 25"),
        ([5, 96], SamplingParams(), RequestError, "prompt has token id 96; the model's vocabulary ends at 95"),
        ([5, -1], SamplingParams(), RequestError, "prompt has token id -1"),
        ([5], SamplingParams(stop_token_ids=[96]), RequestError, "stop_token_ids has token id 96"),
        ([5], SamplingParams(logit_bias={200: 1.0}), RequestError, "logit_bias has token id 200"),
        ([5], SamplingParams(stop="x"), RequestError, "stop strings need a tokenizer"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_with_its_numbers(
    prompt: list[int], params: SamplingParams, error: type[ForedraftError], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        check_request(prompt, params, tiny_target(max_model_len=30), 25)


def test_a_request_that_just_fits_is_accepted() -> None:
    check_request(LONG[:20], SamplingParams(max_tokens=10), tiny_target(max_model_len=30), 30)
    check_request(LONG[:29], SamplingParams(max_tokens=None), tiny_target(max_model_len=30), 30)


def test_statistics_count_drafts_apart_from_the_bonus() -> None:
    stats = SpeculationStats(limit=4)
    for drafted, accepted in ((4, 4), (4, 1), (0, 0), (3, 0)):
        stats.observe(drafted, accepted, accepted + 1)
    assert stats.as_dict() == {
        "mean_acceptance_length": 9 / 4,
        "draft_acceptance_rate": 5 / 11,
        "acceptance_histogram": [2, 1, 0, 0, 1],
        "num_spec_steps": 4,
        "num_accepted_draft_tokens": 5,
        "num_draft_tokens": 11,
        "num_spec_tokens": 4,
    }
    total = SpeculationStats()
    assert (total.acceptance_length, total.acceptance_rate) == (1.0, 0.0)
    total.add(stats)
    total.add(stats)
    assert total.accepted_per_position == [4, 2, 2, 2]
    assert total.acceptance_length == stats.acceptance_length
