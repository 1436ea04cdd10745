"""Prompt lookup: which occurrence is followed, how far, and that a draft costs the same in a long text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_text import VOCAB, script, sequence_of, step, write

from foredraft.drafters.ngram import NgramDrafter
from foredraft.errors import ConfigError


def first_tree(drafter: NgramDrafter, prompt: list[int], budget: int = 8) -> tuple[list[int], list[int]]:
    sequence = sequence_of(prompt)
    drafter.begin(sequence)
    tree = drafter.propose([sequence], [budget])
    return tree.tokens[0].tolist(), tree.parents[0].tolist()


def test_the_most_recent_of_equal_matches_is_followed() -> None:
    drafter = NgramDrafter(prompt_lookup_min=2, prompt_lookup_branches=1)
    assert first_tree(drafter, [7, 1, 2, 30, 8, 1, 2, 40, 9, 1, 2], budget=1)[0] == [40]


def test_a_longer_match_is_preferred_to_a_more_recent_one() -> None:
    drafter = NgramDrafter(prompt_lookup_min=1, prompt_lookup_branches=1)
    assert first_tree(drafter, [5, 1, 2, 30, 8, 9, 2, 40, 5, 1, 2], budget=1)[0] == [30]


def test_beyond_the_longest_ngram_the_most_recent_match_counts() -> None:
    drafter = NgramDrafter(prompt_lookup_min=1, prompt_lookup_max=1, prompt_lookup_branches=1)
    assert first_tree(drafter, [5, 1, 2, 30, 8, 9, 2, 40, 5, 1, 2], budget=1)[0] == [40]


def test_nothing_is_drafted_without_a_match_of_the_shortest_length() -> None:
    drafter = NgramDrafter(prompt_lookup_min=3)
    assert first_tree(drafter, [1, 2, 30, 9, 1, 2])[0] == []


def test_long_drafts_come_from_long_matches_only() -> None:
    phrase = list(range(100, 130))
    short = first_tree(NgramDrafter(), [*phrase, 1, phrase[0]], budget=16)[0]
    long = first_tree(NgramDrafter(), [*phrase, 1, *phrase[:12]], budget=16)[0]
    assert len(short) < 4 < len(long)
    assert long == phrase[12:28]


def test_other_continuations_become_branches() -> None:
    drafter = NgramDrafter(num_speculative_tokens=100, prompt_lookup_min_token_prob=0.01)
    tokens, parents = first_tree(drafter, [1, 2, 3, 50, 9, 1, 2, 3, 60, 9, 1, 2, 3, 70, 9, 1, 2, 3], budget=100)
    assert {token for token, parent in zip(tokens, parents, strict=True) if parent == -1} == {50, 60, 70}
    assert tokens[0] == 70


def test_a_repetition_is_carried_on_past_the_end_of_the_text() -> None:
    tokens, _ = first_tree(NgramDrafter(prompt_lookup_branches=1), [4, 5] * 12, budget=7)
    assert tokens == [4, 5, 4, 5, 4, 5, 4]


def test_what_never_comes_true_is_drafted_less_and_less() -> None:
    drafter = NgramDrafter(prompt_lookup_branches=1, prompt_lookup_max=2, prompt_lookup_min=2)
    sizes = []
    for round in range(60):
        prompt = [1, 2, 3, 4, 5, 10 + round, 1, 2]
        sequence = sequence_of(prompt)
        drafter.begin(sequence)
        tree, _ = step(drafter, [sequence], script(prompt, [900]), 4)
        sizes.append(tree.width)
        drafter.end(sequence)
    assert sizes[0] > 0
    assert sizes[-1] == 0


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 3))
def test_the_first_draft_token_followed_the_longest_match(text: list[int], shortest: int) -> None:
    drafter = NgramDrafter(prompt_lookup_min=shortest, prompt_lookup_branches=1, prompt_lookup_min_token_prob=1e-9)
    tokens, _ = first_tree(drafter, text, budget=1)
    lengths = {end: min(matched(text, end), 16) for end in range(1, len(text))}
    known = [end for end, length in lengths.items() if length >= shortest]
    if not known:
        assert tokens == []
        return
    recent = known[-8:] + [end for end in known if lengths[end] >= 6][-8:]  # as many as are looked at
    longest = max(lengths[end] for end in recent)
    assert tokens == [text[max(end for end in recent if lengths[end] == longest)]]


def matched(text: list[int], end: int) -> int:
    """How many tokens before `end` are also the last ones of the text."""
    length = 0
    while length < end and text[end - 1 - length] == text[-1 - length]:
        length += 1
    return length


def test_a_copy_is_decoded_in_few_steps() -> None:
    phrase = list(range(200, 260))
    emitted = write(NgramDrafter(), [*phrase, 1], phrase, budget=16)
    assert len(emitted) < 12


@pytest.mark.parametrize(
    "config",
    [{"prompt_lookup_min": 0}, {"prompt_lookup_min": 6, "prompt_lookup_max": 5}, {"prompt_lookup_branches": 0}],
)
def test_limits_that_make_no_sense_are_refused(config: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="give"):
        NgramDrafter(**config)


def test_tokens_stay_below_the_vocabulary() -> None:
    assert max(first_tree(NgramDrafter(), [VOCAB - 1, 3] * 5)[0]) < VOCAB
