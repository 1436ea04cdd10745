"""Token Recycling: what the target found likely after a token the last time is a good guess the next time.

Luo et al. 2024 (arXiv 2408.08696) keep, for every token of the vocabulary, the candidates that the target ranked
highest when it last saw that token, in accepted and rejected drafts alike, and read a tree off this table without any
model. Here a second, smaller table is keyed by pairs of tokens and asked first, which is right far more often. The
paper's tree has one static shape; this one is grown best-first from the acceptance that each rank has had so far. The
tables are shared by all requests: they warm up over the first few hundred tokens.
"""

from __future__ import annotations

from collections.abc import Sequence as Collection
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from foredraft.drafters.base import BaseDrafter, Features, Wants
from foredraft.drafters.hit_rates import HitRates
from foredraft.drafters.proposals import Draft, Proposals, tree_of
from foredraft.errors import ConfigError
from foredraft.tree import TokenTree
from foredraft.types import Sequence
from foredraft.verify import Verdict

if TYPE_CHECKING:
    from foredraft.target.target import Target

__all__ = ["RecyclingDrafter"]

EMPTY = -1


@dataclass(eq=False)
class RecyclingDrafter(BaseDrafter):
    """Raises ConfigError for values that make no sense.

    num_speculative_tokens    most draft nodes per sequence and step
    recycling_candidates      k, the candidates kept per token; the table takes 4 k bytes per token of the vocabulary
    recycling_pair_bits       the pair table has 2^this entries of 4 k + 8 bytes
    recycling_min_token_prob  nodes with a lower score are not drafted
    recycling_from_prompt     whether what follows a token in the prompt becomes its first candidate
    """

    num_speculative_tokens: int = 24
    recycling_candidates: int = 8
    recycling_pair_bits: int = 13
    recycling_min_token_prob: float = 0.05
    recycling_from_prompt: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.recycling_candidates <= 64:
            raise ConfigError(f"recycling_candidates is {self.recycling_candidates}; give a number from 1 to 64.")
        if not 0 <= self.recycling_pair_bits <= 24:
            raise ConfigError(f"recycling_pair_bits is {self.recycling_pair_bits}; give a number from 0 to 24.")
        if not 0 < self.recycling_min_token_prob <= 1:
            raise ConfigError(
                f"recycling_min_token_prob is {self.recycling_min_token_prob}; give a number above 0, up to 1."
            )
        # Kinds of guesses: rank r in the table of tokens, then rank r in the table of pairs.
        ranks = range(self.recycling_candidates)
        prior = [0.3 * 0.35**rank for rank in ranks] + [0.6 * 0.2**rank for rank in ranks]
        self._proposals = Proposals(HitRates(prior))

    @property
    def wants(self) -> Wants:
        return Wants(candidates=self.recycling_candidates)

    @property
    def nbytes(self) -> int:
        """Memory of both tables."""
        return sum(table.nbytes for table in (self._by_token, self._by_pair, self._pairs))

    def bind(self, target: Target) -> None:
        self._vocab_size = target.vocab_size
        self._by_token = np.full((target.vocab_size, self.recycling_candidates), EMPTY, dtype=np.int32)
        self._by_pair = np.full((1 << self.recycling_pair_bits, self.recycling_candidates), EMPTY, dtype=np.int32)
        self._pairs = np.full(1 << self.recycling_pair_bits, EMPTY, dtype=np.int64)

    def begin(self, sequence: Sequence) -> None:
        if not self.recycling_from_prompt:
            return
        tokens = np.array(sequence.tokens, dtype=np.int64)
        first, second = tokens[:-1], tokens[1:]
        self._by_token[first] = np.column_stack([second, self._by_token[first, :-1]])

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        return tree_of([self._draft(sequence, nodes) for sequence, nodes in zip(batch, budget, strict=True)])

    def commit(self, batch: Collection[Sequence], verdict: Verdict, features: Features) -> None:
        befores: list[int] = []
        tokens: list[int] = []
        candidates = []
        columns = (verdict.lengths.tolist(), features.tree.tokens.tolist(), features.tree.parents.tolist())
        for row, (sequence, emitted, nodes, parents) in enumerate(zip(batch, *columns, strict=True)):
            self._proposals.judge(sequence)
            if sequence.finish_reason is None and features.candidates is not None:
                root = len(sequence.tokens) - emitted - 1
                seen = [sequence.tokens[root], *(token for token in nodes if token >= 0)]
                befores.append(sequence.tokens[max(root - 1, 0)])
                befores += [seen[parent + 1] for parent in parents[: len(seen) - 1]]
                tokens += seen
                candidates.append(features.candidates[row, : len(seen)])
        if candidates:
            self._learn(np.array(befores), np.array(tokens), torch.cat(candidates).cpu().numpy())

    def end(self, sequence: Sequence) -> None:
        self._proposals.drop(sequence)

    def _learn(self, befores: NDArray[np.int64], tokens: NDArray[np.int64], candidates: NDArray[np.int64]) -> None:
        pairs = befores * self._vocab_size + tokens
        slots = self._slots(pairs)
        self._by_token[tokens] = candidates
        self._by_pair[slots] = candidates
        self._pairs[slots] = pairs

    def _slots(self, pairs: NDArray[np.int64]) -> NDArray[np.uint64]:
        hashed = pairs.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return (hashed >> np.uint64(40)) & np.uint64(len(self._pairs) - 1)

    def _candidates(self, before: int, token: int) -> tuple[list[int], int]:
        """The guesses after `token`, and the kind of the first of them."""
        pair = before * self._vocab_size + token
        slot = (pair * 0x9E3779B97F4A7C15 >> 40) & (len(self._pairs) - 1)
        if self._pairs[slot] == pair:
            return self._by_pair[slot].tolist(), self.recycling_candidates
        return self._by_token[token].tolist(), 0

    def _draft(self, sequence: Sequence, budget: int) -> Draft:
        """Best-first: the likeliest node not in the tree yet is either the next rank beside one or the first below
        it.
        """
        budget = min(budget, self.num_speculative_tokens)
        rates = self._proposals.rates.tolist()
        k = self.recycling_candidates
        ranking = {base: sorted(range(k), key=lambda rank: rates[base + rank], reverse=True) for base in (0, k)}
        draft, kinds = Draft([], [], []), []
        waiting: list[tuple[float, int, int, float, list[int], int, int]] = []

        def offer(parent: int, reach: float, guesses: list[int], base: int, place: int) -> None:
            if place < k:
                score = reach * rates[base + ranking[base][place]]
                if score >= self.recycling_min_token_prob:
                    heappush(waiting, (-score, len(draft.tokens) * k + place, parent, reach, guesses, base, place))

        if budget:
            root = sequence.tokens[-1]
            offer(-1, 1.0, *self._candidates(sequence.tokens[max(len(sequence.tokens) - 2, 0)], root), 0)
        while waiting and len(draft.tokens) < budget:
            negative, _, parent, reach, guesses, base, place = heappop(waiting)
            offer(parent, reach, guesses, base, place + 1)
            token = guesses[ranking[base][place]]
            if token == EMPTY:
                continue
            node = len(draft.tokens)
            draft.tokens.append(token)
            draft.parents.append(parent)
            draft.scores.append(-negative)
            kinds.append(base + ranking[base][place])
            offer(node, -negative, *self._candidates(draft.tokens[parent] if parent >= 0 else root, token), 0)
        return self._proposals.note(sequence, draft, kinds)
