"""What is taken to be true of a request before it has shown anything."""

from __future__ import annotations

import pytest

from foredraft.drafters.averages import OwnMean


def test_until_the_first_gain_the_usual_one_of_the_moment_counts() -> None:
    own = OwnMean(weight=0.1)
    own.add(0.0, usual=5.0)
    assert own.given(5.0) == pytest.approx(4.5)
    assert own.given(1.0) == pytest.approx(0.9)
    own.add(3.0, usual=1.0)
    assert own.given(1.0) == own.given(100.0) == pytest.approx(0.9 + 0.1 * (3.0 - 0.9))
    own.add(0.0, usual=100.0)
    assert own.given(100.0) == pytest.approx(0.9 * (0.9 + 0.1 * (3.0 - 0.9)))
