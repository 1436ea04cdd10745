"""Prompt lookup: if the last few tokens occurred before, what followed them then is likely to follow again.

The most recent occurrences of the last `prompt_lookup_min` tokens are found through a hash chain, as LZ compressors do it: inserting a
token is O(1) and a draft costs the same at any context length. Of the occurrences, the longest match wins, and the most recent of
equals. How far its continuation is trusted depends on how often matches of that length have held: long drafts only when the match is
long. Other continuations become branches when the budget allows.
"""

from __future__ import annotations

from collections.abc import Sequence as Collection
from dataclasses import dataclass, field

from foredraft.drafters.base import BaseDrafter, Features
from foredraft.drafters.hit_rates import HitRates
from foredraft.drafters.scored_tree import Draft, ScoredTree, outcomes, ranked, scored
from foredraft.errors import ConfigError
from foredraft.types import Sequence
from foredraft.verify import Verdict

__all__ = ["NgramDrafter"]

OCCURRENCES = 12
"""Occurrences looked at per draft."""
LONGEST = 16
"""Matches longer than this are all alike."""


@dataclass(eq=False)
class NgramDrafter(BaseDrafter):
    """num_speculative_tokens: most draft nodes per step. prompt_lookup_max, prompt_lookup_min: longest and shortest n-gram looked up.
    prompt_lookup_branches: distinct continuations followed, 1 for a chain. prompt_lookup_min_token_prob: nodes less likely than this
    are not drafted.
    """

    num_speculative_tokens: int = 16
    prompt_lookup_max: int = 5
    prompt_lookup_min: int = 2
    prompt_lookup_branches: int = 3
    prompt_lookup_min_token_prob: float = 0.08

    def __post_init__(self) -> None:
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max:
            raise ConfigError(
                f"prompt_lookup_min is {self.prompt_lookup_min} and prompt_lookup_max {self.prompt_lookup_max}; "
                "give 1 <= min <= max."
            )
        # A match of m tokens is right about the next one roughly as often as not when m is small, and nearly always when it is large.
        self._rates = HitRates([1 - 0.9 / (1 + 0.6 * length) for length in range(LONGEST + 1)]+[(0.3-0.15/(1+length)) for length in range(LONGEST+1)])
        self._histories: dict[int, _History] = {}

    def begin(self, sequence: Sequence) -> None:
        self._histories[sequence.id] = _History(self.prompt_lookup_min)

    def end(self, sequence: Sequence) -> None:
        del self._histories[sequence.id]

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> ScoredTree:
        return scored([self._draft(sequence, nodes) for sequence, nodes in zip(batch, budget, strict=True)])

    def commit(self, batch: Collection[Sequence], verdict: Verdict, features: Features) -> None:
        for sequence in batch:
            length, tokens, parents, kinds = self._histories[sequence.id].drafted
            for node, right in outcomes(tokens, parents, sequence.tokens[length:]):
                self._rates.record(kinds[node], right)

    def _draft(self, sequence: Sequence, budget: int) -> Draft:
        history = self._histories[sequence.id]
        text = sequence.tokens
        history.extend(text)
        tokens: list[int] = []
        parents: list[int] = []
        scores: list[float] = []
        kinds: list[int] = []
        children: dict[tuple[int, int], int] = {}
        rates = self._rates.rates.tolist()
        matches = history.matches(text)
        matches.sort(key=lambda match: min(match[0], self.prompt_lookup_max), reverse=True)
        paths=0
        for length, end in matches if budget else ():
            node, reach, fresh = -1, 1.0, False
            period = len(text) - end
            for depth in range(budget):
                token = text[end + depth % period]  # past the end of the text, a repetition goes on repeating
                child = children.get((node, token))
                if child is None:
                    if paths and not fresh:
                        kind = LONGEST + 1 + min(length + depth, LONGEST)
                    else:
                        kind = min(length + depth, LONGEST)
                    reach *= rates[kind]
                    if reach < self.prompt_lookup_min_token_prob:
                        break
                    child = children[node, token] = len(tokens)
                    tokens.append(token)
                    parents.append(node)
                    scores.append(reach)
                    kinds.append(kind)
                    fresh = True
                node, reach = child, scores[child]
            paths+=fresh
            if paths==self.prompt_lookup_branches: break
        order = sorted(range(len(tokens)), key=scores.__getitem__, reverse=True)[:budget]
        place={n:i for i,n in enumerate(order)}; place[-1]=-1
        draft=Draft([tokens[n] for n in order],[place[parents[n]] for n in order],[scores[n] for n in order])
        history.drafted = (len(text), draft.tokens, draft.parents, [kinds[n] for n in order])
        return draft


class _History:
    """Where each `width`-gram of one sequence ended last, and before that."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.latest: dict[tuple[int, ...], int] = {}
        self.previous: list[int] = [0] * width
        self.drafted=(0,[],[],[])

    def extend(self, text: list[int]) -> None:
        """Take in the tokens that are new in `text`."""
        for end in range(len(self.previous), len(text) + 1):
            gram = tuple(text[end - self.width : end])
            self.previous.append(self.latest.get(gram, 0))
            self.latest[gram] = end

    def matches(self, text: list[int]) -> list[tuple[int, int]]:
        """(length, end) of the latest earlier occurrences of the text's tail, latest first."""
        found = []
        size = len(text)
        end = self.previous[size]
        while end and len(found) < OCCURRENCES:
            length = self.width
            while length < LONGEST and length < end and text[end - 1 - length] == text[size - 1 - length]:
                length += 1
            found.append((length, end))
            end = self.previous[end]
        return found
