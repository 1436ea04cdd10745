"""Training's parallel chains are the drafter's own steps: the same numbers, row for row."""

from __future__ import annotations

import pytest
import torch
from material import random_example

from foredraft.drafters.eagle_cache import EagleCache, Level
from foredraft.drafters.eagle_pass import TorchPass
from foredraft.heads.eagle import EagleHead, EagleShape
from foredraft.target.kv_cache import CacheShape, KVCache
from foredraft.training.acceptance import chained, simulate
from foredraft.training.chains import chain_steps, each_chain
from foredraft.training.examples import Example
from foredraft.training.losses import Objective, acceptance_loss, cross_entropy, token_losses
from foredraft.types import SamplingParams, Sequence

HIDDEN, VOCAB, STEPS = 16, 60, 4
SHAPES = {
    "eagle3": {"generation": 3, "aux_layers": (1, 2, 3), "draft_vocab_size": VOCAB},
    "eagle3 in two layers": {"generation": 3, "aux_layers": (1, 2, 3), "draft_vocab_size": VOCAB, "layers": 2},
    "eagle 3.1": {"generation": 3, "aux_layers": (1, 2, 3), "draft_vocab_size": VOCAB, "norm_output": True},
    "eagle1": {
        "generation": 1,
        "aux_layers": (-1,),
        "draft_vocab_size": VOCAB,
        "output": "target",
        "final_norm": False,
    },
}


def a_head(**fields: object) -> EagleHead:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        common = {
            "hidden": HIDDEN,
            "target_hidden": HIDDEN,
            "heads": 4,
            "kv_heads": 2,
            "head_dim": 4,
            "intermediate": 24,
            "vocab_size": VOCAB,
        }
        return EagleHead(EagleShape(**{**common, **fields})).double().eval()  # type: ignore[arg-type]


def drafted(
    head: EagleHead, example: Example, features: torch.Tensor, row: int, embedding: torch.Tensor
) -> list[torch.Tensor]:
    """The states of the chain that begins at `row`, by the drafter's cache, one step after the other."""
    beside = KVCache(CacheShape((1,), (2,), (2,)), 1, torch.float64, torch.device("cpu"))
    passes = TorchPass(head, torch.float64, lambda ids: embedding[ids])
    cache = EagleCache(head, passes, beside, torch.device("cpu"), torch.float64)
    sequence = Sequence(0, SamplingParams(), example.tokens.tolist()[: row + 2], 1, 0)
    cache.begin(sequence)
    cache.add(sequence, 0, features, 0, row + 1)
    cache.catch_up([sequence])
    state = cache.state(sequence)
    assert state is not None
    states = [state]
    for step in range(1, STEPS):
        if row + 1 + step >= len(example.tokens) - 1:
            break
        level = Level(sequence, 0, 1, step - 1, None)
        token = example.tokens[row + 1 + step].unsqueeze(0)
        position = torch.tensor([row + step])
        states.append(cache.step([level], token, head.feedback(states[-1].unsqueeze(0)), position)[0])
    return states


@pytest.mark.parametrize("name", SHAPES)
@torch.no_grad()
def test_every_row_of_every_step_is_what_the_drafter_computes(name: str) -> None:
    head = a_head(**SHAPES[name])
    embedding = torch.randn(VOCAB, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    examples = [random_example(14, 5, seed=1), random_example(9, 1, seed=2), random_example(6, 4, seed=3)]
    taps = len(head.shape.aux_layers)
    features = [example.states[:, :taps].double() for example in examples]
    flat = torch.cat([each[: example.rows] for each, example in zip(features, examples, strict=True)])
    seen = 0
    for step in chain_steps(head, examples, head.fuse(flat), lambda ids: embedding[ids], STEPS):
        for example, own, states, after in zip(
            examples, features, each_chain(step.states, step.after), step.after, strict=True
        ):
            assert after.start == example.first + 1 + step.step
            for index, state in enumerate(states):
                expected = drafted(head, example, own, example.first + index, embedding)[step.step]
                torch.testing.assert_close(state, expected, rtol=1e-9, atol=1e-9)
                seen += 1
    assert seen == sum(max(0, ex.rows - ex.first - step) for ex in examples for step in range(STEPS))


def test_simulated_acceptance_counts_leading_guesses() -> None:
    right = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 1, 1], [1, 0, 1]]).bool()
    found = simulate([right[:1], right[1:]], 3)
    assert found.by_depth == (0.75, 0.75, 0.75)
    assert found.length == pytest.approx(1 + (2 + 0 + 3 + 1) / 4)
    assert simulate([right[:0]], 3).length == 1.0


def test_a_draft_models_chain_is_the_rows_that_follow() -> None:
    chains = chained(torch.tensor([True, False, True, True]), 3)
    assert chains.tolist() == [
        [True, False, True],
        [False, True, True],
        [True, True, False],
        [True, False, False],
    ]


def test_cross_entropy_has_the_gradient_of_the_plain_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(5, 9, generator=generator).softmax(-1)
    logits = torch.randn(5, 9, generator=generator, requires_grad=True)
    plain = -(p * logits.log_softmax(-1)).sum(-1)
    weights = torch.rand(5, generator=generator)
    [expected] = torch.autograd.grad((plain * weights).sum(), logits)
    own = cross_entropy(p, logits)
    [found] = torch.autograd.grad((own * weights).sum(), logits)
    torch.testing.assert_close(own, plain)
    torch.testing.assert_close(found, expected)


def test_the_acceptance_loss_is_least_where_the_distributions_agree() -> None:
    p = torch.tensor([[0.7, 0.2, 0.1]])
    assert acceptance_loss(p, p.log()).item() == pytest.approx(0, abs=1e-6)
    q = torch.tensor([[0.1, 0.2, 0.7]])
    assert acceptance_loss(p, q.log()).item() == pytest.approx(-torch.tensor(0.4).log().item(), abs=1e-6)
    early, late = (token_losses(Objective.LK, p, q.log(), progress) for progress in (0.0, 1.0))
    assert early.item() == pytest.approx(cross_entropy(p, q.log()).item())
    assert late.item() == pytest.approx(acceptance_loss(p, q.log()).item())
