"""Streams that are read in turns, and `generate` in between: every token reaches the request that it belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from foredraft.engine.llm import LLM
from foredraft.engine.outputs import Delta
from foredraft.types import SamplingParams

PARAMS = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
PROMPTS = ("one two", "three", "four five six")


@pytest.fixture(scope="module")
def llm(tiny_checkpoint: Path) -> LLM:
    drafting = {"method": "ngram", "controller": "off", "num_speculative_tokens": 6}
    return LLM(str(tiny_checkpoint), speculative_config=drafting, max_num_seqs=4, dtype="float64")


def wanted(llm: LLM, prompt: str) -> list[int]:
    return llm.generate(prompt, PARAMS)[0].outputs[0].token_ids


def rest(stream: Iterator[Delta]) -> list[int]:
    return [token for delta in stream for token in delta.token_ids]


def test_streams_read_in_turns_lose_nothing(llm: LLM) -> None:
    expected = [wanted(llm, prompt) for prompt in PROMPTS]
    streams = [llm.stream(prompt, PARAMS) for prompt in PROMPTS]
    found: list[list[int]] = [[] for _ in streams]
    texts = ["" for _ in streams]
    open_ones = set(range(len(streams)))
    turn = 0
    while open_ones:
        for index in sorted(open_ones):
            if turn % (index + 1):
                continue  # the later ones are read less often
            delta = next(streams[index], None)
            if delta is None:
                open_ones.remove(index)
            else:
                found[index] += delta.token_ids
                texts[index] += delta.text
        turn += 1
    assert found == expected
    assert texts == [llm.generate(prompt, PARAMS)[0].outputs[0].text for prompt in PROMPTS]
    assert llm.engine.idle


def test_generate_leaves_an_open_stream_its_tokens(llm: LLM) -> None:
    expected = [wanted(llm, prompt) for prompt in PROMPTS[:2]]
    stream = llm.stream(PROMPTS[0], PARAMS)
    first = next(stream).token_ids
    short = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    assert llm.generate(PROMPTS[1], short)[0].outputs[0].token_ids == expected[1][:3]
    assert not llm.engine.idle, "the stream goes on as it is read, not sooner"
    assert wanted(llm, PROMPTS[1]) == expected[1]
    assert [*first, *rest(stream)] == expected[0]


def test_a_stream_that_is_closed_leaves_the_others_alone(llm: LLM) -> None:
    expected = wanted(llm, PROMPTS[0])
    kept, closed = llm.stream(PROMPTS[0], PARAMS), llm.stream(PROMPTS[1], PARAMS)
    first = next(kept).token_ids
    next(closed)
    closed.close()
    assert [*first, *rest(kept)] == expected
    assert llm.engine.idle


def test_a_step_that_raises_ends_every_stream_in_it(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """None may look as if it were complete; the engine can go on."""
    expected = wanted(llm, PROMPTS[2])
    streams = [llm.stream(prompt, PARAMS) for prompt in PROMPTS[:2]]
    for stream in streams:
        next(stream)

    def fail(*_: object) -> None:
        raise OSError("no luck")

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine.controller, "observe", fail)
        with pytest.raises(OSError, match="no luck"):
            rest(streams[0])
    with pytest.raises(RuntimeError, match=r"a step of the engine failed: .*no luck"):
        rest(streams[1])
    assert wanted(llm, PROMPTS[2]) == expected


def test_a_request_that_fails_alone_ends_its_own_stream_only(llm: LLM) -> None:
    expected = wanted(llm, PROMPTS[0])
    sound, broken = llm.stream(PROMPTS[0], PARAMS), llm.stream(PROMPTS[1], PARAMS)
    first = next(sound).token_ids
    next(broken)
    [request] = [one.request for one in llm._streams.values() if one.request.prompt == PROMPTS[1]]

    def fail(*_: object) -> None:
        raise OSError("no luck")

    request.choices[0].extend = fail  # type: ignore[method-assign,assignment]
    assert [*first, *rest(sound)] == expected
    with pytest.raises(OSError, match="no luck"):
        rest(broken)
