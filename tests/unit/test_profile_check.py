"""A profile that was measured while the machine was busy is noticed at the next start."""

from __future__ import annotations

from pathlib import Path

import pytest
from models import tiny_target

from foredraft.economics import MeasuredPasses, PassPoint
from foredraft.engine import profiler, speculation
from foredraft.engine.profiler import load_profile, profile_path, save_profile, still_holds
from foredraft.target.decoder import Decoder
from foredraft.target.flat_pass import FlatPass
from foredraft.target.kv_cache import KVCache

BUSY = {1: 27.0, 2: 50.0, 4: 73.0, 8: 116.0, 16: 202.0}
QUIET = {1: 7.0, 2: 9.5, 4: 12.0, 8: 19.5, 16: 32.0}


def table_of(times: dict[int, float]) -> MeasuredPasses:
    return MeasuredPasses(tuple(PassPoint(rows, 64, 1, milliseconds) for rows, milliseconds in times.items()))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[dict[int, float]]:
    """The times of the machine's passes; what is in the list may be changed."""
    now = [QUIET]

    def timed(decoder: Decoder, flat: FlatPass, cache: KVCache) -> float:
        return now[0].get(flat.rows, 40.0)

    monkeypatch.setattr(profiler, "_timed", timed)
    return now


@pytest.mark.parametrize(
    ("known", "now", "holds"),
    [
        (QUIET, QUIET, True),
        (QUIET, {rows: 1.8 * milliseconds for rows, milliseconds in QUIET.items()}, True),  # as slow for one row
        (BUSY, QUIET, False),
        (QUIET, BUSY, False),
        (BUSY, {rows: 100 * milliseconds for rows, milliseconds in QUIET.items()}, True),  # too slow to check
    ],
)
def test_what_more_rows_cost_is_compared(
    known: dict[int, float], now: dict[int, float], holds: bool, machine: list[dict[int, float]]
) -> None:
    machine[0] = now
    assert still_holds(table_of(known), tiny_target().decoder, max_length=256) is holds


def test_a_profile_that_no_longer_holds_is_measured_again(
    machine: list[dict[int, float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path))
    target = tiny_target()
    target.fingerprint = "known"
    path = profile_path("known", target.decoder)
    save_profile(path, [PassPoint(rows, 64, 1, milliseconds) for rows, milliseconds in BUSY.items()], "this one")
    assert speculation.open_costs(target)(4, 64, 1) == 12.0
    again = load_profile(path)
    assert again is not None
    assert again(8, 64, 1) == 19.5
    monkeypatch.setattr(speculation, "measure_passes", None)  # it holds now
    assert speculation.open_costs(target)(8, 64, 1) == 19.5


def test_measuring_warms_up_and_smooths_what_was_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pass on a new cache is slow, and one of few rows may meet another program."""
    seen: list[tuple[int, int]] = []

    def timed(decoder: Decoder, flat: FlatPass, cache: KVCache) -> float:
        first = (flat.rows, len(flat.segments)) not in seen
        seen.append((flat.rows, len(flat.segments)))
        disturbed = 50.0 if flat.rows == 24 else 0.0
        return 10.0 + flat.rows + disturbed + (100.0 if first and flat.rows in (64, len(flat.segments)) else 0.0)

    monkeypatch.setattr(profiler, "_timed", timed)
    points = profiler.measure_passes(tiny_target().decoder, max_length=256, seconds=0.0)
    assert {point.batch for point in points} == {1}  # no time is left for more
    times = {point.rows: point.milliseconds for point in points}
    assert times == {rows: 42.0 if rows == 24 else 10.0 + rows for rows in times}
    points = profiler.measure_passes(tiny_target().decoder, max_length=256, seconds=60.0)
    assert {point.batch for point in points} == {1, 4, 16}
