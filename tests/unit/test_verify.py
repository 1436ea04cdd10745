"""verify(): against trying every node by hand."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import Nodes, forests, longest_accepted

from foredraft.tree import TokenTree
from foredraft.verify import verify


@given(forests(vocab_size=3), st.data())
def test_verify_accepts_the_longest_path_of_picks(rows: list[Nodes], data: st.DataObject) -> None:
    tree = TokenTree.from_nodes(rows)
    picks = [[data.draw(st.integers(0, 2)) for _ in range(tree.width + 1)] for _ in rows]
    tokens, path, lengths = verify(tree, torch.tensor(picks))
    assert path.shape[1] == tokens.shape[1] - 1 == max(lengths.tolist()) - 1
    for b, row in enumerate(rows):
        emitted, accepted = longest_accepted(row, picks[b])
        length = len(emitted)
        assert lengths[b] == length
        assert tokens[b].tolist() == emitted + [-1] * (tokens.shape[1] - length)
        assert path[b].tolist() == accepted + [-1] * (path.shape[1] - length + 1)


def test_without_drafts_the_only_token_is_the_pick() -> None:
    verdict = verify(TokenTree.empty(3), torch.tensor([[4], [7], [1]]))
    assert verdict.tokens.tolist() == [[4], [7], [1]]
    assert verdict.path.shape == (3, 0)
    assert verdict.lengths.tolist() == [1, 1, 1]


def test_padding_never_matches_a_pick_of_a_row_that_is_full() -> None:
    tree = TokenTree.from_nodes([([5, 6], [-1, 0]), ([], [])])
    verdict = verify(tree, torch.tensor([[5, 6, 7], [9, -1, -1]]))
    assert verdict.tokens.tolist() == [[5, 6, 7], [9, -1, -1]]
    assert verdict.lengths.tolist() == [3, 1]
    assert verdict.path.tolist() == [[0, 1], [-1, -1]]
