"""Prompt lookup: if the last few tokens occurred before, what followed them then is likely to follow again.

The latest occurrences of the last `prompt_lookup_min` tokens are found through a chain of positions, as LZ compressors
do it: taking in a token is O(1), and a draft costs the same at any context length. The longest match wins, the most
recent of equals. How much of its continuation is drafted depends on how often matches of that length have held, so
long drafts come from long matches only. Other recent continuations become branches.
"""

from __future__ import annotations

from collections.abc import Sequence as Collection
from dataclasses import dataclass

from foredraft.drafters.base import BaseDrafter, Features
from foredraft.drafters.hit_rates import HitRates
from foredraft.drafters.proposals import Draft, Proposals, best_first, tree_of
from foredraft.errors import ConfigError
from foredraft.tree import TokenTree
from foredraft.types import Sequence
from foredraft.verify import Verdict

__all__ = ["NgramDrafter"]

OCCURRENCES = 8
"""Earlier occurrences looked at for a draft, those of `WIDE` tokens first."""
WIDE = 6
LONGEST = 16
"""Longer matches are all alike."""


@dataclass(eq=False)
class NgramDrafter(BaseDrafter):
    """Raises ConfigError for limits that make no sense.

    num_speculative_tokens        most draft nodes per sequence and step
    prompt_lookup_max             longest n-gram that is preferred to a more recent, shorter one
    prompt_lookup_min             shortest n-gram that is looked up
    prompt_lookup_branches        distinct continuations followed; 1 drafts a chain
    prompt_lookup_min_token_prob  nodes with a lower score are not drafted
    """

    num_speculative_tokens: int = 16
    prompt_lookup_max: int = 16
    prompt_lookup_min: int = 1
    prompt_lookup_branches: int = 3
    prompt_lookup_min_token_prob: float = 0.08

    def __post_init__(self) -> None:
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max:
            raise ConfigError(
                f"prompt_lookup_min is {self.prompt_lookup_min} and prompt_lookup_max {self.prompt_lookup_max}; "
                "give 1 <= prompt_lookup_min <= prompt_lookup_max."
            )
        if self.prompt_lookup_branches < 1:
            raise ConfigError(f"prompt_lookup_branches is {self.prompt_lookup_branches}; give at least 1.")
        if not 0 < self.prompt_lookup_min_token_prob <= 1:
            raise ConfigError(
                f"prompt_lookup_min_token_prob is {self.prompt_lookup_min_token_prob}; give a number above 0, up to 1."
            )
        # Kinds of guesses: the length of the match, for the first continuation and for branches off it. The curves
        # follow what was measured on code edits and short questions with a 135M model.
        trunk = [1 - 0.85 / (1 + 0.12 * length**2) for length in range(LONGEST + 1)]
        branch = [0.07 + 0.012 * length for length in range(LONGEST + 1)]
        self._proposals = Proposals(HitRates(trunk + branch))
        self._histories: dict[int, list[_History]] = {}

    def begin(self, sequence: Sequence) -> None:
        widths = {self.prompt_lookup_min, max(self.prompt_lookup_min, min(WIDE, self.prompt_lookup_max))}
        self._histories[sequence.id] = [_History(width) for width in sorted(widths, reverse=True)]

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        return tree_of([self._draft(sequence, nodes) for sequence, nodes in zip(batch, budget, strict=True)])

    def commit(self, batch: Collection[Sequence], verdict: Verdict, features: Features) -> None:
        self._proposals.judge_all(batch)

    def end(self, sequence: Sequence) -> None:
        self._proposals.drop(sequence)
        del self._histories[sequence.id]

    def _draft(self, sequence: Sequence, budget: int) -> Draft:
        budget = min(budget, self.num_speculative_tokens)
        text = sequence.tokens
        found: dict[int, int] = {}
        for history in self._histories[sequence.id]:
            history.extend(text)
            if budget and len(found) < OCCURRENCES:
                found.update(history.matches(text))
        matches = sorted(
            found.items(), key=lambda match: (min(match[1], self.prompt_lookup_max), match[0]), reverse=True
        )
        draft, kinds = self._tree(text, matches, budget)
        best, order = best_first(draft, budget)
        return self._proposals.note(sequence, best, [kinds[node] for node in order])

    def _tree(self, text: list[int], matches: list[tuple[int, int]], budget: int) -> tuple[Draft, list[int]]:
        """The first `prompt_lookup_branches` distinct continuations, merged, and the kind of every node."""
        rates = self._proposals.rates.tolist()
        tokens: list[int] = []
        parents: list[int] = []
        scores: list[float] = []
        kinds: list[int] = []
        children: dict[tuple[int, int], int] = {}
        followed = 0
        for end, length in matches:
            node, reach, kind = -1, 1.0, 0 if not followed else LONGEST + 1
            before = len(tokens)
            for depth in range(budget):
                token = text[end + depth % (len(text) - end)]  # past the end of the text, a repetition goes on
                child = children.get((node, token))
                if child is None:
                    kinds.append(kind + min(length + depth, LONGEST))
                    kind = 0  # below its first node, a branch is like any other continuation
                    reach *= rates[kinds[-1]]
                    if reach < self.prompt_lookup_min_token_prob:
                        kinds.pop()
                        break
                    child = children[node, token] = len(tokens)
                    tokens.append(token)
                    parents.append(node)
                    scores.append(reach)
                node, reach = child, scores[child]
            followed += len(tokens) > before
            if followed == self.prompt_lookup_branches:
                break
        return Draft(tokens, parents, scores), kinds


class _History:
    """Where each `width`-gram of a text ended last (`_latest`), and for every end where the one before it did."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._latest: dict[tuple[int, ...], int] = {}
        self._previous: list[int] = [0] * width

    def extend(self, text: list[int]) -> None:
        """Take in the tokens that are new in `text`."""
        for end in range(len(self._previous), len(text) + 1):
            gram = tuple(text[end - self._width : end])
            self._previous.append(self._latest.get(gram, 0))
            self._latest[gram] = end

    def matches(self, text: list[int]) -> dict[int, int]:
        """end -> length of the match, for the latest earlier occurrences of the text's tail."""
        found: dict[int, int] = {}
        size = len(text)
        end = self._previous[size] if size >= self._width else 0
        while end and len(found) < OCCURRENCES:
            length = self._width
            while length < LONGEST and length < end and text[end - 1 - length] == text[size - 1 - length]:
                length += 1
            found[end] = length
            end = self._previous[end]
        return found
