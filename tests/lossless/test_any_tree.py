"""Any valid tree commits the same tokens as the empty tree, whatever its shape and wherever it happens to be right."""

from __future__ import annotations

from collections.abc import Sequence as Collection
from dataclasses import dataclass, field
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import VOCAB, tiny_target
from strategies import Nodes, nodes, path_to

from foredraft.drafters.base import BaseDrafter
from foredraft.engine.engine import Engine
from foredraft.testing import Answer, Ask, decode, decode_plainly, difference, mixed_asks
from foredraft.tree import TokenTree
from foredraft.types import Sequence

RIGHT = 2  # of the codes 0..3, those below this stand for the answer's token at the node's depth


@dataclass
class Replay(BaseDrafter):
    """Plays given trees in turn; their tokens are codes for right and wrong ones."""

    trees: list[Nodes]
    answers: dict[tuple[str, int], list[int]]
    turn: int = field(default=0, init=False)

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        rows = []
        for sequence in batch:
            codes, parents = self.trees[self.turn % len(self.trees)]
            self.turn += 1
            coming = self.answers[sequence.request_id, sequence.choice][sequence.output_length :]
            depths = [len(path_to((codes, parents), node)) for node in range(len(codes))]
            tokens = [
                coming[depth - 1] if code < RIGHT and depth <= len(coming) else (31 * code + 7 * node) % VOCAB
                for node, (code, depth) in enumerate(zip(codes, depths, strict=True))
            ]
            rows.append((tokens, parents))
        return TokenTree.from_nodes(rows).prune(budget)


@cache
def reference(family: str, temperature: float) -> tuple[list[Ask], list[Answer]]:
    asks = mixed_asks(VOCAB, temperature, max_tokens=12)
    return asks, decode_plainly(lambda: tiny_target(family, slots=1), asks)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
@settings(max_examples=20)
@given(
    trees=st.lists(nodes(vocab_size=4, max_nodes=9), min_size=1, max_size=5),
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
    chosen=st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True),
    max_batched_tokens=st.integers(3, 64),
)
def test_any_tree_commits_what_no_tree_commits(
    family: str, trees: list[Nodes], temperature: float, chosen: list[int], max_batched_tokens: int
) -> None:
    asks, plain = reference(family, temperature)
    answers = {
        (ask.name, index): choice.token_ids
        for ask, answer in zip(asks, plain, strict=True)
        for index, choice in enumerate(answer)
    }
    engine = Engine(
        tiny_target(family, slots=3),
        Replay(trees, answers),
        num_speculative_tokens=9,
        max_batched_tokens=max_batched_tokens,
    )
    found = decode(engine, [asks[index] for index in chosen], after_step=engine.check_integrity)
    for index, answer in zip(chosen, found, strict=True):
        assert difference(answer, plain[index]) is None
