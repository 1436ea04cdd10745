"""Rotary position embeddings of a head, computed as transformers computes the target's (halves rotated, float32)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from foredraft.errors import LoadError

__all__ = ["rotary_frequencies", "rotate"]


def rotary_frequencies(
    head_dim: int, theta: float, scaling: dict[str, Any] | None, max_positions: int
) -> tuple[Tensor, float]:
    """Inverse frequencies [head_dim / 2] in float32 and the factor for cosines and sines.

    `scaling` is a configuration's rope_scaling, None or {} for plain RoPE. Frequencies that transformers would change
    with the input's length (dynamic, longrope) stay those of a short input. Raises LoadError for an unknown type.
    """
    kind = str((scaling or {}).get("rope_type", (scaling or {}).get("type", "default")))
    steps = torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim
    plain = 1.0 / theta**steps
    if kind in ("default", "dynamic"):
        return plain, 1.0
    if kind == "linear":
        return plain / float((scaling or {})["factor"]), 1.0
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    initialise: Callable[..., tuple[Tensor, float]] | None = ROPE_INIT_FUNCTIONS.get(kind)
    if initialise is None:
        raise LoadError(f"rope_scaling is of type {kind!r}, which isn't known; upgrade transformers or fix config.json")
    config: Any = LlamaConfig
    described = config(
        hidden_size=head_dim,
        num_attention_heads=1,
        head_dim=head_dim,
        max_position_embeddings=max_positions,
        rope_parameters={**(scaling or {}), "rope_type": kind, "rope_theta": theta},
    )
    frequencies, factor = initialise(described, torch.device("cpu"))
    return frequencies, float(factor)


def rotate(heads: Tensor, positions: Tensor, frequencies: Tensor, factor: float) -> Tensor:
    """Turn queries or keys [..., heads, head_dim] to `positions` [...]."""
    angles = positions.unsqueeze(-1).float() * frequencies
    cosine = (angles.cos() * factor).to(heads.dtype).unsqueeze(-2)
    sine = (angles.sin() * factor).to(heads.dtype).unsqueeze(-2)
    low, high = heads.chunk(2, dim=-1)
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine], dim=-1)
