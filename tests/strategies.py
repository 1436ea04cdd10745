"""Hypothesis strategies for draft trees, and what a tree means in plain Python."""

from __future__ import annotations

from hypothesis import strategies as st

Nodes = tuple[list[int], list[int]]


@st.composite
def nodes(draw: st.DrawFn, vocab_size: int = 8, max_nodes: int = 8) -> Nodes:
    """(tokens, parents) of one valid tree; a small vocabulary makes equal siblings and matches likely."""
    size = draw(st.integers(0, max_nodes))
    tokens = [draw(st.integers(0, vocab_size - 1)) for _ in range(size)]
    parents = [draw(st.integers(-1, node - 1)) for node in range(size)]
    return tokens, parents


def forests(vocab_size: int = 8, max_nodes: int = 8, max_rows: int = 4) -> st.SearchStrategy[list[Nodes]]:
    """A tree for each of one to `max_rows` rows."""
    return st.lists(nodes(vocab_size, max_nodes), min_size=1, max_size=max_rows)


def path_to(row: Nodes, node: int) -> list[int]:
    """Nodes from below the root down to `node`."""
    path: list[int] = []
    while node >= 0:
        path.insert(0, node)
        node = row[1][node]
    return path


def longest_accepted(row: Nodes, picks: list[int]) -> tuple[list[int], list[int]]:
    """The rule by the book, for one row: every node is tried on its own.

    picks[0] is the target's pick at the root, picks[1 + node] that at a node -> emitted tokens, accepted nodes
    """
    tokens, parents = row
    best: list[int] = []
    for node in range(len(tokens)):
        path = path_to(row, node)
        if all(tokens[step] == picks[1 + parents[step]] for step in path) and len(path) > len(best):
            best = path
    return [*(tokens[node] for node in best), picks[1 + best[-1]] if best else picks[0]], best
