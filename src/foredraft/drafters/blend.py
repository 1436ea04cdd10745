"""One tree from the drafts of several drafters for a sequence.

What a drafter is sure of is worth more when another one agrees, and less when only a weak one says it. So a merged node
is scored by how often nodes have come true that the same drafters proposed and that the surest of them was as sure of.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence as Collection
from itertools import pairwise

from foredraft.drafters.hit_rates import HitRates
from foredraft.drafters.proposals import Draft, Proposals, best_first
from foredraft.tree import PAD
from foredraft.types import Sequence

__all__ = ["Blend"]

EDGES = (0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.93, 0.97, 0.985)
"""Between classes of sureness; fine where long chains make small differences count."""
CLASSES = len(EDGES) + 1
DISCOUNT = 0.5
"""What a node of which the first drafter, the best one by convention, knows nothing is worth at first."""


class Blend:
    """Merges drafts of `drafters` drafters."""

    def __init__(self, drafters: int) -> None:
        bounds = (0.0, *EDGES, 1.0)
        middles = [(low + high) / 2 for low, high in pairwise(bounds)]
        prior = [
            middle if proposers & 1 else DISCOUNT * middle for proposers in range(1 << drafters) for middle in middles
        ]
        self._proposals = Proposals(HitRates(prior))

    def merge(self, sequence: Sequence, drafts: Collection[Draft], budget: int) -> Draft:
        """The best `budget` nodes of all drafts; what several propose is one node."""
        tokens: list[int] = []
        parents: list[int] = []
        sureness: list[float] = []
        proposers: list[int] = []
        children: dict[tuple[int, int], int] = {}
        for drafter, draft in enumerate(drafts):
            place: list[int] = []
            for token, parent, score in zip(*draft, strict=True):
                above = place[parent] if parent >= 0 else PAD
                reach = draft.scores[parent] if parent >= 0 else 1.0
                sure = score / reach if reach else 0.0
                node = children.setdefault((above, token), len(tokens))
                if node == len(tokens):
                    tokens.append(token)
                    parents.append(above)
                    sureness.append(sure)
                    proposers.append(0)
                sureness[node] = max(sureness[node], sure)
                proposers[node] |= 1 << drafter
                place.append(node)
        return self._score(sequence, tokens, parents, sureness, proposers, budget)

    def judge(self, sequence: Sequence) -> None:
        """Learn from the tokens that came."""
        self._proposals.judge(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Forget what was merged last."""
        self._proposals.drop(sequence)

    def _score(
        self,
        sequence: Sequence,
        tokens: list[int],
        parents: list[int],
        sureness: list[float],
        proposers: list[int],
        budget: int,
    ) -> Draft:
        rates = self._proposals.rates.tolist()
        kinds = [CLASSES * which + bisect_right(EDGES, sure) for which, sure in zip(proposers, sureness, strict=True)]
        scores: list[float] = []
        for parent, kind in zip(parents, kinds, strict=True):
            scores.append((scores[parent] if parent >= 0 else 1.0) * rates[kind])
        draft, order = best_first(Draft(tokens, parents, scores), budget)
        return self._proposals.note(sequence, draft, [kinds[node] for node in order])
