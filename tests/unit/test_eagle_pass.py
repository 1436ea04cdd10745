"""An EAGLE head on the target's kernels computes what it computes in torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foredraft.drafters.eagle_pass import Group, KernelPass, TorchPass, described
from foredraft.heads.eagle import EagleHead, EagleShape
from foredraft.target.kernels.crew import Crew
from foredraft.target.kernels.embeddings import Embeddings
from foredraft.target.kernels.pairs import CompiledPairs, fits
from foredraft.target.kv_cache import CacheShape, KVCache
from foredraft.target.quantization import WeightFormat

H, HEADS, KV_HEADS, D, VOCAB = 64, 4, 2, 16, 50

THIRD: dict[str, Any] = {"generation": 3, "aux_layers": (0, 1, 2)}
FIRST: dict[str, Any] = {"generation": 1, "aux_layers": (-1,), "final_norm": False, "output": "target"}
HEADS_OF_ALL_KINDS = {
    "eagle3": THIRD,
    "eagle3 normed residual": {**THIRD, "norm_before_residual": True},
    "eagle3 biases and norms": {**THIRD, "qkv_bias": True, "qk_norm": True},
    "eagle3 with its own embedding": {**THIRD, "own_embedding": True},
    "eagle3 that ends in its own embedding": {**THIRD, "own_embedding": True, "output": "embedding"},
    "eagle": FIRST,
    "eagle normed": {**FIRST, "para_norm": True, "first_norm": True, "fc_bias": True},
}


def new_head(**fields: Any) -> EagleHead:
    torch.manual_seed(0)
    sizes = {"hidden": H, "target_hidden": H, "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": D, "intermediate": 96}
    head = EagleHead(EagleShape(**sizes, vocab_size=VOCAB, draft_vocab_size=VOCAB, **fields)).requires_grad_(False)
    for name, weight in head.named_parameters():
        if "norm" in name:
            weight.copy_(1 + 0.2 * torch.randn_like(weight))
    return head


def passes(head: EagleHead, weight_format: WeightFormat) -> tuple[TorchPass, KernelPass]:
    layer = described(head)
    assert layer is not None
    assert fits(layer)
    cache_dtype = torch.float32 if weight_format == "float32" else torch.bfloat16
    table = Embeddings(torch.randn(VOCAB, H, generator=torch.Generator().manual_seed(2)), weight_format)
    kernels = CompiledPairs(layer, table, weight_format, cache_dtype, Crew(2))
    return TorchPass(head, torch.float32, table.rows, target_head), KernelPass(kernels, head, target_head)


def target_head(states: torch.Tensor) -> torch.Tensor:
    return states @ torch.randn(H, VOCAB, generator=torch.Generator().manual_seed(3))


def tree_groups(stable: tuple[int, int]) -> list[list[Group]]:
    """Two slots read their texts; then one drafts a chain and the other a tree, two levels each."""
    texts = [Group(0, 0, stable[0], 0, 0, None), Group(1, stable[0], stable[1], 0, 0, None)]
    level = [Group(0, 0, 1, stable[0], 0, None), Group(1, 1, 3, stable[1], 0, torch.eye(3).bool())]
    below = torch.tensor([[1, 0, 0, 1, 0], [0, 0, 1, 0, 1]]).bool()
    return [texts, level, [Group(0, 0, 1, stable[0], 1, None), Group(1, 1, 2, stable[1], 3, below)]]


@pytest.mark.parametrize("kind", HEADS_OF_ALL_KINDS)
@pytest.mark.parametrize(("weight_format", "tolerance"), [("float32", 1e-4), ("bfloat16", 0.05), ("int8", 0.08)])
@torch.inference_mode()
def test_texts_and_trees(kind: str, weight_format: WeightFormat, tolerance: float) -> None:
    head = new_head(**HEADS_OF_ALL_KINDS[kind])
    stable = (70, 5)
    layout = CacheShape((KV_HEADS,), (D,), (D,))
    found = []
    for way in passes(head, weight_format):
        torch.manual_seed(1)
        cache = KVCache(layout, 2, way.cache_dtype)
        states, logits = [], []
        for groups in tree_groups(stable):
            rows = sum(group.rows for group in groups)
            positions = torch.cat([torch.arange(group.rows) + group.start for group in groups])
            states.append(way.run(torch.randint(VOCAB, (rows,)), torch.randn(rows, H), positions, groups, cache))
            logits.append(way.logits(states[-1]))
            for group in groups:
                if not group.stable:
                    cache.keep(group.slot, 0, range(group.rows), range(group.rows))
        found.append((torch.cat(states), torch.cat(logits)))
    for reference, own in zip(*found, strict=True):
        assert (own - reference).norm() < tolerance * reference.norm()


def test_an_output_layer_of_its_own_is_taken_over() -> None:
    own = new_head(**THIRD, own_embedding=True, output="embedding")
    layer = described(own)
    assert layer is not None
    assert own.embed_tokens is not None
    assert torch.equal(layer.output if layer.output is not None else torch.empty(0), own.embed_tokens.weight)
    of_the_target = described(new_head(**FIRST))
    assert of_the_target is not None
    assert of_the_target.output is None


@torch.inference_mode()
def test_branches_do_not_see_each_other() -> None:
    head = new_head(**THIRD)
    way = passes(head, "float32")[1]
    torch.manual_seed(1)
    tokens, features = torch.randint(VOCAB, (3,)), torch.randn(3, H)
    results = []
    for other in (features[1], 5 * features[1]):
        cache = KVCache(CacheShape((KV_HEADS,), (D,), (D,)), 1, torch.float32)
        rows = torch.stack([features[0], other, features[2]])
        group = Group(0, 0, 3, 0, 0, torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]]).bool())
        results.append(way.run(tokens, rows, torch.tensor([0, 1, 1]), [group], cache))
    assert torch.equal(results[0][[0, 2]], results[1][[0, 2]])
    assert not torch.equal(results[0][1], results[1][1])


def test_what_kernels_cannot_run_stays_in_torch() -> None:
    assert described(new_head(**THIRD, layers=2)) is None
    assert described(new_head(**THIRD, act="gelu")) is None
    layer = described(new_head(**THIRD).double())
    assert layer is not None
    assert not fits(layer)
