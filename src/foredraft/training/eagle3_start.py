"""Where an EAGLE-3 head starts: as the best linear guess of the target's next state, found at once instead of learned.

The head sees the next token only through its attention, which at first looks everywhere, so learning to look at its own
row costs hundreds of steps. Here queries and keys start as one constant vector in the dimensions that rotate fastest,
which is strongest where positions are equal; values and the output projection carry the part of a linear regression
that belongs to the embedding, at the rank that the key/value heads have; `fc` carries the part of the tapped states.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from foredraft.heads.eagle import EagleHead

__all__ = ["start_linear"]

RIDGE = 1e-3
FAST_PAIRS = 8
SHARPNESS = 5.0


@torch.no_grad()
def start_linear(head: EagleHead, embeddings: Tensor, taps: Tensor, following: Tensor) -> None:
    """Fit to rows that draft: next tokens' embeddings [n, H], tapped states [n, taps, H], and the target's next states
    behind its final norm [n, H]. The output layer is taken to be the target's. A head with more value dimensions than
    its state has, or without a final norm, is left as it is."""
    layer: Any = head.layers[0]
    attention, shape = layer.self_attn, head.shape
    rank = shape.kv_heads * shape.head_dim
    if head.norm is None or rank > shape.hidden:
        return
    embedded = layer.input_layernorm(embeddings.float())
    flat = taps.float().flatten(1)
    count = len(flat)

    weights = _ridge(torch.cat([embedded, flat], dim=1), following.float())  # [H + taps H, H]
    of_embedding, of_taps = weights[: shape.hidden], weights[shape.hidden :]
    head.fc.weight.copy_(of_taps.t())

    strongest = torch.linalg.svd(_root(embedded.t() @ embedded / count) @ of_embedding).Vh
    onto = strongest[:rank]  # [rank, H]: what the embedding can add, strongest first
    groups = shape.heads // shape.kv_heads
    attention.v_proj.weight.zero_()
    attention.v_proj.weight[:, : shape.hidden] = onto @ of_embedding.t()
    by_head = onto.t().reshape(shape.hidden, shape.kv_heads, 1, shape.head_dim) / groups
    attention.o_proj.weight.copy_(by_head.expand(-1, -1, groups, -1).reshape(shape.hidden, -1))

    feature = layer.hidden_norm(head.fuse(taps.float()))
    constant = _ridge(feature, torch.ones(count, 1, device=feature.device)).squeeze(1)
    for projection, heads in ((attention.q_proj, shape.heads), (attention.k_proj, shape.kv_heads)):
        rows = projection.weight.view(heads, 2, shape.head_dim // 2, -1)
        rows[:, :, :FAST_PAIRS, shape.hidden :] += SHARPNESS * constant

    state = head.fuse(taps.float()) + embedded @ of_embedding
    normal = state * torch.rsqrt(state.square().mean(dim=-1, keepdim=True) + shape.epsilon)
    scale = (normal * following.float()).sum(dim=0) / normal.square().sum(dim=0).clamp_min(1e-6)
    head.norm.weight.copy_(scale)


def _ridge(inputs: Tensor, outputs: Tensor) -> Tensor:
    """[n, a], [n, b] -> [a, b]."""
    spread = inputs.square().mean(dim=0).sqrt().clamp_min(1e-6)
    scaled = inputs / spread
    products = (scaled.t() @ scaled).double()
    products += torch.eye(len(products), dtype=products.dtype, device=products.device) * (RIDGE * len(inputs))
    solution: Tensor = torch.linalg.solve(products, (scaled.t() @ outputs).double())
    return solution.float() / spread.unsqueeze(1)


def _root(products: Tensor) -> Tensor:
    """The symmetric square root of a covariance."""
    values, vectors = torch.linalg.eigh(products.double())
    root: Tensor = vectors * values.clamp_min(0).sqrt() @ vectors.t()
    return root.float()
