"""A drafter in forty lines: a Markov chain over each request's own text.

After every token it drafts the one that has followed it most often so far, then the one that followed that, and so on,
each time with the share of times that it did as its probability. It is here to be copied, not to be fast.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence as Collection
from dataclasses import dataclass, field

from foredraft.drafters.base import BaseDrafter
from foredraft.tree import TokenTree
from foredraft.types import Sequence

__all__ = ["MarkovDrafter"]


@dataclass
class Followers:
    """How often each token followed each other one in the first `read` tokens of a text."""

    counts: defaultdict[int, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    read: int = 1

    def extend(self, text: list[int]) -> None:
        for place in range(self.read, len(text)):
            self.counts[text[place - 1]][text[place]] += 1
        self.read = len(text)


@dataclass
class MarkovDrafter(BaseDrafter):
    """The fields are the keys of `speculative_config`.

    num_speculative_tokens  longest chain
    least_probability       a chain ends before a token that is less likely to be accepted
    """

    num_speculative_tokens: int = 4
    least_probability: float = 0.3
    _followers: dict[int, Followers] = field(default_factory=dict, init=False)

    def begin(self, sequence: Sequence) -> None:
        self._followers[sequence.id] = Followers()

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        chains, scores = [], []
        for sequence, longest in zip(batch, budget, strict=True):
            followers = self._followers[sequence.id]
            followers.extend(sequence.tokens)
            chain: list[int] = []
            reach: list[float] = []
            last, probability = sequence.tokens[-1], 1.0
            while len(chain) < longest and followers.counts[last]:
                total = followers.counts[last].total()
                last, count = followers.counts[last].most_common(1)[0]
                probability *= count / (total + 1)
                if probability < self.least_probability:
                    break
                chain.append(last)
                reach.append(probability)
            chains.append((chain, list(range(-1, len(chain) - 1))))
            scores.append(reach)
        return TokenTree.from_nodes(chains, scores)

    def end(self, sequence: Sequence) -> None:
        del self._followers[sequence.id]
