"""The target's embedding table and output layer as matrices, for heads in formats that hold a copy of them."""

from __future__ import annotations

import torch
from torch import Tensor

from foredraft.errors import ConfigError
from foredraft.heads.write import TargetWeights
from foredraft.target.target import Target

__all__ = ["weights_of_target"]

FAR = 1000.0
"""States this many times longer give logits this many times larger, if nothing bends them."""
TOLERANCE = 0.05


@torch.inference_mode()
def weights_of_target(target: Target, *, output: bool = True) -> TargetWeights:
    """The embedding table [V, E] and, if `output`, the output layer [V, H], in float32.

    The output layer is what it makes of unit vectors, so that it may be packed in any format. Raises ConfigError where
    it is no matrix.
    """
    decoder = target.decoder
    table = decoder.embed(torch.arange(target.vocab_size, device=decoder.device))
    if not output:
        return TargetWeights(table.float().cpu().clone(), None)
    unit = torch.eye(decoder.hidden_size, device=decoder.device, dtype=table.dtype)
    _check_linear(target, unit[:1])
    rows = torch.cat([decoder.head(unit[row : row + 64]) for row in range(0, len(unit), 64)]).T
    return TargetWeights(table.float().cpu().clone(), rows.float().cpu().clone())


def _check_linear(target: Target, state: Tensor) -> None:
    head = target.decoder.head
    near, far, nothing = head(state), head(FAR * state), head(0 * state)
    size = near.abs().max()
    bent = (far / FAR - near).abs().max() > TOLERANCE * size
    if bent or nothing.abs().max() > TOLERANCE * size:
        raise ConfigError(
            f"{target.name} bends its logits or adds to them (soft-capping, a bias), so its output layer is no matrix "
            "that a head could hold a copy of; write the head as foredraft, which needs no copy"
        )
