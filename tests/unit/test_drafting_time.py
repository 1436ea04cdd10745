"""What drafting takes, by depth: fixed and per level are told apart by drafts of different depth."""

from __future__ import annotations

import pytest

from foredraft.engine.drafting_time import DraftingTime


def test_nothing_is_known_before_the_first_draft() -> None:
    time = DraftingTime()
    assert (time.deepest, time.per_level, time.up_to(3)) == (0, 0.0, [0.0, 0.0, 0.0])


@pytest.mark.parametrize(("fixed", "per_level"), [(2.0, 0.0), (1.0, 0.25), (0.0, 1.5)])
def test_two_depths_tell_both_parts(fixed: float, per_level: float) -> None:
    time = DraftingTime()
    for levels in (4, 4, 2, 1, 4):
        time.observe(levels, fixed + per_level * levels)
    assert time.deepest == 4
    assert time.per_level == pytest.approx(per_level)
    assert time.up_to(3)[-1] == pytest.approx(fixed + 3 * per_level)
    assert time.up_to(0) == []


def test_one_depth_counts_as_levels_alone() -> None:
    time = DraftingTime()
    time.observe(4, 2.0)
    assert time.per_level == 0.5
    assert time.up_to(4)[-1] == 2.0
    assert time.up_to(2)[-1] == 1.0


def test_slower_drafting_is_learnt_at_all_depths() -> None:
    time = DraftingTime()
    for levels in (1, 4):
        time.observe(levels, 1.0 + levels)
    for _ in range(100):
        time.observe(4, 10.0)
    assert time.up_to(4)[-1] == pytest.approx(10.0, rel=0.01)
    assert time.up_to(1)[-1] == pytest.approx(4.0, rel=0.01)


def test_a_single_hiccup_hardly_counts() -> None:
    time = DraftingTime()
    for _ in range(3):
        time.observe(3, 1.0)
    time.observe(3, 1000.0)
    assert time.up_to(3)[-1] < 1.5
