"""TokenTree: derived properties against definitions, construction, pruning, validation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import Nodes, forests, path_to

from foredraft.errors import ForedraftError
from foredraft.tree import TokenTree


def rows_of_tree(tree: TokenTree) -> list[Nodes]:
    """Back to (tokens, parents) without padding."""
    return [
        (tokens[:size], parents[:size])
        for tokens, parents, size in zip(tree.tokens.tolist(), tree.parents.tolist(), tree.sizes, strict=True)
    ]


@given(forests())
def test_sizes_and_depths_are_those_of_the_parent_pointers(rows: list[Nodes]) -> None:
    tree = TokenTree.from_nodes(rows)
    assert tree.batch == len(rows)
    assert tree.width == max(len(tokens) for tokens, _ in rows)
    assert rows_of_tree(tree) == rows
    for b, row in enumerate(rows):
        for node in range(tree.width):
            path = path_to(row, node) if node < len(row[0]) else []
            assert int(tree.depths[b, node]) == len(path)


@given(forests(), st.data())
def test_pruning_keeps_the_first_nodes_of_each_row(rows: list[Nodes], data: st.DataObject) -> None:
    budget = [data.draw(st.integers(0, 10)) for _ in rows]
    pruned = TokenTree.from_nodes(rows).prune(budget)
    assert rows_of_tree(pruned) == [
        (tokens[:limit], parents[:limit]) for (tokens, parents), limit in zip(rows, budget, strict=True)
    ]
    pruned.validate(pruned.batch, 8)


@given(forests(), st.data())
def test_a_subtree_keeps_tokens_scores_and_paths(rows: list[Nodes], data: st.DataObject) -> None:
    scores = [[data.draw(st.floats(0, 1, width=16)) for _ in tokens] for tokens, _ in rows]
    kept: list[list[int]] = []
    for tokens, parents in rows:
        kept.append([])
        for node in range(len(tokens)):
            if (parents[node] < 0 or parents[node] in kept[-1]) and data.draw(st.booleans()):
                kept[-1].append(node)
    tree = TokenTree.from_nodes(rows, scores)
    smaller = tree.subtree([list(reversed(nodes)) for nodes in kept])
    TokenTree(smaller.tokens, smaller.parents).validate(smaller.batch, 8)  # the drawn scores are no likelihoods
    assert smaller.scores is not None
    for b, (row, new) in enumerate(zip(rows, rows_of_tree(smaller), strict=True)):
        for index, node in enumerate(kept[b]):
            assert [kept[b][step] for step in path_to(new, index)] == path_to(row, node)
            assert new[0][index] == row[0][node]
            assert smaller.scores[b, index] == scores[b][node]
        assert len(new[0]) == len(kept[b])
        assert smaller.scores[b, len(kept[b]) :].eq(0).all()
    pruned = tree.prune([2] * len(rows)).scores
    assert pruned is not None
    assert all(pruned[b].tolist()[: len(own[:2])] == own[:2] for b, own in enumerate(scores))


@given(st.lists(st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=5), min_size=1, max_size=3))
def test_from_paths_holds_every_prefix_of_every_path_exactly_once(rows: list[list[list[int]]]) -> None:
    tree = TokenTree.from_paths(rows)
    tree.validate(tree.batch, 4)
    for row, paths in zip(rows_of_tree(tree), rows, strict=True):
        spelled = [tuple(row[0][step] for step in path_to(row, node)) for node in range(len(row[0]))]
        wanted = dict.fromkeys(tuple(path[:end]) for path in paths for end in range(1, len(path) + 1))
        assert spelled == list(wanted)  # in order of first appearance


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=4))
def test_a_chain_is_the_tree_of_its_only_path(drafts: list[list[int]]) -> None:
    chain, tree = TokenTree.chain(drafts), TokenTree.from_paths([[draft] for draft in drafts])
    assert torch.equal(chain.tokens, tree.tokens)
    assert torch.equal(chain.parents, tree.parents)


def test_the_empty_tree_has_a_row_for_everyone_and_no_nodes() -> None:
    tree = TokenTree.empty(3)
    assert (tree.batch, tree.width, tree.sizes) == (3, 0, [0, 0, 0])
    assert TokenTree.chain([[], []]).width == 0
    assert TokenTree.from_nodes([]).batch == 0
    tree.validate(tree.batch, 1)


@pytest.mark.parametrize(
    ("tokens", "parents", "complaint"),
    [
        ([5, 8], [-1, 0], "token 8"),  # not in the vocabulary
        ([5, -1, 3], [-1, -1, 0], "token -1"),  # a hole
        ([5, 3], [-1, 1], "parent 1"),  # its own parent
        ([5, 3], [1, -1], "parent 1"),  # a parent that comes later
        ([5, 3], [-2, 0], "parent -2"),
    ],
)
def test_validate_names_row_and_node_of_a_fault(tokens: list[int], parents: list[int], complaint: str) -> None:
    good = ([1, 2, 3][: len(tokens)], [-1, 0, 1][: len(tokens)])
    tree = TokenTree(torch.tensor([good[0], tokens]), torch.tensor([good[1], parents]))
    with pytest.raises(ForedraftError, match=f"row 1 has {complaint};"):
        tree.validate(tree.batch, 8)


def test_validate_refuses_shapes_that_differ() -> None:
    with pytest.raises(ForedraftError, match=r"\[B, N\]"):
        TokenTree(torch.zeros((1, 2), dtype=torch.int64), torch.zeros((1, 3), dtype=torch.int64)).validate(1, 8)


@pytest.mark.parametrize("score", [-1.0, -torch.inf, torch.nan, torch.inf, 1.5])
@pytest.mark.parametrize("node", [0, 1, 2])
def test_validate_refuses_scores_that_are_no_probabilities(score: float, node: int) -> None:
    """Node 2 is padding, whose scores are summed with the others."""
    tree = TokenTree.from_nodes([([1, 2, 3], [-1, 0, 1]), ([1, 2], [-1, 0])], [[0.5, 0.5, 0.5], [0.5, 0.5]])
    tree.validate(2, 8)
    assert tree.scores is not None
    tree.scores[1, node] = score
    with pytest.raises(ForedraftError, match=f"Node {node} of draft row 1 has score {score:g}; a score is a probab"):
        tree.validate(2, 8)


def test_validate_refuses_scores_of_another_shape() -> None:
    tree = TokenTree.chain([[1, 2], [3, 4]])
    for shape in ((2,), (1, 2), (2, 1), (2, 3)):
        with pytest.raises(ForedraftError, match=r"scores \(.*both must be \[B, N\]"):
            TokenTree(tree.tokens, tree.parents, torch.ones(shape)).validate(2, 8)
