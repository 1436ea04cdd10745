"""Reference forward passes of the drafting heads, written from the papers over a file's own tensors: row by row and
head by head, with nothing of foredraft in them."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def rms(x: Tensor, weight: Tensor, epsilon: float = 1e-6) -> Tensor:
    return x / torch.sqrt((x * x).mean() + epsilon) * weight


def turned(x: Tensor, position: int, theta: float = 10000.0, factor: float = 1.0) -> Tensor:
    """One head's query or key [D] at a position; pair (i, i + D/2) turns by position / (factor theta^(2i/D))."""
    size = len(x)
    out = x.clone()
    for i in range(size // 2):
        angle = position / factor * torch.tensor(theta ** (-2 * i / size), dtype=torch.float32).item()
        a, b = x[i], x[i + size // 2]
        out[i] = a * math.cos(angle) - b * math.sin(angle)
        out[i + size // 2] = b * math.cos(angle) + a * math.sin(angle)
    return out


def llama_layer(
    weights: dict[str, Tensor],
    prefix: str,
    attention_input: Tensor,
    residual: Tensor,
    positions: list[int],
    heads: int,
    kv_heads: int,
    theta: float = 10000.0,
    factor: float = 1.0,
) -> Tensor:
    """[T, K] normalised attention input and [T, H] residual -> [T, H]; causal."""

    def project(name: str, x: Tensor) -> Tensor:
        bias = weights.get(f"{prefix}{name}.bias")
        product = weights[f"{prefix}{name}.weight"] @ x
        return product if bias is None else product + bias

    def split(name: str, x: Tensor, count: int, norm: str) -> list[Tensor]:
        parts = list(project(name, x).view(count, -1))
        scale = weights.get(f"{prefix}self_attn.{norm}.weight")
        return parts if scale is None else [rms(part, scale) for part in parts]

    keys, values, out = [], [], []
    for row, position in enumerate(positions):
        x = attention_input[row]
        queries = split("self_attn.q_proj", x, heads, "q_norm")
        keys.append([turned(k, position, theta, factor) for k in split("self_attn.k_proj", x, kv_heads, "k_norm")])
        values.append(list(project("self_attn.v_proj", x).view(kv_heads, -1)))
        mixed = []
        for head in range(heads):
            group = head // (heads // kv_heads)
            query = turned(queries[head], position, theta, factor)
            scores = torch.stack([query @ key[group] / math.sqrt(len(query)) for key in keys])
            share = torch.softmax(scores, dim=0)
            mixed.append(sum(share[i] * values[i][group] for i in range(row + 1)))
        state = residual[row] + project("self_attn.o_proj", torch.cat(mixed))
        x = rms(state, weights[f"{prefix}post_attention_layernorm.weight"])
        gate, up = project("mlp.gate_proj", x), project("mlp.up_proj", x)
        out.append(state + project("mlp.down_proj", gate * torch.sigmoid(gate) * up))
    return torch.stack(out)


def eagle1(
    weights: dict[str, Tensor], embeddings: Tensor, features: Tensor, positions: list[int], **shape: int
) -> Tensor:
    """EAGLE-1 (and HASS, if its norms are there): the predicted next features [T, H]."""
    rows = []
    for embedding, feature in zip(embeddings, features, strict=True):
        if "embedding_layernorm.weight" in weights:
            embedding = rms(embedding, weights["embedding_layernorm.weight"])
            feature = rms(feature, weights["hidden_states_layernorm.weight"])
        row = weights["fc.weight"] @ torch.cat([embedding, feature])
        rows.append(row + weights["fc.bias"] if "fc.bias" in weights else row)
    x = torch.stack(rows)
    return llama_layer(weights, "layers.0.", x, x, positions, **shape)  # the first layer has no norm at its entry


def eagle3(
    weights: dict[str, Tensor],
    embeddings: Tensor,
    taps: Tensor,
    positions: list[int],
    *,
    layer: str = "midlayer.",
    norm_before_residual: bool = False,
    theta: float = 10000.0,
    factor: float = 1.0,
    **shape: int,
) -> tuple[Tensor, Tensor]:
    """EAGLE-3: taps [T, taps, Ht] -> states before the norm [T, H] and logits [T, Vd]."""
    features = []
    for row in taps:
        parts = [
            rms(part, weights[f"fc_norm.{i}.weight"]) if "fc_norm.0.weight" in weights else part
            for i, part in enumerate(row)
        ]
        joined = torch.cat(parts)
        joined = rms(joined, weights["input_norm.weight"]) if "input_norm.weight" in weights else joined
        features.append(weights["fc.weight"] @ joined)
    normed = torch.stack([rms(feature, weights[f"{layer}hidden_norm.weight"]) for feature in features])
    before = torch.stack([rms(e, weights[f"{layer}input_layernorm.weight"]) for e in embeddings])
    residual = normed if norm_before_residual else torch.stack(features)
    pairs = torch.cat([before, normed], dim=1)
    states = llama_layer(weights, layer, pairs, residual, positions, theta=theta, factor=factor, **shape)
    logits = [weights["lm_head.weight"] @ rms(state, weights["norm.weight"]) for state in states]
    return states, torch.stack(logits)


def medusa(block: list[tuple[Tensor, Tensor | None]], output: Tensor, hidden: Tensor) -> Tensor:
    """One head: residual blocks (weight, bias), then the output layer; hidden [T, H] -> [T, V]."""
    rows = []
    for x in hidden:
        for weight, bias in block:
            y = weight @ x
            y = y if bias is None else y + bias
            x = x + y * torch.sigmoid(y)
        rows.append(output @ x)
    return torch.stack(rows)
