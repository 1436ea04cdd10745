"""Suffix decoding: draft what followed the longest earlier occurrences of the latest tokens, as far as it is likely to
hold.

Oliaro et al. 2024 (arXiv 2411.04975) score continuations by how often they followed, and let the length of the match
decide how much to draft. Both go into the score of a node here: earlier occurrences vote for the next token, longer
matches with more weight, and the share of the votes together with the length of the match is calibrated against what
came true. On repetitive text the tree grows to the budget; on new text it stays empty and costs nothing.

The texts are the request's own prompt and output and, if the server opts in, the outputs of earlier requests. In the
request's own text a trail (trail.py) keeps track of what is being copied, which breaks ties among equal matches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from foredraft.drafters.base import BaseDrafter, Features
from foredraft.drafters.hit_rates import HitRates
from foredraft.drafters.proposals import Draft, Proposals, tree_of
from foredraft.drafters.trail import Trail
from foredraft.drafters.tree_shape import MOST_NODES
from foredraft.errors import ConfigError
from foredraft.tree import TokenTree
from foredraft.types import FinishReason, Sequence
from foredraft.verify import Verdict

if TYPE_CHECKING:
    from foredraft.drafters.suffix_index import SuffixIndex
    from foredraft.drafters.suffix_store import SuffixStore
    from foredraft.target.target import Target

__all__ = ["Source", "SuffixDrafter"]

LONGEST_MATCH = 32
OCCURRENCES = 32
"""Earlier occurrences consulted in each source, the longest matches first."""
BRANCHES = 4
CONTEXT = 16
"""Prompt tokens stored in front of an output, so that its first tokens can be found."""
LEAST_BYTES, MOST_BYTES = 48 << 10, 32 << 30
"""Memory that holds anything, and what a store can number (suffix_store.py)."""

# How often a guess was right that followed a match of 1, 2, 3, 4-5, 6-8, 9-15, 16-31, 32 or more tokens (rows) and had
# under 20%, 50%, 95% of the votes, or all of them from one or two or from more occurrences (columns). Measured on code
# edits and short questions with a 135M model; only the start, since the rates follow the text.
PRIOR = (
    (0.09, 0.17, 0.20, 0.27, 0.56),
    (0.12, 0.20, 0.40, 0.57, 0.79),
    (0.15, 0.25, 0.45, 0.70, 0.82),
    (0.15, 0.30, 0.50, 0.80, 0.90),
    (0.15, 0.30, 0.60, 0.90, 0.95),
    (0.20, 0.35, 0.70, 0.94, 0.98),
    (0.20, 0.40, 0.80, 0.94, 0.98),
    (0.20, 0.40, 0.85, 0.96, 0.99),
)


class Source(NamedTuple):
    """Tokens to search in front of a sequence's own, and where in all of them copying may start (None: anywhere)."""

    before: tuple[int, ...] = ()
    start: int | None = None


@dataclass(eq=False)
class SuffixDrafter(BaseDrafter):
    """Names and meanings of the `suffix_decoding_*` keys are vLLM's; defaults differ where measurements said so.

    num_speculative_tokens               most draft nodes per sequence and step
    suffix_decoding_max_tree_depth       longest path of a draft
    suffix_decoding_max_spec_factor      most nodes per token of the longest match
    suffix_decoding_min_token_prob       nodes with a lower score are not drafted
    suffix_decoding_use_tree_spec        False drafts a single path
    suffix_decoding_max_cached_requests  outputs of earlier requests to draft from; 0, the default, keeps none
    suffix_decoding_max_cached_bytes     memory for them
    suffix_decoding_namespace            drafters that share a store see each other's texts only within a namespace,
                                         requests only those with the same cache_salt
    store                                a store to share with other drafters of the process
    """

    num_speculative_tokens: int = 32
    suffix_decoding_max_tree_depth: int = 64
    suffix_decoding_max_spec_factor: float = 4.0
    suffix_decoding_min_token_prob: float = 0.06
    suffix_decoding_use_tree_spec: bool = True
    suffix_decoding_max_cached_requests: int = 0
    suffix_decoding_max_cached_bytes: int = 64 << 20
    suffix_decoding_namespace: str = ""
    store: SuffixStore | None = field(default=None, repr=False, metadata={"config": False})

    def __post_init__(self) -> None:
        for name, least, most in (
            ("suffix_decoding_max_tree_depth", 1, MOST_NODES),
            ("suffix_decoding_max_cached_requests", 0, 1 << 30),
            ("suffix_decoding_max_cached_bytes", LEAST_BYTES, MOST_BYTES),
        ):
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"{name} is {getattr(self, name)}; give a number from {least} to {most}.")
        if not 0 < self.suffix_decoding_max_spec_factor <= MOST_NODES:
            raise ConfigError(
                f"suffix_decoding_max_spec_factor is {self.suffix_decoding_max_spec_factor}; give a number above 0, "
                f"up to {MOST_NODES}."
            )
        if not 0 < self.suffix_decoding_min_token_prob <= 1:
            raise ConfigError(
                f"suffix_decoding_min_token_prob is {self.suffix_decoding_min_token_prob}; "
                "give a number above 0, up to 1."
            )
        self._proposals = Proposals(HitRates([rate for row in (*PRIOR, *PRIOR) for rate in row]))
        self._texts: dict[int, _Text] = {}

    def bind(self, target: Target) -> None:
        """Compile or load the index's loops, which takes a fraction of a second (a few the first time), and open the
        store.
        """
        from foredraft.drafters.suffix_index import Evidence
        from foredraft.drafters.suffix_store import SuffixStore

        self._evidence = Evidence(2 * OCCURRENCES, self.suffix_decoding_max_tree_depth)
        if self.store is None and self.suffix_decoding_max_cached_requests:
            self.store = SuffixStore(self.suffix_decoding_max_cached_bytes, self.suffix_decoding_max_cached_requests)

    def begin(self, sequence: Sequence) -> None:
        from foredraft.drafters.suffix_index import SuffixIndex

        source = self._source(sequence)
        index = SuffixIndex([*source.before, *sequence.tokens])
        self._texts[sequence.id] = _Text(index, Trail(source.start), len(source.before))

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        return tree_of([self._draft(sequence, nodes) for sequence, nodes in zip(batch, budget, strict=True)])

    def commit(self, batch: Collection[Sequence], verdict: Verdict, features: Features) -> None:
        self._proposals.judge_all(batch)

    def end(self, sequence: Sequence) -> None:
        finished = sequence.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        if finished and self.store is not None:
            self.store.add(sequence.tokens[max(0, sequence.prompt_length - CONTEXT) :], self._namespace(sequence))
        self._proposals.drop(sequence)
        del self._texts[sequence.id]

    def _source(self, sequence: Sequence) -> Source:
        """What is searched besides the sequence's own tokens."""
        return Source()

    def _namespace(self, sequence: Sequence) -> str:
        own, salt = self.suffix_decoding_namespace, sequence.params.cache_salt
        return f"{own}\0{salt}" if salt else own

    def _draft(self, sequence: Sequence, budget: int) -> Draft:
        budget = min(budget, self.num_speculative_tokens)
        text, evidence = self._texts[sequence.id], self._evidence
        text.extend(sequence.tokens)
        if not budget:
            return Draft([], [], [])
        evidence.clear(reach=budget)
        longest = 1
        for place, agreed in text.trail.ranked():
            evidence.hint(text.index.text[place:], agreed + 1)
            longest = max(longest, agreed)
        pattern = text.index.text[-LONGEST_MATCH:]
        place, matched = text.index.recall(pattern, evidence, OCCURRENCES)
        text.trail.meet(place, matched)
        if self.store is not None:
            matched = max(matched, self.store.recall(pattern, evidence, OCCURRENCES, self._namespace(sequence)))
        tokens, parents, scores, kinds = evidence.grow(
            self._proposals.rates,
            self.suffix_decoding_min_token_prob,
            BRANCHES if self.suffix_decoding_use_tree_spec else 1,
            min(budget, math.ceil(self.suffix_decoding_max_spec_factor * max(longest, matched))),
        )
        return self._proposals.note(sequence, Draft(tokens, parents, scores), kinds)


@dataclass
class _Text:
    """One sequence's text with its index, and `before` tokens in front that aren't the sequence's own."""

    index: SuffixIndex
    trail: Trail
    before: int

    def extend(self, tokens: list[int]) -> None:
        """Take in the sequence's new tokens."""
        known = len(self.index.text)
        self.index.append(tokens[known - self.before :])
        for place in range(known, len(self.index.text)):
            self.trail.follow(self.index.text[: place + 1])
