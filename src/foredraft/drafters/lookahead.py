"""Lookahead decoding: the target guesses its own future in parallel, and phrases that it came up with are tried again.

Fu et al. 2024 (arXiv 2402.02057). A window of N - 1 rows and W columns holds Jacobi iterates: row r, column j is a
guess for the token r + j + 1 places after the last committed one, made from what stands above it on its diagonal. The
window travels in the draft tree: row 0 is a chain below the root, and every column hangs below its row 0 token. The
target's picks at the bottom become the next row, and the top row is dropped; each column with its new bottom is an
n-gram for the pool. The n-grams that start with the last committed token are the guesses, branches of the same tree.

Every step verifies W (N - 1) nodes that will hardly be accepted themselves. That is free where compute idles, and a
loss where a pass takes longer with every row, as on most CPUs.
"""

from __future__ import annotations

import random
from collections.abc import Sequence as Collection
from dataclasses import dataclass

from foredraft.drafters.base import BaseDrafter, Features
from foredraft.drafters.tree_shape import MOST_NODES
from foredraft.errors import ConfigError
from foredraft.tree import PAD, TokenTree
from foredraft.types import Sequence
from foredraft.verify import Verdict

__all__ = ["LookaheadDrafter"]


@dataclass(eq=False)
class LookaheadDrafter(BaseDrafter):
    """Raises ConfigError for sizes that make no sense. With a budget below W (N - 1) + G (N - 1) the window shrinks.

    num_speculative_tokens      most draft nodes per sequence and step
    lookahead_window            W, columns of the window
    lookahead_ngram             N, length of the n-grams in the pool
    lookahead_guesses           G, most guesses per step and n-grams kept for each first token
    lookahead_pool_from_prompt  whether the pool also gets the n-grams of the prompt and of the output
    """

    num_speculative_tokens: int = 32
    lookahead_window: int = 6
    lookahead_ngram: int = 4
    lookahead_guesses: int = 4
    lookahead_pool_from_prompt: bool = True

    def __post_init__(self) -> None:
        for name, least in (("lookahead_window", 1), ("lookahead_ngram", 2), ("lookahead_guesses", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; give at least {least}.")
        most = MOST_NODES // (self.lookahead_ngram - 1)
        if not most:
            raise ConfigError(f"lookahead_ngram is {self.lookahead_ngram}; give a number from 2 to {MOST_NODES + 1}.")
        for name in ("lookahead_window", "lookahead_guesses"):
            if getattr(self, name) > most:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}; give at most {most}, since with lookahead_ngram "
                    f"{self.lookahead_ngram} that makes the {MOST_NODES} draft tokens that a step can take."
                )
        self._states: dict[int, _Lookahead] = {}

    def begin(self, sequence: Sequence) -> None:
        self._states[sequence.id] = _Lookahead(self, sequence)

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        limits = [min(nodes, self.num_speculative_tokens) for nodes in budget]
        paths = [self._paths(sequence, limit) for sequence, limit in zip(batch, limits, strict=True)]
        return TokenTree.from_paths(paths).prune(limits)

    def commit(self, batch: Collection[Sequence], verdict: Verdict, features: Features) -> None:
        tree = features.tree
        columns = (verdict.lengths, tree.tokens, tree.parents, features.picks)
        for sequence, *row in zip(batch, *(column.tolist() for column in columns), strict=True):
            self._states[sequence.id].advance(sequence.tokens, *row)

    def end(self, sequence: Sequence) -> None:
        del self._states[sequence.id]

    def _paths(self, sequence: Sequence, budget: int) -> list[list[int]]:
        """Guesses, which get at least half of the budget, then the window's columns."""
        if not budget:
            return []
        state = self._states[sequence.id]
        if self.lookahead_pool_from_prompt:
            state.pool.read(sequence.tokens)
        columns = state.columns()
        rest = budget - min(budget // 2, len(columns) * len(state.rows))
        guesses = state.pool.guesses(sequence.tokens[-1])
        return guesses[: max(1, rest // (self.lookahead_ngram - 1))] + columns


class _Pool:
    """The latest `kept` distinct n-grams for each first token."""

    def __init__(self, size: int, kept: int) -> None:
        self._size = size
        self._kept = kept
        self._grams: dict[int, dict[tuple[int, ...], None]] = {}
        self._read = 0

    def add(self, gram: Collection[int]) -> None:
        """Remember an n-gram, as the latest."""
        grams = self._grams.setdefault(gram[0], {})
        rest = tuple(gram[1:])
        grams.pop(rest, None)
        grams[rest] = None
        if len(grams) > self._kept:
            del grams[next(iter(grams))]

    def read(self, text: list[int]) -> None:
        """Add the n-grams that are new in a growing text."""
        for start in range(self._read, len(text) - self._size + 1):
            self.add(text[start : start + self._size])
            self._read = start + 1

    def guesses(self, first: int) -> list[list[int]]:
        """What may follow `first`, latest first."""
        return [list(rest) for rest in reversed(self._grams.get(first, {}))]


class _Lookahead:
    """One sequence's pool and window; the window grows from one row of random tokens to N - 1 rows."""

    def __init__(self, config: LookaheadDrafter, sequence: Sequence) -> None:
        self.pool = _Pool(config.lookahead_ngram, config.lookahead_guesses)
        self._height = config.lookahead_ngram - 1
        self._source = random.Random(sequence.seed)
        self.rows = [self._source.choices(sequence.tokens, k=config.lookahead_window)]

    def columns(self) -> list[list[int]]:
        """Each column as a path from the root: along row 0 up to the column, then down."""
        top, *below = self.rows
        return [top[: column + 1] + [row[column] for row in below] for column in range(len(top))]

    def advance(self, text: list[int], emitted: int, tokens: list[int], parents: list[int], picks: list[int]) -> None:
        """The next iterate, from the target's picks below the columns; then move on by `emitted` tokens."""
        nodes = {(parent, token): node for node, (token, parent) in enumerate(zip(tokens, parents, strict=True))}
        bottom = [self._pick(column, nodes, picks) for column in self.columns()]
        if any(pick is not None for pick in bottom):
            if len(self.rows) == self._height:
                for column, pick in enumerate(bottom):
                    if pick is not None:
                        self.pool.add([*(row[column] for row in self.rows), pick])
                del self.rows[0]
                emitted -= 1  # row 1 was a guess for one place further
            self.rows.append([self._source.choice(text) if pick is None else pick for pick in bottom])
        self.rows = [row[emitted:] + self._source.choices(text, k=min(emitted, len(row))) for row in self.rows]

    def _pick(self, column: list[int], nodes: dict[tuple[int, int], int], picks: list[int]) -> int | None:
        """What the target picked at the column's last node; None if the budget cut the column off."""
        node: int | None = PAD
        for token in column:
            node = nodes.get((node, token)) if node is not None else None
        return None if node is None else picks[node + 1]
