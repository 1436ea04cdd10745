"""Drafts that grow in one call of compiled code are those that grow level by level."""

from __future__ import annotations

from collections.abc import Sequence as Collection
from typing import Any

import pytest
import torch
from lean_targets import lean_decoder, lean_target
from tiny_heads import eagle_head

from foredraft.drafters.eagle import Eagle3Drafter
from foredraft.drafters.eagle_pass import KernelPass
from foredraft.engine.engine import Engine
from foredraft.target.quantization import WeightFormat
from foredraft.tree import TokenTree
from foredraft.types import SamplingParams, Sequence

CHAIN: dict[str, Any] = {"num_speculative_tokens": 6}
TREE: dict[str, Any] = {"tree": {"depth": 5, "top_k": 4, "nodes": 20}}
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
SAMPLED = SamplingParams(temperature=0.7, max_tokens=24, seed=3)
PROMPTS = ([3, 14, 15, 9], [2, 7, 1, 8, 2, 8, 1, 8], [5] * 40)


class Watched(Eagle3Drafter):
    """Keeps what it proposes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.proposed: list[TokenTree] = []

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        self.proposed.append(super().propose(batch, budget))
        return self.proposed[-1]


def drafts(weight_format: WeightFormat, params: SamplingParams, **config: Any) -> list[TokenTree]:
    """Everything that is proposed while three requests are decoded at once."""
    drafter = Watched("", head=eagle_head(3, reduced=True), **config)
    engine = Engine(lean_target(weight_format), drafter, num_speculative_tokens=drafter.num_speculative_tokens or 0)
    for prompt in PROMPTS:
        engine.add(prompt, params)
    while not engine.idle:
        engine.step()
    return drafter.proposed


@pytest.mark.parametrize("weight_format", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("least", [0.0, 0.0004])
@pytest.mark.parametrize("config", [CHAIN, TREE], ids=["chain", "tree"])
def test_the_same_trees(
    config: dict[str, Any],
    least: float,
    params: SamplingParams,
    weight_format: WeightFormat,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []
    grow = KernelPass.grow
    monkeypatch.setattr(KernelPass, "grow", lambda *args: calls.append(1) or grow(*args))
    at_once = drafts(weight_format, params, draft_min_token_prob=least, **config)
    assert bool(calls) == lean_decoder(weight_format).own_threads  # elsewhere there are no kernels to grow them
    monkeypatch.setattr(KernelPass, "grow", lambda *_: None)
    by_level = drafts(weight_format, params, draft_min_token_prob=least, **config)
    assert len(at_once) == len(by_level)
    assert max(tree.width for tree in at_once) > 1
    for one, other in zip(at_once, by_level, strict=True):
        assert torch.equal(one.tokens, other.tokens)
        assert torch.equal(one.parents, other.parents)
        if one.scores is not None and other.scores is not None:
            torch.testing.assert_close(one.scores, other.scores)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, max_tokens=8, seed=1, top_p=0.9),
        SamplingParams(temperature=0.0, max_tokens=8, repetition_penalty=1.2),
        SamplingParams(temperature=0.0, max_tokens=8, logit_bias={5: 3.0}),
    ],
    ids=["filter", "penalty", "bias"],
)
def test_what_more_than_the_head_decides_goes_level_by_level(
    params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KernelPass, "grow", lambda *_: pytest.fail("it grew at once"))
    assert drafts("float32", params, **TREE)
