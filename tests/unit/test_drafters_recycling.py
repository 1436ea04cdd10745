"""Token Recycling: what is learned from accepted and rejected drafts, and how the tree is grown."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from written_text import VOCAB, script, sequence_of, step, write

from foredraft.drafters.recycling import RecyclingDrafter
from foredraft.errors import ConfigError
from foredraft.target.target import Target
from foredraft.tree import TokenTree


def recycling(vocab_size: int = VOCAB, **config: object) -> RecyclingDrafter:
    drafter = RecyclingDrafter(**config)  # type: ignore[arg-type]
    drafter.bind(cast(Target, SimpleNamespace(vocab_size=vocab_size)))
    return drafter


def test_both_tables_stay_below_two_megabytes() -> None:
    assert recycling(vocab_size=49152, recycling_candidates=8).nbytes < 2_000_000


def test_the_prompt_is_read() -> None:
    drafter = recycling(recycling_min_token_prob=0.01)
    sequence = sequence_of([1, 2, 3, 1])
    drafter.begin(sequence)
    assert drafter.propose([sequence], [2]).tokens[0].tolist() == [2, 3]


def test_what_the_target_said_below_a_rejected_draft_is_used_later() -> None:
    drafter = recycling(recycling_from_prompt=False)
    follow = script([1, 2], [10, 11, 12])
    sequence = sequence_of([1, 2])
    drafter.begin(sequence)
    wrong = TokenTree.from_nodes([([77], [-1])])  # the target follows 77 by VOCAB - 1, off the script
    step(drafter, [sequence], follow, 4, tree=wrong)
    other = sequence_of([5, 77])
    drafter.begin(other)
    assert drafter.propose([other], [1]).tokens[0].tolist() == [VOCAB - 1]


def test_a_pair_of_tokens_knows_better_than_a_token() -> None:
    drafter = recycling()
    for before, after in ((1, 50), (2, 60), (1, 50), (2, 60)):
        sequence = sequence_of([before, 9])
        drafter.begin(sequence)
        step(drafter, [sequence], script([before, 9], [after, 3]), 0)
    for before, after in ((1, 50), (2, 60)):
        sequence = sequence_of([before, 9])
        drafter.begin(sequence)
        assert drafter.propose([sequence], [1]).tokens[0].tolist() == [after]


def test_nodes_come_best_first() -> None:
    drafter = recycling(recycling_min_token_prob=0.001)
    text = [3, 4, 5, 6, 7, 8] * 4
    write(drafter, [1], text, budget=12)
    sequence = sequence_of([1, *text])
    drafter.begin(sequence)
    tree = drafter.propose([sequence], [20])
    assert tree.scores is not None
    scores = tree.scores[0].tolist()
    assert tree.width == 20
    assert scores == sorted(scores, reverse=True)
    assert len(set(tree.parents[0].tolist())) > 3


def test_a_text_seen_before_is_decoded_in_fewer_steps() -> None:
    drafter = recycling()
    text = list(range(100, 160))
    first = write(drafter, [1], text, budget=8)
    second = write(drafter, [1], text, budget=8)
    assert len(first) == len(text)
    assert len(second) < len(text) / 2


def test_a_vocabulary_smaller_than_the_candidates_works() -> None:
    drafter = recycling(vocab_size=4, recycling_candidates=4)
    sequence = sequence_of([1, 2, 3, 1])
    drafter.begin(sequence)
    assert max(drafter.propose([sequence], [8]).tokens[0].tolist()) < 4


@pytest.mark.parametrize(
    "config", [{"recycling_candidates": 0}, {"recycling_pair_bits": 40}, {"recycling_min_token_prob": 2.0}]
)
def test_values_that_make_no_sense_are_refused(config: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="give"):
        RecyclingDrafter(**config)  # type: ignore[arg-type]
