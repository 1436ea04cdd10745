"""Which models the lean decoder can run, and what it must know about them: sizes, windows, rotary frequencies,
multipliers.

Llama, Mistral, Qwen2, Qwen3, SmolLM3 and Granite differ from one another in constants only; this module reads them from
the configuration and checks the names of the tensors, so that a model with any part that the lean decoder doesn't know
is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from foredraft.target.kv_cache import CacheShape

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

__all__ = ["FAMILIES", "LlamaShape", "Unsupported", "layer_tensor", "read_shape", "rope_table"]

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "granite")
VARYING_ROPE = ("dynamic", "longrope")
PROJECTIONS = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
NORMS = ("input_layernorm", "post_attention_layernorm")
HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")
EMBEDDING, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


class Unsupported(Exception):  # noqa: N818 - says what the model is, not what went wrong
    """The lean decoder can't run this model; the message says why in one clause."""


@dataclass(frozen=True, slots=True, eq=False)
class LlamaShape:
    """windows: per layer, 0 for full attention; rotates: per layer, whether positions rotate queries and keys;
    inverse_frequencies [D / 2] and rope_scale as transformers computes them."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    epsilon: float
    windows: tuple[int, ...]
    rotates: tuple[bool, ...]
    inverse_frequencies: Tensor
    rope_scale: float
    score_scale: float
    embedding_scale: float
    residual_scale: float
    logits_scale: float
    head_norms: bool
    tied: bool

    @property
    def cache_shape(self) -> CacheShape:
        return CacheShape(
            (self.kv_heads,) * self.layers, (self.head_dim,) * self.layers, (self.head_dim,) * self.layers
        )

    def truncated(self, layers: int) -> LlamaShape:
        return replace(self, layers=layers, windows=self.windows[:layers], rotates=self.rotates[:layers])

    def rope_table(self, positions: int) -> Tensor:
        """[positions, 2, D / 2] float32: cosines and sines."""
        return rope_table(self.inverse_frequencies, self.rope_scale, positions)


def rope_table(frequencies: Tensor, scale: float, positions: int) -> Tensor:
    """Frequencies [D / 2] -> [positions, 2, D / 2] float32: cosines and sines, times `scale`."""
    angles = torch.arange(positions, dtype=torch.float32).unsqueeze(1) * frequencies.float()
    return torch.stack([angles.cos() * scale, angles.sin() * scale], dim=1)


def layer_tensor(layer: int, part: str, leaf: str = "weight") -> str:
    """The name of a layer's tensor in the checkpoint."""
    return f"model.layers.{layer}.{part}.{leaf}"


def read_shape(config: PreTrainedConfig, names: Iterable[str]) -> LlamaShape:
    """Read the shape, raising Unsupported with the reason unless configuration and tensor `names` are a Llama-shaped
    model's.
    """
    kind = config.model_type
    if kind not in FAMILIES:
        raise Unsupported(f"models of type {kind} are not Llama-shaped")
    if config.hidden_act != "silu":
        raise Unsupported(f"the activation is {config.hidden_act}, not silu")
    present = set(names)
    _check_names(config.num_hidden_layers, present)
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    frequencies, rope_scale = _rotary(config, head_dim)
    tied = HEAD not in present
    if tied and not config.tie_word_embeddings:
        raise Unsupported("the output head is missing")
    layers = config.num_hidden_layers
    return LlamaShape(
        layers=layers,
        hidden=config.hidden_size,
        heads=heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        intermediate=config.intermediate_size,
        vocabulary=config.vocab_size,
        epsilon=config.rms_norm_eps,
        windows=_windows(config, layers),
        rotates=tuple(bool(flag) for flag in (getattr(config, "no_rope_layers", None) or [1] * layers)),
        inverse_frequencies=frequencies,
        rope_scale=rope_scale,
        score_scale=getattr(config, "attention_multiplier", head_dim**-0.5),
        embedding_scale=getattr(config, "embedding_multiplier", 1.0),
        residual_scale=getattr(config, "residual_multiplier", 1.0),
        logits_scale=1.0 / getattr(config, "logits_scaling", 1.0),
        head_norms=layer_tensor(0, HEAD_NORMS[0]) in present,
        tied=tied or config.tie_word_embeddings,
    )


def _check_names(layers: int, present: set[str]) -> None:
    expected = {EMBEDDING, FINAL_NORM}
    optional = {HEAD}
    for layer in range(layers):
        expected |= {layer_tensor(layer, part) for part in PROJECTIONS + NORMS}
        optional |= {layer_tensor(layer, part) for part in HEAD_NORMS}
        optional |= {layer_tensor(layer, part, "bias") for part in PROJECTIONS}
    if missing := sorted(expected - present):
        raise Unsupported(f"tensor {missing[0]} is missing")
    strange = sorted(name for name in present - expected - optional if not name.endswith("rotary_emb.inv_freq"))
    if strange:
        raise Unsupported(f"tensor {strange[0]} has no place in a Llama-shaped model")


def _windows(config: PreTrainedConfig, layers: int) -> tuple[int, ...]:
    window = getattr(config, "sliding_window", None) or 0
    types = getattr(config, "layer_types", None)
    if types is None:
        return (window if config.model_type == "mistral" else 0,) * layers
    if strange := sorted(set(types) - {"full_attention", "sliding_attention"}):
        raise Unsupported(f"layers of type {strange[0]} are not supported")
    return tuple(window if kind == "sliding_attention" else 0 for kind in types)


def _rotary(config: PreTrainedConfig, head_dim: int) -> tuple[Tensor, float]:
    parameters = config.rope_parameters
    kind = parameters.get("rope_type") if isinstance(parameters, dict) else None
    if kind is None or kind in VARYING_ROPE:
        raise Unsupported(f"rotary embeddings of type {kind} depend on the length of the input")
    if kind == "default":
        steps = torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim
        return 1.0 / parameters["rope_theta"] ** steps, 1.0
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    initialise: Callable[..., tuple[Tensor, float]] | None = ROPE_INIT_FUNCTIONS.get(kind)
    if initialise is None:
        raise Unsupported(f"rotary embeddings of type {kind} are not known")
    frequencies, scale = initialise(config, torch.device("cpu"))
    if frequencies.shape[0] * 2 != head_dim:
        raise Unsupported(f"only {frequencies.shape[0] * 2} of {head_dim} dimensions are rotated")
    return frequencies, scale
