"""Suffix decoding, its store, and predictions: how a text that is mostly known is decoded."""

from __future__ import annotations

import random
from itertools import chain

import numpy as np
import pytest
from written_text import sequence_of, write

from foredraft.drafters import suffix as suffix_module
from foredraft.drafters.prediction import PredictionDrafter
from foredraft.drafters.suffix import SuffixDrafter
from foredraft.drafters.suffix_index import Chains
from foredraft.drafters.suffix_store import LAST_POSITION, SECOND_CHANCES, SuffixStore
from foredraft.drafters.trail import Trail
from foredraft.engine.engine import Engine
from foredraft.errors import CapacityError, ConfigError
from foredraft.testing import Ask, decode, decode_plainly, difference, mixed_asks, random_target
from foredraft.types import FinishReason

TARGET = random_target()
PHRASE = list(range(100, 140))


def suffix(**config: object) -> SuffixDrafter:
    drafter = SuffixDrafter(**config)  # type: ignore[arg-type]
    drafter.bind(TARGET)
    return drafter


def prediction(**config: object) -> PredictionDrafter:
    drafter = PredictionDrafter(**config)  # type: ignore[arg-type]
    drafter.bind(TARGET)
    return drafter


def drafted(
    drafter: SuffixDrafter, prompt: list[int], budget: int = 16, cache_salt: str = ""
) -> tuple[list[int], list[int]]:
    sequence = sequence_of(prompt, cache_salt=cache_salt)
    drafter.begin(sequence)
    tree = drafter.propose([sequence], [budget])
    drafter.end(sequence)
    return tree.tokens[0].tolist(), tree.parents[0].tolist()


def test_a_copy_takes_few_steps() -> None:
    assert len(write(suffix(), [*PHRASE, 1], PHRASE, budget=32)) <= 6


def test_a_path_has_no_branches() -> None:
    prompt = [1, 2, 50, 1, 2, 60, 1, 2, 50, 1, 2]
    assert drafted(suffix(suffix_decoding_use_tree_spec=False), prompt)[1][:2] == [-1, 0]
    tokens, parents = drafted(
        suffix(suffix_decoding_min_token_prob=0.01, suffix_decoding_max_spec_factor=20.0), prompt, 60
    )
    assert {token for token, parent in zip(tokens, parents, strict=True) if parent < 0} == {50, 60}


def test_nodes_are_limited_by_the_match() -> None:
    prompt = [*PHRASE, 1, *PHRASE[:3]]
    assert len(drafted(suffix(suffix_decoding_max_spec_factor=1.0), prompt)[0]) == 3
    assert len(drafted(suffix(suffix_decoding_max_spec_factor=2.0), prompt)[0]) == 6


def test_paths_are_limited_by_the_depth() -> None:
    prompt = [*PHRASE, 1, *PHRASE[:20]]
    assert len(drafted(suffix(suffix_decoding_max_tree_depth=5), prompt)[0]) == 5


def test_new_text_costs_nothing() -> None:
    assert drafted(suffix(), list(range(50)))[0] == []


def test_outputs_are_kept_only_on_request() -> None:
    without, keeping = suffix(), suffix(suffix_decoding_max_cached_requests=10)
    for drafter in (without, keeping):
        sequence = sequence_of([1, 2, 3])
        drafter.begin(sequence)
        sequence.tokens += PHRASE
        sequence.finish_reason = FinishReason.STOP
        drafter.end(sequence)
    assert drafted(without, [9, *PHRASE[:4]])[0] == []
    assert drafted(keeping, [9, *PHRASE[:4]])[0] == PHRASE[4:20]


def test_unfinished_outputs_are_not_kept() -> None:
    drafter = suffix(suffix_decoding_max_cached_requests=10)
    sequence = sequence_of([1, 2, 3])
    drafter.begin(sequence)
    sequence.tokens += PHRASE
    drafter.end(sequence)
    assert drafted(drafter, [9, *PHRASE[:4]])[0] == []


def test_a_stored_answer_serves_only_requests_of_the_same_salt() -> None:
    drafter = suffix(suffix_decoding_max_cached_requests=10)
    sequence = sequence_of([1, 2, 3], cache_salt="mine")
    drafter.begin(sequence)
    sequence.tokens += PHRASE
    sequence.finish_reason = FinishReason.STOP
    drafter.end(sequence)
    tail = [9, *PHRASE[:4]]
    assert drafted(drafter, tail, cache_salt="mine")[0] == PHRASE[4:20]
    assert drafted(drafter, tail, cache_salt="other")[0] == drafted(drafter, tail)[0] == []


def test_a_store_can_be_shared_within_a_namespace() -> None:
    store = SuffixStore(1 << 20)
    store.add(PHRASE, "a")
    tail = [9, *PHRASE[:4]]
    assert drafted(suffix(store=store, suffix_decoding_namespace="a"), tail)[0] == PHRASE[4:20]
    assert drafted(suffix(store=store, suffix_decoding_namespace="b"), tail)[0] == []


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_shared_store_changes_no_answer_under_load(temperature: float) -> None:
    """Sixteen sequences at a time on two engines in turn, some of them aborted, drafting from one store."""
    target = random_target(slots=16)
    asks = [
        Ask(f"{copy} {ask.name}", ask.prompt, ask.params)
        for copy in range(4)
        for ask in mixed_asks(target.vocab_size, temperature, max_tokens=12)
    ]
    plain = decode_plainly(lambda: random_target(slots=16), asks)
    store = SuffixStore(1 << 20)
    source = random.Random(3)
    for _ in range(2):
        engine = Engine(random_target(slots=16), SuffixDrafter(store=store), num_speculative_tokens=8)
        aborts = {step: source.choice(asks).name for step in range(2, 20, 3)}
        for answer, reference in zip(decode(engine, asks, aborts=aborts), plain, strict=True):
            assert difference(answer, reference) is None
        engine.check_integrity()
    assert store.requests


def test_a_prediction_is_drafted_from_the_first_token() -> None:
    drafter = prediction()
    sequence = sequence_of([1, 2], prediction=PHRASE)
    drafter.begin(sequence)
    assert drafter.propose([sequence], [4]).tokens[0].tolist()[:1] == PHRASE[:1]


EDITS = {
    "nothing changed": PHRASE,
    "inserted": [*PHRASE[:15], 900, 901, *PHRASE[15:]],
    "replaced": [*PHRASE[:15], 900, 901, *PHRASE[17:]],
    "deleted": PHRASE[:15] + PHRASE[18:],
    "moved": PHRASE[20:] + PHRASE[:20],
    "preceded": [900, 901, 902, *PHRASE],
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_prediction_is_found_again(edit: str) -> None:
    """The text is nowhere else, so every token drafted comes from the prediction."""
    answer = EDITS[edit]
    emitted = write(prediction(), [1, 2], answer, budget=16, prediction=PHRASE)
    assert len(emitted) <= 16 < len(answer)
    assert len(write(suffix(), [1, 2], answer, budget=16)) == len(answer)


def test_among_many_similar_records_the_next_one_follows() -> None:
    """Each record has the same form and its own value; only the order tells which value comes next."""
    records = [[1, 2, 3, 500 + 2 * number, 501 + 2 * number, 4] for number in range(30)]
    renamed = [[1, 9, 3, *record[3:]] for record in records]
    source, answer = list(chain.from_iterable(records)), list(chain.from_iterable(renamed))
    with_order = write(prediction(), [7], answer, budget=16, prediction=source)
    # a step for the renamed token of each record, one to notice, and a few to learn
    assert len(with_order) < 3 * len(records)


def test_a_prediction_that_the_prompt_quotes_is_not_searched_twice() -> None:
    drafter = prediction()
    sequence = sequence_of([7, 8, *PHRASE, 9], prediction=PHRASE)
    drafter.begin(sequence)
    tree = drafter.propose([sequence], [3])
    assert tree.tokens[0].tolist()[:1] == PHRASE[:1]


def test_without_a_prediction_it_is_suffix_decoding() -> None:
    prompt = [*PHRASE, 1, *PHRASE[:5]]
    assert drafted(prediction(), prompt) == drafted(suffix(), prompt)


def test_a_trail_without_a_beginning_says_nothing() -> None:
    trail = Trail()
    trail.follow(np.array([1, 2, 3]))
    assert trail.ranked() == []


@pytest.mark.parametrize(
    "config",
    [
        {"suffix_decoding_max_tree_depth": 0},
        {"suffix_decoding_max_spec_factor": 0.0},
        {"suffix_decoding_min_token_prob": 0.0},
        {"suffix_decoding_max_tree_depth": 10**9},
        {"suffix_decoding_max_spec_factor": float("inf")},
        {"suffix_decoding_max_cached_requests": -1},
        {"suffix_decoding_max_cached_bytes": -1},  # without requests, which wouldn't use it
        {"suffix_decoding_max_cached_requests": 100, "suffix_decoding_max_cached_bytes": 99999999999999},
    ],
)
def test_values_that_make_no_sense_are_refused(config: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="give"):
        SuffixDrafter(**config)  # type: ignore[arg-type]


def test_the_bounds_of_a_store_are_those_of_its_numbers() -> None:
    assert suffix_module.LEAST_BYTES == 1024 * Chains.BYTES
    capacity = 1 << (suffix_module.MOST_BYTES // Chains.BYTES).bit_length() >> 1
    assert LAST_POSITION - SECOND_CHANCES * (capacity // 4 + 1) - capacity > capacity


def test_a_store_that_does_not_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("foredraft.drafters.suffix_index.np.zeros", full)
    with pytest.raises(CapacityError, match="lower suffix_decoding_max_cached_bytes"):
        SuffixStore()
