"""Medusa: the tree that accuracies call for, and heads that are asked about the right position."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from tiny_heads import cycle, head_folder, medusa_heads, reciting_heads, shallow_target
from written_text import sequence_of

from foredraft.drafters.guesses import Guesses
from foredraft.drafters.medusa import MedusaDrafter
from foredraft.drafters.medusa_tree import best_places
from foredraft.drafters.methods import build_drafter
from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError, LoadError
from foredraft.testing import CapriciousController, random_target
from foredraft.types import SamplingParams

TREE = {"depth": 3, "top_k": 3, "nodes": 12}


def paths_by_worth(accuracies: list[list[float]]) -> list[float]:
    """The worth of every possible node, best first, by listing them all."""
    worth = []
    for depth in range(1, len(accuracies) + 1):
        for ranks in itertools.product(range(len(accuracies[0])), repeat=depth):
            product = 1.0
            for head, rank in enumerate(ranks):
                product *= accuracies[head][rank]
            worth.append(product)
    return sorted(worth, reverse=True)


@pytest.mark.parametrize("seed", range(5))
def test_no_tree_of_that_size_is_expected_to_accept_more(seed: int) -> None:
    """The best nodes one by one are the best tree, since no node is worth more than its parent."""
    source = random.Random(seed)
    accuracies = [[source.random() ** 2 for _ in range(4)] for _ in range(3)]
    every = paths_by_worth(accuracies)
    places = best_places(accuracies, len(every))
    assert [place.score for place in places] == pytest.approx(every)
    assert len({(place.parent, place.rank) for place in places}) == len(every)
    for node, place in enumerate(places):
        assert place.parent < node
        assert place.head == (places[place.parent].head + 1 if place.parent >= 0 else 0)
    assert best_places(accuracies, 7) == places[:7]
    assert best_places(accuracies, 100, least=0.2) == [place for place in places if place.score >= 0.2]


def finish(drafter: MedusaDrafter, prompts: list[list[int]], temperature: float, **options: Any) -> list[Any]:
    length = drafter.num_speculative_tokens
    assert length is not None
    engine = Engine(shallow_target(attention=False), drafter, num_speculative_tokens=length, **options)
    params = SamplingParams(temperature=temperature, max_tokens=40, ignore_eos=True, seed=2)
    requests = [engine.add(prompt, params) for prompt in prompts]
    while not engine.idle:
        engine.step()
    return [request.choices[0].output for request in requests]


@pytest.mark.parametrize("tree", [None, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("how", ["at once", "in chunks", "capriciously"])
def test_heads_that_know_what_comes_are_right(tree: dict[str, int] | None, how: str) -> None:
    """A state of another position, or a head one place off, and none of it would come true."""
    tokens = cycle(5)
    assert len(tokens) > 4
    drafter = MedusaDrafter("", heads=reciting_heads(tokens), tree=tree)
    chunks = {"max_batched_tokens": 5} if how == "in chunks" else {}
    control = {"controller": CapriciousController()} if how == "capriciously" else {}
    outputs = finish(drafter, [tokens, tokens[3:] * 2, [9, *tokens]], 0.0, **chunks, **control)
    for output in outputs:
        assert output.token_ids == [tokens[place % len(tokens)] for place in range(40)]
    statistics = [output.speculative_decoding for output in outputs]
    assert sum(own.accepted for own in statistics) > 10
    if tree is None:
        assert all(own.accepted == own.drafted for own in statistics)
    if how == "at once":
        assert all(own.acceptance_length > 3.5 for own in statistics)


def test_accuracies_are_learnt_from_what_came() -> None:
    """Heads that are always right with their first guess get chains; the ranks beside are given up."""
    tokens = cycle(5)
    drafter = MedusaDrafter("", heads=reciting_heads(tokens), tree=TREE)
    drafter.bind(shallow_target(attention=False))
    before = drafter._rates_by_head.copy()
    finish(drafter, [tokens] * 6, 0.0)
    after = drafter._rates_by_head
    sure, unsure = after.argmax(axis=1), (after - before).argmin(axis=1)
    for head in range(3):
        assert after[head, sure[head]] > 0.9
        assert after[head, unsure[head]] < before[head, unsure[head]]
        assert unsure[head] < sure[head]
    sure_of_all = Guesses(torch.arange(9).view(3, 3), torch.tensor([[0.99, 0.005, 0.005]]).expand(3, 3))
    draft = drafter._draft(sequence_of([1, 2, 3]), sure_of_all, 12)
    assert draft.parents[:3] == [-1, 0, 1]
    assert draft.tokens[:3] == [0, 3, 6]


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_tree_keeps_to_its_bounds(reduced: bool, temperature: float) -> None:
    drafter = MedusaDrafter("", heads=medusa_heads(reduced=reduced), tree=TREE, draft_min_token_prob=0.0)
    engine = Engine(random_target(), drafter, num_speculative_tokens=12)
    seen = []
    propose = drafter.propose

    def watched(*args: Any) -> Any:
        seen.append(propose(*args))
        return seen[-1]

    drafter.propose = watched  # type: ignore[method-assign]
    engine.add([3, 4, 5], SamplingParams(temperature=temperature, max_tokens=30, ignore_eos=True, seed=1))
    while not engine.idle:
        engine.step()
    full = [tree for tree in seen if tree.width == 12]
    assert len(full) > 5
    for tree in full:
        parents = tree.parents[0].tolist()
        assert int(tree.depths.max()) <= 3
        assert max(parents.count(node) for node in range(-1, 12)) <= 3
        siblings = list(zip(parents, tree.tokens[0].tolist(), strict=True))
        assert len(set(siblings)) == len(siblings)


def test_unlikely_nodes_are_not_drafted() -> None:
    drafted = []
    for least in (0.0, 0.3, 1.0):
        drafter = MedusaDrafter("", heads=medusa_heads(), tree=TREE, draft_min_token_prob=least)
        drafter.bind(random_target())
        found = Guesses(torch.arange(9).view(3, 3), torch.tensor([[0.6, 0.3, 0.1]]).expand(3, 3))
        drafted.append(len(drafter._draft(sequence_of([1, 2, 3]), found, 12).tokens))
    assert drafted[0] > drafted[1] > drafted[2] == 0


def test_a_checkpoint_says_which_method_runs_it() -> None:
    built = build_drafter({"model": head_folder("medusa"), "tree": TREE})
    assert built is not None
    assert built.method == "medusa"
    assert built.num_speculative_tokens == 12
    built.drafter.bind(random_target())
    wrong = build_drafter({"model": head_folder("eagle"), "method": "medusa"})
    assert wrong is not None
    with pytest.raises(LoadError, match="use 'eagle'"):
        wrong.drafter.bind(random_target())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [({"hidden": 48}, "hidden size 48"), ({"vocab_size": 97, "draft_vocab_size": 97}, "vocabulary size 97")],
)
def test_heads_of_another_target_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(LoadError, match=sentence):
        MedusaDrafter("", heads=medusa_heads(**changes)).bind(random_target())


@pytest.mark.parametrize("config", [{"model": "x", "draft_min_token_prob": -1.0}, {"model": "x", "tree": {"top_k": 0}}])
def test_values_that_make_no_sense_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="give"):
        MedusaDrafter(**config)
