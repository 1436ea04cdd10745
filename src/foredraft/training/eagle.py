"""A new EAGLE-1 head for a target: shape and starting point."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from foredraft.heads.eagle import EagleHead, EagleShape
from foredraft.heads.taps import default_boundaries
from foredraft.training.recording import LAST
from foredraft.training.target_sizes import TargetSizes

__all__ = ["fit_input", "new_eagle1", "new_eagle3"]

SPREAD = 0.02
RIDGE = 1e-3


def new_eagle1(sizes: TargetSizes, *, intermediate: int | None = None, seed: int = 0) -> EagleHead:
    """A layer like the target's, on the pair (embedding, state). It starts by passing the state on."""
    head = EagleHead(
        EagleShape(
            generation=1,
            draft_vocab_size=sizes.vocab_size,
            aux_layers=(LAST,),
            final_norm=False,
            output="target",
            **_common(sizes, intermediate),
        )
    )
    _initialise(head, seed)
    with torch.no_grad():
        head.fc.weight[:, sizes.hidden :] += torch.eye(sizes.hidden)
    return head


def new_eagle3(
    sizes: TargetSizes,
    draft_ids: torch.Tensor,
    output: torch.Tensor,
    *,
    intermediate: int | None = None,
    norm_output: bool = False,
    seed: int = 0,
) -> EagleHead:
    """A layer on (embedding, fused states) with its own output layer, which starts as the target's rows `output`
    [Vd, H] of the draft vocabulary. It starts by passing on the highest tapped state."""
    head = EagleHead(
        EagleShape(
            generation=3,
            draft_vocab_size=len(draft_ids),
            aux_layers=default_boundaries(sizes.layers),
            norm_output=norm_output,
            **_common(sizes, intermediate),
        ),
        draft_ids,
    )
    _initialise(head, seed)
    assert head.lm_head is not None
    with torch.no_grad():
        head.fc.weight[:, -sizes.hidden :] += torch.eye(sizes.hidden)
        head.lm_head.weight.copy_(output)
    return head


@torch.no_grad()
def fit_input(head: EagleHead, embeddings: torch.Tensor, states: torch.Tensor, following: torch.Tensor) -> None:
    """Set an EAGLE-1 head's `fc` to the best linear map from (embedding of the next token, state) [n, H] each to the
    next state [n, H]: ridge regression, solved at once. About half of the next state's variance is linear, which saves
    hundreds of steps."""
    pairs = torch.cat([embeddings, states], dim=1).double()
    spread = pairs.std(dim=0).clamp_min(1e-6)
    scaled = pairs / spread
    products = scaled.t() @ scaled
    products += torch.eye(len(products), dtype=products.dtype, device=products.device) * (RIDGE * len(pairs))
    solution = torch.linalg.solve(products, scaled.t() @ following.double()) / spread.unsqueeze(1)
    head.fc.weight.copy_(solution.t())


def _common(sizes: TargetSizes, intermediate: int | None) -> dict[str, Any]:
    return {
        "hidden": sizes.hidden,
        "target_hidden": sizes.hidden,
        "heads": sizes.heads,
        "kv_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "intermediate": intermediate or sizes.intermediate,
        "vocab_size": sizes.vocab_size,
        "epsilon": sizes.epsilon,
        "rope_theta": sizes.rope_theta,
        "max_positions": sizes.max_positions,
    }


def _initialise(head: EagleHead, seed: int) -> None:
    """Small random numbers; what is added to the state starts at nearly nothing."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, module in head.named_modules():
            if isinstance(module, nn.Linear):
                spread = SPREAD / 4 if name.endswith(("o_proj", "down_proj")) else SPREAD
                module.weight.normal_(0, spread, generator=generator)
