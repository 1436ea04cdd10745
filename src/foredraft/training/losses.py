"""What drafters are trained to make small. p is the target's distribution, q the drafter's, over the same tokens."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, cast

import torch
from torch import Tensor

__all__ = ["Objective", "acceptance_loss", "cross_entropy", "token_losses"]

RAMP = (0.3, 0.7)
"""From and to which share of the training the acceptance loss replaces the cross-entropy."""


class Objective(StrEnum):
    """kl: cross-entropy with p, the same gradient as the divergence. lk: that at first, then the acceptance itself."""

    KL = "kl"
    LK = "lk"


class _CrossEntropy(torch.autograd.Function):
    """One exponential of every logit for value and gradient together; on a CPU those cost as much as a product."""

    @staticmethod
    def forward(ctx: Any, probabilities: Tensor, logits: Tensor) -> Tensor:
        top = logits.amax(dim=-1, keepdim=True)
        shares = (logits - top).exp_()
        total = shares.sum(dim=-1, keepdim=True)
        expected = torch.einsum("rv,rv->r", probabilities, logits)
        ctx.save_for_backward(probabilities, shares, total)
        return (top + total.log()).squeeze(-1) - expected

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        probabilities, shares, total = ctx.saved_tensors
        return None, (shares / total).sub_(probabilities).mul_(gradients[0].unsqueeze(-1))


def cross_entropy(probabilities: Tensor, logits: Tensor) -> Tensor:
    """- sum_x p(x) log q(x): [rows, V], [rows, V] -> [rows]. No gradient flows to p."""
    apply: Any = _CrossEntropy.apply
    return cast(Tensor, apply(probabilities, logits.float()))


def acceptance_loss(probabilities: Tensor, logits: Tensor) -> Tensor:
    """- log sum_x min(p(x), q(x)), the logarithm of the chance that a sampled draft is accepted: [rows]."""
    kept = torch.minimum(probabilities, logits.float().softmax(dim=-1)).sum(dim=-1)
    return -kept.clamp_min(1e-6).log()


def token_losses(objective: Objective, probabilities: Tensor, logits: Tensor, progress: float) -> Tensor:
    """[rows]; `progress` is the share of the training that is done."""
    low, high = RAMP
    share = min(1.0, max(0.0, (progress - low) / (high - low))) if objective is Objective.LK else 0.0
    if share == 0.0:
        return cross_entropy(probabilities, logits)
    if share == 1.0:
        return acceptance_loss(probabilities, logits)
    mixed = cross_entropy(probabilities, logits) * (1 - share) + acceptance_loss(probabilities, logits) * share
    return mixed
