"""Drafters are asked where it pays, and now and then elsewhere."""

from __future__ import annotations

from foredraft.engine.asking import LONGEST_PAUSE, Asking, AskingTime


def ask(asking: Asking, steps: int, saved: float, *, draft_ms: float = 0.5, token_ms: float = 5.0) -> int:
    """How many of the steps asked for sequence 7, each draft of which saves `saved` milliseconds."""
    asked = 0
    for _ in range(steps):
        chosen = asking.choose([7], token_ms)
        asked += 7 in chosen
        asking.observe({7: saved}, draft_ms if chosen else 0.0)
    return asked


def test_what_pays_is_always_asked() -> None:
    assert ask(Asking(0.01), 100, saved=2.0) == 100


def test_what_does_not_pay_is_asked_as_seldom_as_the_share_allows() -> None:
    asked = ask(Asking(0.01), 400, saved=0.0)
    assert 400 / 16 <= asked <= 400 / 10 + 10  # 0.5 ms of 5 is ten times the share
    assert ask(Asking(0.01), 400, saved=0.0, draft_ms=0.01) == 400  # costs nothing to speak of
    assert ask(Asking(0.2), 400, saved=0.0) == 400


def test_it_notices_when_drafts_begin_to_pay_and_when_they_stop() -> None:
    asking = Asking(0.01)
    ask(asking, 200, saved=0.0)
    assert ask(asking, 60, saved=10.0) >= 60 - 16
    assert ask(asking, 400, saved=-1.0) < 60


def test_sequences_are_judged_apart() -> None:
    asking = Asking(0.01)
    for _ in range(100):
        chosen = asking.choose([1, 2], 5.0)
        asking.observe({1: 5.0, 2: 0.0}, 0.5 * len(chosen))
    counts = {1: 0, 2: 0}
    for _ in range(64):
        for sequence_id in asking.choose([1, 2], 5.0):
            counts[sequence_id] += 1
        asking.observe({1: 5.0, 2: 0.0}, 0.5)
    assert counts[1] == 64
    assert counts[2] <= 16


def test_a_forgotten_sequence_starts_afresh() -> None:
    asking = Asking(0.01)
    ask(asking, 100, saved=0.0)
    asking.forget(7)
    assert asking.choose([7], 5.0) == {7}


def test_first_drafts_that_fail_do_not_end_it_where_drafting_pays() -> None:
    asking = Asking(0.01)
    outcomes = ([0.0] * 3 + [5.0] + [0.0] * 2 + [5.0]) * 20  # 1.4 ms on average, for 0.5
    asked = 0
    for saved in outcomes:
        chosen = asking.choose([7], 5.0)
        asked += len(chosen)
        asking.observe({7: saved}, 0.5 * len(chosen))
    assert asked == len(outcomes)


def test_new_sequences_start_from_what_is_usual() -> None:
    asking = Asking(0.01)
    for sequence_id in range(20):
        for _ in range(30):
            chosen = asking.choose([sequence_id], 5.0)
            asking.observe({sequence_id: 0.0}, 0.5 * len(chosen))
        asking.forget(sequence_id)
    asked = 0
    for _ in range(30):
        chosen = asking.choose([99], 5.0)
        asked += len(chosen)
        asking.observe({99: 0.0}, 0.5 * len(chosen))
    assert asked <= 4  # once, and then as seldom as what never pays


def test_many_requests_find_out_at_once_that_nothing_pays_any_more() -> None:
    """Alone, drafts saved 5 ms of a request's time for 0.1; then sixteen come at a time, and save nothing."""
    asking = Asking(share=0.005)
    for _ in range(300):
        asking.choose([0], token_ms=8.0)
        asking.observe({0: 5.0}, draft_ms=0.1)
    crowd = list(range(1, 17))
    asked = 0
    for _ in range(64):
        chosen = asking.choose(crowd, token_ms=2.5)
        asked += len(chosen)
        asking.observe(dict.fromkeys(crowd, 0.0), draft_ms=0.1 * len(chosen))
    assert asked < 0.4 * 64 * len(crowd)


def test_a_request_that_gains_is_asked_among_others_that_do_not() -> None:
    asking = Asking(share=0.005)
    asked = 0
    for _ in range(200):
        chosen = asking.choose(list(range(16)), token_ms=2.5)
        asked += 3 in chosen
        saved = dict.fromkeys(range(16), 0.0)
        saved[3] = 2.0 if 3 in chosen else 0.0
        asking.observe(saved, draft_ms=0.1 * len(chosen))
    assert asked > 180


def test_time_of_asking_is_told_apart_by_how_many_were_asked() -> None:
    time = AskingTime()
    for turn in range(400):
        asked = (1, 16, 4, 2)[turn % 4]
        time.observe(asked, 0.5 + 0.05 * asked)
    assert abs(time.fixed - 0.5) < 0.05
    assert abs(time.each - 0.05) < 0.01
    time.observe(16, 12.0)  # a first draft reads the prompts
    assert time(16) < 1.3 + 0.2 * (12 - 1.3)


def test_one_of_many_is_asked_only_if_it_earns_what_asking_takes_at_all() -> None:
    for saved, wanted in ((0.4, False), (0.9, True)):
        asking = Asking(share=0.005)
        alone = 0
        for _ in range(300):
            chosen = asking.choose(list(range(16)), token_ms=0.6)
            alone += chosen == {3}
            asking.observe({number: saved if number == 3 else 0.0 for number in range(16)}, 0.5 + 0.05 * len(chosen))
        assert (alone > 150) == wanted


def test_those_that_rest_are_tried_together() -> None:
    asking = Asking(share=0.005)
    sizes = []
    for step in range(400):
        crowd = [number for number in range(16) if step >= 5 * number]  # they come one after another
        chosen = asking.choose(crowd, token_ms=0.6)
        sizes.append(len(chosen))
        asking.observe(dict.fromkeys(crowd, 0.0), 0.5 + 0.05 * len(chosen))
    later = [size for size in sizes[100:] if size]
    assert set(later) == {16}
    assert len(later) <= 300 / LONGEST_PAUSE * 1.2


def test_a_crowd_at_the_start_finds_out_within_a_few_steps() -> None:
    asking = Asking(share=0.005)
    asked = 0
    for _ in range(60):
        chosen = asking.choose(list(range(16)), token_ms=0.6)
        asked += bool(chosen)
        asking.observe(dict.fromkeys(range(16), 0.05), 4.0 if chosen else 0.0)
    assert asked <= 8
