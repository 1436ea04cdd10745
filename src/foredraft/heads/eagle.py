"""EAGLE heads of every generation: one small network, for training and for drafting.

An EAGLE head reads the embedding of the next token and a feature of the current position and predicts the state after
that token. EAGLE-1 (Li et al. 2024, arXiv 2401.15077; EAGLE-2, 2406.16858, has the same weights) takes the target's
last hidden state and gives another one. EAGLE-3 (2503.01840) fuses several tapped layers, feeds its own state back and
may draft from a smaller vocabulary.

The network doesn't know where keys and values live: `step` hands them to the caller's `attend`. The drafter passes one
that keeps them in its cache, the trainer one that lays out its steps, both get the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from foredraft.errors import LoadError
from foredraft.heads.rotary import rotary_frequencies, rotate

__all__ = ["Attend", "EagleHead", "EagleShape"]

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""attend(layer, query [..., heads, hd], key [..., kv_heads, hd], value [..., kv_heads, hd]) -> [..., heads, hd].

Queries and keys are rotated already; scores are to be scaled by hd ** -0.5."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": nn.functional.silu,
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,
    "gelu_new": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
}


@dataclass(frozen=True, slots=True)
class EagleShape:
    """What an EAGLE head looks like, whatever file it came from.

    generation            1 (the same for 2) or 3
    aux_layers            tapped boundaries of the target in the order of concatenation: k is the input of layer k, -1
                          the state after the final norm; (-1,) for EAGLE-1
    rope_scaling          as in config.json; None for plain RoPE
    norm_before_residual  the first layer's residual is the normalised feature (speculators)
    norm_output           the state is fed back after the final norm (EAGLE-3.1)
    final_norm            there is a norm between the state and the output layer; EAGLE-1 usually has none
    first_norm            EAGLE-1 only: the first layer normalises its input like any other (ModelOpt)
    fc_norm               a norm for each tapped layer before fc (EAGLE-3.1)
    norm_before_fc        one norm over all of them before fc (gpt-oss heads)
    para_norm             EAGLE-1 only: embedding and feature are normalised before fc (HASS)
    own_embedding         it brings its embedding table [V, H]; else it reads the target's
    output                own: an output layer [Vd, H]; target: the target's; embedding: its own embedding table
    """

    generation: Literal[1, 3]
    hidden: int
    target_hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab_size: int
    draft_vocab_size: int
    aux_layers: tuple[int, ...]
    layers: int = 1
    epsilon: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    max_positions: int = 2048
    act: str = "silu"
    fc_bias: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    final_norm: bool = True
    first_norm: bool = False
    fc_norm: bool = False
    norm_before_fc: bool = False
    para_norm: bool = False
    own_embedding: bool = False
    output: Literal["own", "target", "embedding"] = "own"

    @property
    def reduced(self) -> bool:
        """Whether it drafts from a part of the target's vocabulary."""
        return self.draft_vocab_size != self.vocab_size


class EagleAttention(nn.Module):
    """Projections and rotation; the attention itself is the caller's."""

    def __init__(self, shape: EagleShape, width: int) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.q_proj = nn.Linear(width, shape.heads * shape.head_dim, bias=shape.qkv_bias)
        self.k_proj = nn.Linear(width, shape.kv_heads * shape.head_dim, bias=shape.qkv_bias)
        self.v_proj = nn.Linear(width, shape.kv_heads * shape.head_dim, bias=shape.qkv_bias)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)
        self.q_norm = nn.RMSNorm(shape.head_dim, shape.epsilon) if shape.qk_norm else None
        self.k_norm = nn.RMSNorm(shape.head_dim, shape.epsilon) if shape.qk_norm else None
        self.frequencies, self.factor = rotary_frequencies(
            shape.head_dim, shape.rope_theta, shape.rope_scaling, shape.max_positions
        )

    def forward(self, layer: int, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        query, key, value = (
            projected.unflatten(-1, (-1, self.head_dim))
            for projected in (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        )
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        if self.frequencies.device != x.device:  # no buffer: a head cast to bfloat16 must keep float32 frequencies
            self.frequencies = self.frequencies.to(x.device)
        query = rotate(query, positions, self.frequencies, self.factor)
        key = rotate(key, positions, self.frequencies, self.factor)
        attended: Tensor = self.o_proj(attend(layer, query, key, value).flatten(-2))
        return attended


class EagleMLP(nn.Module):
    """The gated feed-forward part of a Llama layer."""

    def __init__(self, shape: EagleShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)
        self.activate = ACTIVATIONS[shape.act]

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.down_proj(self.activate(self.gate_proj(x)) * self.up_proj(x))
        return mixed


class EagleLayer(nn.Module):
    """A Llama layer; EAGLE-3's first one attends with the pair (embedding, feature), twice as wide."""

    def __init__(self, shape: EagleShape, index: int) -> None:
        super().__init__()
        pair = shape.generation == 3 and index == 0
        plain = shape.generation == 1 and index == 0 and not shape.first_norm
        self.index = index
        self.norm_before_residual = shape.norm_before_residual
        self.input_layernorm = None if plain else nn.RMSNorm(shape.hidden, shape.epsilon)
        self.hidden_norm = nn.RMSNorm(shape.hidden, shape.epsilon) if pair else None
        self.self_attn = EagleAttention(shape, shape.hidden * (2 if pair else 1))
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, shape.epsilon)
        self.mlp = EagleMLP(shape)

    def forward(self, x: Tensor, embedding: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """`x` is the feature or the layer below's output; `embedding` is used by EAGLE-3's first layer only."""
        residual = x
        if self.hidden_norm is not None and self.input_layernorm is not None:
            x = self.hidden_norm(x)
            residual = x if self.norm_before_residual else residual
            x = torch.cat([self.input_layernorm(embedding), x], dim=-1)
        elif self.input_layernorm is not None:
            x = self.input_layernorm(x)
        x = residual + self.self_attn(self.index, x, positions, attend)
        mixed: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return mixed


class EagleHead(nn.Module):
    """An EAGLE head. T stands for any leading dimensions, [rows] when drafting and [B, rows] when training.

    The row of position t combines the embedding of token t + 1 with the feature of position t, is rotated to position
    t, and its logits predict token t + 2. `draft_ids` [Vd] int64 maps draft ids to the target's; None
    if they are the same. Raises LoadError for an unknown activation.
    """

    draft_ids: Tensor | None
    draft_mask: Tensor | None
    draft_index: Tensor | None

    def __init__(self, shape: EagleShape, draft_ids: Tensor | None = None) -> None:
        super().__init__()
        if shape.act not in ACTIVATIONS:
            raise LoadError(f"hidden_act is {shape.act!r}; a head can have {', '.join(ACTIVATIONS)}")
        if shape.reduced and draft_ids is None:
            raise ValueError("a reduced draft vocabulary needs draft_ids")
        self.shape = shape
        norm = shape.hidden, shape.epsilon
        taps = len(shape.aux_layers)
        own_norms = shape.generation == 3 and shape.fc_norm
        width = taps * shape.target_hidden if shape.generation == 3 else shape.hidden + shape.target_hidden
        self.fc_norm = (
            nn.ModuleList(nn.RMSNorm(shape.target_hidden, shape.epsilon) for _ in range(taps)) if own_norms else None
        )
        self.input_norm = nn.RMSNorm(width, shape.epsilon) if shape.norm_before_fc else None
        self.embedding_layernorm = nn.RMSNorm(*norm) if shape.para_norm else None
        self.hidden_states_layernorm = nn.RMSNorm(*norm) if shape.para_norm else None
        self.fc = nn.Linear(width, shape.hidden, bias=shape.fc_bias)
        self.layers = nn.ModuleList(EagleLayer(shape, index) for index in range(shape.layers))
        self.norm = nn.RMSNorm(*norm) if shape.final_norm else None
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden) if shape.own_embedding else None
        own_output = shape.output == "own"
        self.lm_head = nn.Linear(shape.hidden, shape.draft_vocab_size, bias=False) if own_output else None
        self.set_draft_ids(draft_ids)

    def set_draft_ids(self, draft_ids: Tensor | None) -> None:
        """Which target tokens the draft ids stand for; also gives `draft_mask` [V] bool, whether a target token can be
        drafted, and `draft_index` [V] int64, its draft id (0 where it can't be)."""
        mask = index = None
        if draft_ids is not None:
            draft_ids = draft_ids.long()
            mask = torch.zeros(self.shape.vocab_size, dtype=torch.bool, device=draft_ids.device)
            mask[draft_ids] = True
            index = torch.zeros(self.shape.vocab_size, dtype=torch.long, device=draft_ids.device)
            index[draft_ids] = torch.arange(len(draft_ids), device=draft_ids.device)
        self.register_buffer("draft_ids", draft_ids, persistent=False)
        self.register_buffer("draft_mask", mask, persistent=False)
        self.register_buffer("draft_index", index, persistent=False)

    def embed(self, tokens: Tensor, target_embedding: Callable[[Tensor], Tensor]) -> Tensor:
        """Target token ids [T] -> [T, H], from the head's own table if it has one."""
        rows: Tensor = target_embedding(tokens) if self.embed_tokens is None else self.embed_tokens(tokens)
        return rows

    def fuse(self, features: Tensor) -> Tensor:
        """The target's tapped states [T, taps, Ht] -> features [T, H]. EAGLE-1's is the one tap itself."""
        if self.shape.generation == 1:
            return features.squeeze(-2)
        if self.fc_norm is not None:
            features = torch.stack([norm(features[..., tap, :]) for tap, norm in enumerate(self.fc_norm)], dim=-2)
        flat = features.flatten(-2)
        fused: Tensor = self.fc(flat if self.input_norm is None else self.input_norm(flat))
        return fused

    def step(self, embedding: Tensor, feature: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Embeddings of the next tokens [T, H], features [T, H] (from `fuse` or `feedback`), positions [T] -> states
        [T, H], before the final norm."""
        if self.shape.generation == 1:
            if self.embedding_layernorm is not None and self.hidden_states_layernorm is not None:
                embedding, feature = self.embedding_layernorm(embedding), self.hidden_states_layernorm(feature)
            state = self.fc(torch.cat([embedding, feature], dim=-1))
        else:
            state = feature
        for layer in self.layers:
            state = layer(state, embedding, positions, attend)
        return cast(Tensor, state)

    def feedback(self, state: Tensor) -> Tensor:
        """The feature that stands for the target's at the next step: [T, H] -> [T, H]."""
        return self._normalised(state) if self.shape.norm_output else state

    def logits(self, state: Tensor, target_head: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """[T, H] -> [T, Vd], in the order of `draft_ids`. `target_head` [T, H] -> [T, V] is needed if `output` is
        "target"."""
        state = self._normalised(state)
        if self.lm_head is not None:
            own: Tensor = self.lm_head(state)
            return own
        if self.shape.output == "embedding" and self.embed_tokens is not None:
            logits = nn.functional.linear(state, self.embed_tokens.weight)
        elif target_head is not None:
            logits = target_head(state)
        else:
            raise ValueError("this head has no output layer of its own: pass the target's")
        return logits if self.draft_ids is None else logits[..., self.draft_ids]

    def _normalised(self, state: Tensor) -> Tensor:
        normalised: Tensor = state if self.norm is None else self.norm(state)
        return normalised
