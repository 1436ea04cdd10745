"""Running estimates: what they come to, and what a single odd value does to them."""

from __future__ import annotations

import pytest

from foredraft.drafters.averages import LowEstimate, OwnMean, Rate, RunningMean, Slope


def test_a_running_mean_is_the_mean_of_few_values() -> None:
    mean = RunningMean()
    for value in (1.0, 2.0, 6.0):
        mean.add(value)
    assert mean.value == pytest.approx(3.0)


def test_a_running_mean_follows_in_the_end() -> None:
    mean = RunningMean(weight=0.1)
    for value in [0.0] * 100 + [1.0] * 60:
        mean.add(value)
    assert 0.99 < mean.value < 1


def test_a_first_guess_counts_as_so_many_values() -> None:
    mean = RunningMean(1.0, 3)
    mean.add(5.0)
    assert mean.value == pytest.approx(2.0)


def test_a_low_estimate_falls_at_once_and_hardly_rises() -> None:
    low = LowEstimate()
    for value in [10.0] + [1.0] * 10:
        low.add(value)
    assert 1 < low.value < 1.3
    low.add(100.0)
    assert low.value < 4


def test_a_rate_is_all_amounts_over_all_units() -> None:
    rate = Rate()
    assert rate.value == 0.0
    rate.add(3.0, 10)
    rate.add(0.0, 20)
    assert rate.value == pytest.approx(0.1)


def test_a_slope_is_that_of_the_line_behind_the_pairs() -> None:
    slope = Slope()
    assert slope.value == 0.0
    slope.add(1, 5.0)
    slope.add(1, 5.0)
    assert slope.value == 0.0
    for turn in range(200):
        x = turn % 7
        slope.add(x, 5 + 0.3 * x)
    assert slope.value == pytest.approx(0.3, rel=0.05)


def test_the_usual_value_of_the_moment_makes_up_for_what_is_not_known() -> None:
    own = OwnMean(weight=0.1)
    assert own.given(5.0) == 5.0
    own.add(0.0)
    assert own.given(5.0) == pytest.approx(4.5)
    assert own.given(1.0) == pytest.approx(0.9)
    own.add(3.0)
    assert own.given(1.0) == pytest.approx(0.3 + 0.81)
    for _ in range(200):
        own.add(3.0)
    assert own.given(1.0) == pytest.approx(own.given(100.0)) == pytest.approx(3.0)
