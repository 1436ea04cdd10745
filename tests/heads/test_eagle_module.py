"""The modules themselves: attention by cache or at once, training, precision, sharing of the output layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from head_references import rms
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from foredraft.heads.chains import ChainAttention
from foredraft.heads.eagle import EagleHead, EagleShape
from foredraft.heads.rotary import rotary_frequencies, rotate

SHAPE = EagleShape(3, 16, 16, 4, 2, 4, 24, 40, 40, (1, 2, 3), layers=2)


class OneByOne:
    """Keys and values in lists, as a decoder's cache has them: one row a call."""

    def __init__(self) -> None:
        self.keys: dict[int, list[Tensor]] = {}
        self.values: dict[int, list[Tensor]] = {}

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.keys.setdefault(layer, []).append(key[0])
        self.values.setdefault(layer, []).append(value[0])
        keys, values = torch.stack(self.keys[layer]), torch.stack(self.values[layer])
        groups = query.shape[1] // key.shape[1]
        mixed = torch.nn.functional.scaled_dot_product_attention(
            query[0].unsqueeze(1),
            keys.transpose(0, 1).repeat_interleave(groups, 0),
            values.transpose(0, 1).repeat_interleave(groups, 0),
        )
        return mixed.transpose(0, 1)


def seeded(shape: EagleShape) -> EagleHead:
    torch.manual_seed(6)
    head = EagleHead(shape).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, 0.3)
    return head


@pytest.mark.parametrize("generation", [1, 3])
@torch.no_grad()
def test_step_by_step_and_all_at_once(generation: Any) -> None:
    head = seeded(replace(SHAPE, generation=generation, aux_layers=(-1,) if generation == 1 else (1, 2, 3)))
    embedding, feature = torch.randn(2, 7, 16, dtype=torch.float64)
    at_once = head.step(embedding, feature, torch.arange(3, 10), ChainAttention())
    attend = OneByOne()
    singly = [head.step(embedding[t : t + 1], feature[t : t + 1], torch.tensor([3 + t]), attend) for t in range(7)]
    torch.testing.assert_close(at_once, torch.cat(singly))


@torch.no_grad()
def test_chain_attention_is_each_row_drafting_alone() -> None:
    """What training and the self-test compute for depth 3 at once is what row-by-row drafting computes."""
    head = seeded(SHAPE)
    embedding, feature = torch.randn(2, 6, 16, dtype=torch.float64)
    attend = ChainAttention()
    state = head.step(embedding, feature, torch.arange(6), attend)
    for depth in (1, 2):
        rows = 6 - depth
        state = head.step(embedding[depth:], head.feedback(state)[:rows], torch.arange(depth, 6), attend)
    for row in range(4):
        cache = OneByOne()
        for t in range(row + 1):
            alone = head.step(embedding[t : t + 1], feature[t : t + 1], torch.tensor([t]), cache)
        for depth in (1, 2):
            place = row + depth
            alone = head.step(embedding[place : place + 1], head.feedback(alone), torch.tensor([place]), cache)
        torch.testing.assert_close(state[row], alone[0])


@torch.no_grad()
def test_batches() -> None:
    head = seeded(replace(SHAPE, fc_norm=True, qk_norm=True))
    embedding = torch.randn(2, 5, 16, dtype=torch.float64)
    features = head.fuse(torch.randn(2, 5, 3, 16, dtype=torch.float64))
    together = head.step(embedding, features, torch.arange(5).expand(2, 5), ChainAttention())
    for row in range(2):
        alone = head.step(embedding[row], features[row], torch.arange(5), ChainAttention())
        torch.testing.assert_close(together[row], alone)
    assert head.logits(together).shape == (2, 5, 40)


def test_every_weight_learns() -> None:
    head = seeded(replace(SHAPE, fc_norm=True, norm_before_fc=True, qk_norm=True, own_embedding=True, norm_output=True))
    embedding = head.embed(torch.arange(5), lambda ids: ids)
    state = head.step(embedding, head.fuse(torch.randn(5, 3, 16).double()), torch.arange(5), ChainAttention())
    head.logits(state).square().sum().backward()  # type: ignore[no-untyped-call]
    silent = [name for name, weight in head.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert silent == []


def test_bfloat16_keeps_its_positions() -> None:
    """Rotary angles of a head cast to bfloat16 are still those of float32: at position 4000 bfloat16 ones are noise."""
    head = EagleHead(SHAPE)
    before = head.layers[0].self_attn.frequencies
    head.to(torch.bfloat16)
    assert head.layers[0].self_attn.frequencies.dtype == torch.float32
    assert torch.equal(head.layers[0].self_attn.frequencies, before)


@pytest.mark.parametrize(
    "scaling",
    [
        None,
        {"rope_type": "linear", "factor": 4.0},
        {"type": "linear", "factor": 4.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    ],
)
def test_rotation_is_that_of_transformers(scaling: dict[str, Any] | None) -> None:
    parameters = {"rope_type": "default", **(scaling or {})}
    parameters["rope_type"] = parameters.pop("type", parameters["rope_type"])
    config = LlamaConfig(
        hidden_size=16,
        num_attention_heads=2,
        max_position_embeddings=256,
        rope_parameters={**parameters, "rope_theta": 5e4},
    )
    positions = torch.tensor([0, 1, 17, 250])
    heads = torch.randn(4, 2, 8)
    cosine, sine = LlamaRotaryEmbedding(config)(heads, positions.unsqueeze(0))
    expected, _ = apply_rotary_pos_emb(heads.unsqueeze(0), heads.unsqueeze(0), cosine, sine, unsqueeze_dim=2)
    got = rotate(heads, positions, *rotary_frequencies(8, 5e4, scaling, 256))
    torch.testing.assert_close(got, expected[0])


def test_logits_through_the_targets_output_layer() -> None:
    ids = torch.tensor([1, 5, 30])
    head = EagleHead(replace(SHAPE, draft_vocab_size=3, output="target", norm_output=True), ids).double()
    output = torch.randn(40, 16, dtype=torch.float64)
    state = torch.randn(2, 16, dtype=torch.float64)
    assert head.norm is not None
    normed = torch.stack([rms(row, head.norm.weight) for row in state])
    torch.testing.assert_close(head.logits(state, lambda x: x @ output.T), (normed @ output.T)[:, ids])
    assert head.draft_mask is not None
    assert head.draft_index is not None
    assert head.draft_mask.nonzero().flatten().tolist() == [1, 5, 30]
    assert head.draft_index[ids].tolist() == [0, 1, 2]
