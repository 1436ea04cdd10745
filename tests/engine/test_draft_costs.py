"""What drafting costs is measured for every method that works, from the steps that drafted."""

from __future__ import annotations

import pytest
from models import tiny_target
from tiny_heads import head_folder

from foredraft.engine.draft_costs import drafting_configs, measure_drafting
from foredraft.errors import LoadError

PASS_MS = 2.0


def test_methods_without_files_are_named() -> None:
    assert [config["method"] for config in drafting_configs(tiny_target())] == [
        "ngram",
        "suffix",
        "recycling",
        "lookahead",
    ]
    assert drafting_configs(tiny_target(), "a-model")[-1] == {"model": "a-model"}


@pytest.mark.parametrize("config", drafting_configs(tiny_target()), ids=lambda config: config["method"])
def test_each_is_measured(config: dict[str, object]) -> None:
    target = tiny_target()
    cost = measure_drafting(target, config, pass_ms=PASS_MS, seconds=0.0)
    assert cost.method == config["method"]
    assert 1 <= cost.draft_length <= cost.draft_nodes
    assert cost.draft_ms is not None
    assert cost.draft_cost is not None
    assert PASS_MS * cost.draft_cost == pytest.approx(cost.draft_ms / cost.draft_length, rel=0.5)
    assert target.cache.free_slots == target.cache.slots


def test_a_head_is_measured_by_its_checkpoint() -> None:
    config = {"model": head_folder("eagle3"), "draft_min_token_prob": 0.0}
    cost = measure_drafting(tiny_target(), config, pass_ms=PASS_MS, seconds=0.0)
    assert cost.method == "eagle3"
    assert cost.draft_cost is not None
    assert cost.draft_cost > 0


def test_what_finds_nothing_has_no_cost() -> None:
    config = {"method": "ngram", "prompt_lookup_min": 90, "prompt_lookup_max": 95}
    cost = measure_drafting(tiny_target(), config, pass_ms=PASS_MS, seconds=0.0)
    assert (cost.draft_length, cost.draft_ms, cost.draft_cost) == (0, None, None)


def test_a_model_that_does_not_exist_is_refused() -> None:
    with pytest.raises(LoadError, match="no/such/head"):
        measure_drafting(tiny_target(), {"model": "./no/such/head"}, pass_ms=PASS_MS)


def test_a_short_context_is_no_obstacle() -> None:
    cost = measure_drafting(tiny_target(max_model_len=20), {"method": "ngram"}, pass_ms=PASS_MS, seconds=0.0)
    assert cost.method == "ngram"
