"""Lookahead decoding: the window's trajectories, the pool, and what they lead to."""

from __future__ import annotations

import pytest
from written_text import sequence_of, step

from foredraft.drafters.lookahead import LookaheadDrafter
from foredraft.errors import ConfigError
from foredraft.types import Sequence


def counting(tokens: list[int]) -> int:
    """A target whose next token depends on the last one only: Jacobi iteration converges at once."""
    return (tokens[-1] + 1) % 50


def begun(drafter: LookaheadDrafter, prompt: list[int]) -> Sequence:
    sequence = sequence_of(prompt)
    drafter.begin(sequence)
    return sequence


def test_row_zero_is_a_chain_and_columns_hang_below_it() -> None:
    drafter = LookaheadDrafter(lookahead_window=3, lookahead_ngram=3, lookahead_pool_from_prompt=False)
    sequence = begun(drafter, [10, 20, 30, 40])
    step(drafter, [sequence], counting, 16)
    rows = drafter._states[sequence.id].rows
    assert len(rows) == 2
    tree = drafter.propose([sequence], [16])
    tokens, parents = tree.tokens[0].tolist(), tree.parents[0].tolist()
    assert tokens[0] == rows[0][0]
    assert parents[0] == -1
    for column in range(3):
        node = -1
        for token in [*rows[0][: column + 1], rows[1][column]]:
            node = next(child for child, parent in enumerate(parents) if parent == node and tokens[child] == token)


def test_the_new_bottom_row_is_what_the_target_picks_below_the_columns() -> None:
    drafter = LookaheadDrafter(lookahead_window=4, lookahead_ngram=4, lookahead_pool_from_prompt=False)
    sequence = begun(drafter, [10, 20, 30, 40])
    top = list(drafter._states[sequence.id].rows[0])
    _, emitted = step(drafter, [sequence], counting, 16)
    rows = drafter._states[sequence.id].rows
    kept = 4 - emitted[0]
    assert rows[0][:kept] == top[emitted[0] :]
    assert rows[1][:kept] == [(token + 1) % 50 for token in top[emitted[0] :]]


def test_trajectories_fill_the_pool_and_are_accepted_later() -> None:
    drafter = LookaheadDrafter(lookahead_window=5, lookahead_ngram=4, lookahead_pool_from_prompt=False)
    sequence = begun(drafter, [3, 17, 29])
    emitted = [step(drafter, [sequence], counting, 32)[1][0] for _ in range(60)]
    assert sequence.tokens[3:] == [(30 + place) % 50 for place in range(len(sequence.tokens) - 3)]
    assert sum(emitted[:3]) <= 6
    assert max(emitted[20:]) >= 4  # a whole n-gram and the bonus


def test_the_window_moves_with_the_text() -> None:
    """With a full window, the column for a place stays over that place when several tokens are accepted at once."""
    drafter = LookaheadDrafter(lookahead_window=6, lookahead_ngram=3, lookahead_pool_from_prompt=False)
    sequence = begun(drafter, [1])
    for _ in range(40):
        step(drafter, [sequence], counting, 32)
    rows = drafter._states[sequence.id].rows
    assert all(len(row) == 6 for row in rows)
    assert rows[1][0] == (rows[0][0] + 1) % 50  # below each token stands what follows it


def test_the_prompt_seeds_the_pool() -> None:
    drafter = LookaheadDrafter(lookahead_window=2, lookahead_ngram=4)
    sequence = begun(drafter, [5, 6, 7, 8, 1, 5])
    tree = drafter.propose([sequence], [12])
    assert tree.tokens[0].tolist()[:3] == [6, 7, 8]


def test_the_latest_ngrams_are_kept() -> None:
    drafter = LookaheadDrafter(lookahead_window=1, lookahead_ngram=2, lookahead_guesses=2)
    sequence = begun(drafter, [1, 10, 1, 20, 1, 30, 1])
    tree = drafter.propose([sequence], [8])
    below_root = [
        token for token, parent in zip(tree.tokens[0].tolist(), tree.parents[0].tolist(), strict=True) if parent < 0
    ]
    assert below_root[:2] == [30, 20]


@pytest.mark.parametrize("budget", range(1, 12))
def test_small_budgets_are_kept(budget: int) -> None:
    drafter = LookaheadDrafter()
    sequence = begun(drafter, [1, 2, 3, 1, 2, 3, 1])
    for _ in range(10):
        tree, _ = step(drafter, [sequence], counting, budget)
        assert tree.width <= budget


def test_plain_steps_move_the_window() -> None:
    drafter = LookaheadDrafter(lookahead_window=4, lookahead_ngram=2, lookahead_pool_from_prompt=False)
    sequence = begun(drafter, [11, 13])
    top = list(drafter._states[sequence.id].rows[0])
    step(drafter, [sequence], counting, 0)
    assert drafter._states[sequence.id].rows[0][:3] == top[1:]


@pytest.mark.parametrize("config", [{"lookahead_window": 0}, {"lookahead_ngram": 1}, {"lookahead_guesses": 0}])
def test_sizes_that_make_no_sense_are_refused(config: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="give at least"):
        LookaheadDrafter(**config)


@pytest.mark.parametrize(
    ("config", "most"),
    [
        ({"lookahead_window": 100_000}, "100000; give at most 170"),
        ({"lookahead_window": 513, "lookahead_ngram": 2}, "513; give at most 512"),
        ({"lookahead_guesses": 171}, "171; give at most 170"),
        ({"lookahead_ngram": 514}, "514; give a number from 2 to 513"),
    ],
)
def test_a_window_takes_no_more_than_a_step_can(config: dict[str, int], most: str) -> None:
    with pytest.raises(ConfigError, match=most):
        LookaheadDrafter(**config)
    LookaheadDrafter(lookahead_window=170)
