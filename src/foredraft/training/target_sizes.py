"""The numbers of a target that a new drafter takes over, from its configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

__all__ = ["TargetSizes", "read_sizes"]


@dataclass(frozen=True, slots=True)
class TargetSizes:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab_size: int
    epsilon: float
    rope_theta: float
    max_positions: int


def read_sizes(config: PreTrainedConfig, vocab_size: int) -> TargetSizes:
    """Of any decoder-only configuration; what an architecture lacks (rotation, gates) is what Llama has."""
    text = config.get_text_config()
    heads = int(text.num_attention_heads)
    rope = getattr(text, "rope_parameters", None) or {}
    theta = rope.get("rope_theta") if isinstance(rope, dict) else None
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    hidden = int(text.hidden_size)
    return TargetSizes(
        layers=int(text.num_hidden_layers),
        hidden=hidden,
        heads=heads,
        kv_heads=int(kv_heads),
        head_dim=int(getattr(text, "head_dim", None) or hidden // heads),
        intermediate=int(getattr(text, "intermediate_size", None) or 4 * hidden),
        vocab_size=vocab_size,
        epsilon=float(getattr(text, "rms_norm_eps", None) or 1e-6),
        rope_theta=float(theta or 10000.0),
        max_positions=int(getattr(text, "max_position_embeddings", None) or 2048),
    )
