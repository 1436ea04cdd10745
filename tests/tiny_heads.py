"""Tiny drafting heads: random ones, and ones that copy their target."""

from __future__ import annotations

import tempfile
from functools import cache
from typing import Any

import torch
from models import EOS, VOCAB, tiny_model

from foredraft.heads.eagle import EagleHead, EagleShape
from foredraft.heads.medusa import MedusaHeads, MedusaShape
from foredraft.heads.write import write_head
from foredraft.target.kv_cache import KVCache
from foredraft.target.stock_decoder import StockDecoder
from foredraft.target.target import Target

REDUCED = 40
EMBEDDING_SIZE = 0.35


def eagle_head(generation: int, *, seed: int = 0, reduced: bool = False, **changes: Any) -> EagleHead:
    """A random head for the tiny models."""
    shape: dict[str, Any] = {
        "generation": generation,
        "hidden": 32,
        "target_hidden": 32,
        "heads": 2,
        "kv_heads": 2,
        "head_dim": 16,  # what kernels take, too
        "intermediate": 48,
        "vocab_size": VOCAB,
        "draft_vocab_size": REDUCED if reduced else VOCAB,
        "aux_layers": (-1,) if generation == 1 else (0, 1, 1),
        "final_norm": generation == 3,
        "output": "own" if generation == 3 or reduced else "target",
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        ids = torch.randperm(VOCAB)[:REDUCED].sort().values if reduced else None
        return EagleHead(EagleShape(**{**shape, **changes}), ids).double().requires_grad_(False)


def medusa_heads(*, seed: int = 0, reduced: bool = False, **changes: Any) -> MedusaHeads:
    """Random heads for the tiny models."""
    shape: dict[str, Any] = {
        "heads": 3,
        "hidden": 32,
        "vocab_size": VOCAB,
        "draft_vocab_size": REDUCED if reduced else VOCAB,
        "output": "own" if reduced else "target",
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        ids = torch.randperm(VOCAB)[:REDUCED].sort().values if reduced else None
        heads = MedusaHeads(MedusaShape(**{**shape, **changes}), ids).double()
        for parameter in heads.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
    return heads.requires_grad_(False)


@cache
def head_folder(method: str) -> str:
    """A checkpoint of a random head; it is there as long as the tests run."""
    folder = tempfile.TemporaryDirectory(prefix=f"{method}-")
    KEPT.append(folder)
    head = medusa_heads() if method == "medusa" else eagle_head(1 if method == "eagle" else 3)
    return str(write_head(head.float(), folder.name))


KEPT: list[tempfile.TemporaryDirectory[str]] = []


def shallow_target(*, slots: int = 4, max_model_len: int = 256, attention: bool = True) -> Target:
    """A target of one layer, whose embeddings all have the same norm; without attention, a token alone decides what
    follows it.
    """
    decoder = _shallow_decoder(attention)
    cache = KVCache(decoder.cache_shape, slots, decoder.cache_dtype)
    return Target(decoder, cache, "tiny-shallow", max_model_len, eos_token_ids=(EOS,))


@cache
def _shallow_decoder(attention: bool) -> StockDecoder:
    model: Any = tiny_model(layers=1, seed=31 + attention)
    table = model.get_input_embeddings().weight.data
    table *= EMBEDDING_SIZE / table.square().mean(dim=1, keepdim=True).sqrt()
    model.model.layers[0].self_attn.o_proj.weight.data *= 0.4 if attention else 0.0
    return StockDecoder(model)


def copied_head(generation: int, *, wear: float = 0.0, **changes: Any) -> EagleHead:
    """The layer, the final norm and the output layer of `shallow_target` as a head: all that it lacks is the first
    token of a text, whose embedding no row reads. `wear` adds noise to its weights.

    EAGLE-1: the layer, with the embedding for its input. EAGLE-3: a first layer that attends to its own row only, whose
    value is the embedding, and then that layer.
    """
    model: Any = _shallow_decoder(True).model
    copied: dict[str, Any] = {"final_norm": True, "max_positions": 256, "epsilon": model.config.rms_norm_eps, **changes}
    copied |= {"heads": 4, "kv_heads": 2 if generation == 1 else 4, "head_dim": 8}
    if generation == 1:
        head = eagle_head(1, first_norm=True, **copied)
        head.fc.weight.copy_(torch.cat([torch.eye(32), torch.zeros(32, 32)], dim=1))
        own: Any = head.layers[0]
    else:
        head = eagle_head(3, layers=2, qkv_bias=True, output="target", aux_layers=(0, 0, 0), **copied)
        first: Any = head.layers[0]
        for parameter in (head.fc.weight, *first.self_attn.parameters(), first.mlp.down_proj.weight):
            parameter.zero_()
        first.self_attn.q_proj.bias.fill_(10.0)  # rotated, equal vectors are closest at the same position
        first.self_attn.k_proj.bias.fill_(10.0)
        first.self_attn.v_proj.weight[:, :32] = torch.eye(32)
        first.self_attn.o_proj.weight.copy_(EMBEDDING_SIZE * torch.eye(32))
        own = head.layers[1]
        for parameter in own.parameters():
            parameter.zero_()
    for name, tensor in model.model.layers[0].state_dict().items():
        if generation == 3 and ("k_proj" in name or "v_proj" in name):  # one key head for each query head here
            tensor = tensor.view(2, 8, 32).repeat_interleave(2, dim=0).flatten(0, 1)
        own.get_parameter(name).copy_(tensor)
    assert head.norm is not None
    head.norm.load_state_dict(model.model.norm.state_dict())
    source = torch.Generator().manual_seed(3)
    for parameter in own.parameters():
        if wear and parameter.dim() > 1:
            parameter += wear * parameter.std() * torch.randn(parameter.shape, generator=source, dtype=torch.float64)
    return head


def cycle(start: int) -> list[int]:
    """The tokens that the shallow target without attention repeats for ever after `start`, in order."""
    decoder = _shallow_decoder(False)
    model: Any = decoder.model
    table = model.get_input_embeddings().weight
    following = decoder.head(_states(table)).argmax(dim=-1).tolist()
    seen: list[int] = []
    while start not in seen:
        seen.append(start)
        start = following[start]
    return seen[seen.index(start) :]


def reciting_heads(tokens: list[int], count: int = 3) -> MedusaHeads:
    """Heads that know a cycle of the shallow target without attention by heart: states are told apart by their own
    direction, and each points to the token so many places on.
    """
    decoder = _shallow_decoder(False)
    model: Any = decoder.model
    states = _states(model.get_input_embeddings().weight)
    heads = medusa_heads(heads=count, output="own")
    for parameter in heads.parameters():
        parameter.zero_()
    assert heads.lm_heads is not None
    for head, layer in enumerate(heads.lm_heads):
        for place, token in enumerate(tokens):
            layer.weight[tokens[(place + 2 + head) % len(tokens)]] = states[token]
    return heads


def _states(embeddings: torch.Tensor) -> torch.Tensor:
    """[V, H] the shallow target's last hidden state after each token, if attention plays no part."""
    model: Any = _shallow_decoder(False).model
    layer = model.model.layers[0]
    states = embeddings + layer.mlp(layer.post_attention_layernorm(embeddings))
    normed: torch.Tensor = model.model.norm(states)
    return normed
