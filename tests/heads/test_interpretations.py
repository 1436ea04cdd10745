"""The self-test: a head whose file lies about itself is found out on text, and an honest one is left as it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from foredraft.heads.agreement import TargetText, eagle_agreement, expected_accepted, medusa_agreement
from foredraft.heads.chains import ChainAttention
from foredraft.heads.eagle import EagleHead, EagleShape
from foredraft.heads.info import Doubt
from foredraft.heads.interpretations import Reading, boundaries_to_tap, choose_interpretation, reread
from foredraft.heads.medusa import MedusaHeads, MedusaShape

H, V, T, LAYERS = 24, 60, 80, 8
SHAPE = EagleShape(3, H, H, 4, 2, 6, 32, V, V, (2, 4, 5))
EAGLE1 = EagleShape(1, H, H, 4, 2, 6, 32, V, V, (-1,), fc_bias=True, final_norm=False)


def random_head(shape: EagleShape) -> EagleHead:
    head = EagleHead(shape).double().requires_grad_(False)
    for name, parameter in head.named_parameters():
        if parameter.dim() > 1:
            parameter.normal_(0, 0.4)
        elif name.endswith("bias"):
            parameter.normal_(0, 1.5)
        else:
            parameter.copy_(1 + 0.3 * torch.randn_like(parameter))
    return head


def text_for(head: EagleHead) -> TargetText:
    """A text of a target that always takes what `head` would guess from the target's states (depth 1)."""
    table = torch.randn(V, H, dtype=torch.float64)
    output = torch.randn(V, H, dtype=torch.float64)
    taps = {layer: torch.randn(T, H, dtype=torch.float64) for layer in (-1, *range(LAYERS))}
    tokens = torch.randint(0, V, (T,))
    text = TargetText(tokens, tokens, taps, lambda ids: table[ids], lambda x: x @ output.T)
    features = torch.stack([taps[layer] for layer in head.shape.aux_layers], dim=1)
    embedding = head.embed(tokens[1:], text.embed)
    state = head.step(embedding, head.fuse(features)[:-1], torch.arange(T - 1), ChainAttention())
    best = head.logits(state, text.head).argmax(dim=1)
    return text._replace(picks=torch.cat([tokens[1:2], best]))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(5)


def test_an_honest_head_is_left_alone() -> None:
    head = random_head(SHAPE)
    choice = choose_interpretation(head, text_for(head), target_layers=LAYERS)
    assert choice.reading == "as written"
    assert choice.head is head
    assert choice.agreement[0] == 1.0
    assert len(choice.tried) == 1


@pytest.mark.parametrize(
    ("truth", "words"),
    [
        (replace(SHAPE, aux_layers=(3, 5, 6)), "layer ids [3, 5, 6]"),
        (replace(SHAPE, aux_layers=(1, 3, 4)), "layer ids [1, 3, 4]"),
        (replace(SHAPE, norm_before_residual=True), "norm_before_residual True"),
    ],
)
def test_a_wrong_flag_is_found(truth: EagleShape, words: str) -> None:
    right = random_head(truth)
    lying = EagleHead(SHAPE).double()
    lying.load_state_dict(right.state_dict())
    # the residual flag alone may leave a good deal of agreement, so that only the doubt makes it worth a look
    doubts = (Doubt.NORM_BEFORE_RESIDUAL,) if "residual" in words else ()
    choice = choose_interpretation(lying, text_for(right), doubts, LAYERS)
    assert choice.reading == words
    assert choice.agreement[0] == 1.0
    assert choice.head.shape == truth


@pytest.mark.parametrize("shape", [SHAPE, EAGLE1])
def test_swapped_inputs_are_found(shape: EagleShape) -> None:
    right = random_head(shape)
    lying = reread(right, Reading("", shape, swapped=True))
    choice = choose_interpretation(lying, text_for(right), target_layers=LAYERS)
    assert choice.reading == "feature before embedding"
    assert choice.agreement[0] == 1.0


def test_a_bias_that_must_be_dropped_is_found() -> None:
    right = random_head(replace(EAGLE1, fc_bias=False))
    lying = EagleHead(EAGLE1).double()
    lying.load_state_dict({**right.state_dict(), "fc.bias": 30 * torch.randn(H, dtype=torch.float64)})
    choice = choose_interpretation(lying, text_for(right), target_layers=LAYERS)
    assert choice.reading == "without fc's bias"


def test_norm_output_shows_at_depth_two_only() -> None:
    """The state that is fed back doesn't matter to the first guess: what is compared must be deeper ones."""
    truth = replace(SHAPE, norm_output=True)
    right = random_head(truth)
    text = text_for(right)
    features = torch.stack([text.taps[layer] for layer in SHAPE.aux_layers], dim=1)
    attend, tokens = ChainAttention(), text.tokens
    state = right.step(text.embed(tokens[1:]), right.fuse(features)[:-1], torch.arange(T - 1), attend)
    second = right.step(text.embed(tokens[2:]), right.feedback(state)[:-1], torch.arange(1, T - 1), attend)
    picks = text.picks.clone()
    picks[2:] = right.logits(second).argmax(dim=1)
    text = text._replace(picks=picks)
    lying = EagleHead(SHAPE).double()
    lying.load_state_dict(right.state_dict())
    assert eagle_agreement(lying, text)[0] == eagle_agreement(right, text)[0]
    assert eagle_agreement(right, text)[1] == 1.0
    assert eagle_agreement(lying, text)[1] < 0.7


def test_boundaries_cover_every_reading() -> None:
    assert boundaries_to_tap(SHAPE, LAYERS) == (1, 2, 3, 4, 5, 6)
    assert boundaries_to_tap(EAGLE1, LAYERS) == (-1,)


def test_medusa_agreement() -> None:
    heads = MedusaHeads(MedusaShape(2, H, V, V, output="own")).double()
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter)
    hidden = torch.randn(T, H, dtype=torch.float64)
    tokens = torch.randint(0, V, (T,))
    with torch.no_grad():
        first = heads.logits(heads(hidden))[:, 0].argmax(dim=1)
    picks = torch.cat([tokens[:1], first[:-1]])  # head 0 at row t guesses the pick after token t + 1
    text = TargetText(tokens, picks, {-1: hidden}, lambda ids: ids, lambda x: x)
    shares = medusa_agreement(heads, text)
    assert shares[0] == 1.0
    assert shares[1] < 0.2
    assert expected_accepted((0.5, 0.5)) == 0.75
