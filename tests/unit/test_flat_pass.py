"""Segments: masks and depths by definition; and whole passes: a node's logits are those of its path in a row."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import VOCAB, tiny_target
from strategies import Nodes, forests, nodes, path_to

from foredraft.target.flat_pass import Segment
from foredraft.tree import TokenTree
from foredraft.types import Batch, Chunk, SamplingParams, Sequence


@given(nodes(), st.integers(1, 4))
def test_mask_and_depths_follow_the_parents(row: Nodes, chain: int) -> None:
    segment = Segment(0, 7, 0, chain, tuple(chain + parent for parent in row[1]))
    assert segment.rows == chain + len(row[0])
    depths, mask = segment.depths(), segment.mask()
    for at in range(segment.rows):
        seen = list(range(at + 1)) if at < chain else [*range(chain), *(chain + n for n in path_to(row, at - chain))]
        assert mask[at].nonzero().flatten().tolist() == seen
        assert depths[at] == len(seen) - 1
    assert segment.is_chain == (row[1] == list(range(-1, len(row[1]) - 1)))


def sequence_of(slot: int, tokens: list[int], cached: int) -> Sequence:
    return Sequence(slot, SamplingParams(), tokens, len(tokens), 0, slot=slot, cached=cached)


def plain_logits(tokens: list[int]) -> torch.Tensor:
    """Logits of the last token of a sequence, computed in one chunk."""
    target = tiny_target(slots=1)
    claimed = target.cache.claim(tokens)
    assert claimed == (0, 0)
    batch = Batch((Chunk(sequence_of(0, tokens, 0), len(tokens)),))
    return target.forward(batch, TokenTree.empty(1)).logits[0]


@settings(max_examples=15)
@given(forests(vocab_size=VOCAB, max_nodes=6, max_rows=3), st.data())
def test_every_node_of_a_ragged_pass_sees_its_path_and_nothing_else(rows: list[Nodes], data: st.DataObject) -> None:
    """Each row: some tokens cached by an earlier pass, some pending, then a tree; all rows share one pass."""
    target = tiny_target(slots=len(rows))
    chunks = []
    for slot in range(len(rows)):
        tokens = data.draw(st.lists(st.integers(3, VOCAB - 1), min_size=1, max_size=12))
        cached = data.draw(st.integers(0, len(tokens) - 1))
        target.cache.claim(tokens)
        sequence = sequence_of(slot, tokens, 0)
        if cached:
            first = Batch((Chunk(sequence, cached),))
            target.forward(first, TokenTree.empty(0))
            sequence.cached = cached
        chunks.append(Chunk(sequence, len(tokens) - cached))
    output = target.forward(Batch(tuple(chunks)), TokenTree.from_nodes(rows))
    logits = iter(output.logits)
    for chunk, row in zip(chunks, rows, strict=True):
        for node in range(-1, len(row[0])):
            path = [row[0][step] for step in path_to(row, node)]
            assert torch.allclose(next(logits), plain_logits(chunk.sequence.tokens + path), atol=1e-6)


def test_a_pass_without_roots_has_no_logits() -> None:
    target = tiny_target(slots=1)
    target.cache.claim([4, 5, 6])
    output = target.forward(Batch((Chunk(sequence_of(0, [4, 5, 6], 0), 2),)), TokenTree.empty(0))
    assert output.logits.shape == (0, VOCAB)
    assert output.flat.rows == 2
    assert output.flat.cached_tokens == 0
