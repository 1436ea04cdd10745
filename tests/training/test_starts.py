"""Heads begin as linear regressions: on states that really are linear, they begin right."""

from __future__ import annotations

import torch

from foredraft.heads.chains import ChainAttention
from foredraft.heads.eagle import EagleHead
from foredraft.training.eagle import fit_input, new_eagle1, new_eagle3
from foredraft.training.eagle3_start import start_linear
from foredraft.training.target_sizes import TargetSizes

SIZES = TargetSizes(8, 32, 4, 2, 16, 48, 80, 1e-6, 10000.0, 256)
ROWS = 600


def material() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Embeddings, tapped states with a constant part, and next states that follow from both."""
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(ROWS, 32, generator=generator)
    taps = torch.randn(ROWS, 3, 32, generator=generator) + 2 * torch.randn(3, 32, generator=generator)
    of_embedding, of_taps = (torch.randn(width, 32, generator=generator) / width**0.5 for width in (32, 96))
    return embeddings, taps, embeddings @ of_embedding + taps.flatten(1) @ of_taps


def explained(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Share of the variance."""
    return 1 - float((found - wanted).square().sum() / (wanted - wanted.mean(0)).square().sum())


def states(head: EagleHead, embeddings: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return head.step(embeddings, head.fuse(features), torch.arange(len(embeddings)), ChainAttention())


def test_an_eagle1_head_begins_with_the_best_linear_map() -> None:
    embeddings, taps, _ = material()
    generator = torch.Generator().manual_seed(1)
    following = embeddings @ torch.randn(32, 32, generator=generator) + taps[:, 0]
    head = new_eagle1(SIZES)
    fit_input(head, embeddings, taps[:, 0], following)
    assert explained(states(head, embeddings, taps[:, :1]), following) > 0.95


def test_an_eagle3_head_begins_with_looking_at_its_own_row() -> None:
    embeddings, taps, following = material()
    before = new_eagle3(SIZES, torch.arange(80), torch.randn(80, 32))
    head = new_eagle3(SIZES, torch.arange(80), torch.randn(80, 32))
    start_linear(head, embeddings, taps, following)
    assert head.norm is not None
    assert before.norm is not None
    wanted = following * torch.rsqrt(following.square().mean(-1, keepdim=True))
    with torch.no_grad():
        begun, random = (
            model.norm(states(model, embeddings, taps))  # type: ignore[misc]
            for model in (head, before)
        )
    scale = head.norm.weight.detach().mean()
    assert explained(begun / scale, wanted) > 0.6
    assert explained(begun / scale, wanted) > explained(random, wanted) + 0.5
