"""Medusa heads: several guesses from one of the target's hidden states, each for a later token (arXiv 2401.10774).

The state is that of the last position the target has computed, after its final norm; head i guesses the token i + 1
places behind the root. There is no pass per depth and nothing to keep but that state. Which guesses become nodes is
decided by how often each head was right so far when it was as sure as now (medusa_tree.py): where the paper has one
tree for all steps, chosen by rank, a sure head gets a chain here and an unsure one more breadth.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foredraft.drafters.base import BaseDrafter, Features, Wants
from foredraft.drafters.guesses import CALIBRATION_PRIOR, Guesses, Ranking, calibrated, guess
from foredraft.drafters.hit_rates import HitRates
from foredraft.drafters.medusa_tree import best_places
from foredraft.drafters.open_head import HeadOnTarget, Swap, open_medusa_heads
from foredraft.drafters.proposals import Draft, tree_of
from foredraft.drafters.tree_shape import TreeShape, shape_of
from foredraft.errors import ConfigError
from foredraft.heads.medusa import MedusaHeads
from foredraft.sampling import Rows
from foredraft.tree import PAD, TokenTree
from foredraft.types import Sequence
from foredraft.verify import Verdict

if TYPE_CHECKING:
    from foredraft.target.target import Target

__all__ = ["MedusaDrafter"]

CHAIN_LENGTH = 5
CHAIN_LEAST, TREE_LEAST = 0.1, 0.02


class _Asked(NamedTuple):
    """What the heads guessed when a sequence had `length` tokens: tokens[head][rank], and of which kind a guess was."""

    length: int
    tokens: list[list[int]]
    kinds: list[list[int]]


@dataclass(eq=False)
class MedusaDrafter(BaseDrafter):
    """Raises ConfigError for values that make no sense, LoadError from `bind` if the heads don't fit the target.

    model                   folder, file or hub id of the heads; left out, what comes with foredraft for the target
    num_speculative_tokens  longest chain, or most nodes of a tree
    tree                    {"depth": 4, "top_k": 8, "nodes": 32}: heads used, ranks used of each, nodes in all; without
                            it drafts are chains
    draft_min_token_prob    nodes with a lower score aren't drafted; 0.1 for chains and 0.02 for trees if left out
    revision                branch, tag or commit of a hub id
    allow_pickle            read weights that come as a pickle, with torch's weights-only loader
    heads                   the heads themselves, instead of a model
    swap                    makes faster equivalents of linear layers
    """

    model: str = ""
    num_speculative_tokens: int | None = None
    tree: Mapping[str, int] | TreeShape | None = None
    draft_min_token_prob: float | None = None
    revision: str | None = None
    allow_pickle: bool = False
    heads: MedusaHeads | None = field(default=None, repr=False, metadata={"config": False})
    swap: Swap | None = field(default=None, repr=False, metadata={"config": False})

    _ranking: ClassVar[Ranking] = Ranking.PERTURBED

    def __post_init__(self) -> None:
        self._shape, self.num_speculative_tokens = shape_of(self.tree, self.num_speculative_tokens, CHAIN_LENGTH)
        least = self.draft_min_token_prob
        self._least = (CHAIN_LEAST if self._shape.top_k == 1 else TREE_LEAST) if least is None else least
        if not 0 <= self._least <= 1:
            raise ConfigError(f"draft_min_token_prob is {least}; give a number from 0 to 1.")
        self._states: dict[int, tuple[int, Tensor]] = {}
        self._asked: dict[int, _Asked] = {}

    @property
    def wants(self) -> Wants:
        return Wants(layers=(-1,))

    def bind(self, target: Target) -> None:
        self._opened: HeadOnTarget[MedusaHeads] = open_medusa_heads(
            self.model,
            target,
            given=self.heads,
            revision=self.revision,
            allow_pickle=self.allow_pickle,
            swap=self.swap,
        )
        self._vocab_size = target.vocab_size
        self._ends = target.eos_token_ids
        self._depth = min(self._shape.depth, self._opened.head.shape.heads)
        self._rates = HitRates(CALIBRATION_PRIOR * self._depth)

    @torch.inference_mode()
    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        asked = [
            (row, sequence)
            for row, (sequence, nodes) in enumerate(zip(batch, budget, strict=True))
            if nodes and self._states.get(sequence.id, (-1,))[0] == len(sequence.tokens) - 1
        ]
        drafts = [Draft([], [], []) for _ in batch]
        if asked:
            states = torch.stack([self._states[sequence.id][1] for _, sequence in asked])
            heads = self._opened.head
            logits = heads.logits(heads(states)[:, : self._depth], self._opened.target_head)
            for (row, sequence), own in zip(asked, logits, strict=True):
                drafts[row] = self._draft(sequence, self._guess(sequence, own), min(budget[row], self._shape.nodes))
        return tree_of(drafts)

    @torch.inference_mode()
    def commit(self, batch: Collection[Sequence], verdict: Verdict, features: Features) -> None:
        for sequence in batch:
            self._judge(sequence)
        if features.hidden is None:
            return
        first = 0
        for sequence, start, count in zip(features.sequences, features.starts, features.counts, strict=True):
            first += count
            self._states[sequence.id] = (start + count, features.hidden[first - 1, 0].to(self._opened.dtype, copy=True))

    def end(self, sequence: Sequence) -> None:
        self._states.pop(sequence.id, None)
        self._asked.pop(sequence.id, None)

    def _guess(self, sequence: Sequence, logits: Tensor) -> Guesses:
        """[heads, ranks]. Penalties need a path, and the likeliest one must do, as all heads guess at once."""
        heads = self._opened.head
        likeliest = logits.argmax(dim=-1)
        path: list[int] = (likeliest if heads.draft_ids is None else heads.draft_ids[likeliest]).tolist()
        return guess(
            logits,
            Rows(sequence, [tuple(path[:head]) for head in range(self._depth)], self._ends),
            self._shape.top_k,
            draft_ids=heads.draft_ids,
            vocab_size=self._vocab_size,
            ranking=self._ranking,
        )

    def _draft(self, sequence: Sequence, found: Guesses, nodes: int) -> Draft:
        tokens, ends = found.tokens.tolist(), () if sequence.params.ignore_eos else self._ends
        worth, kinds = calibrated(self._rates_by_head, found.confidences, sequence.params.greedy)
        self._asked[sequence.id] = _Asked(len(sequence.tokens), tokens, kinds)
        draft = Draft([], [], [])
        node_of = {PAD: PAD}
        for place, (parent, head, rank, score) in enumerate(best_places(worth, nodes, self._least)):
            above = node_of.get(parent)
            if above is None or (above >= 0 and draft.tokens[above] in ends):
                continue
            node_of[place] = len(draft.tokens)
            draft.tokens.append(tokens[head][rank])
            draft.parents.append(above)
            draft.scores.append(score)
        return draft

    @property
    def _rates_by_head(self) -> NDArray[np.float64]:
        """A view of the rates, [heads, kinds]."""
        return self._rates.rates.reshape(self._depth, -1)

    def _judge(self, sequence: Sequence) -> None:
        """Of the heads whose token is known, every rank was right or wrong, drafted or not."""
        asked = self._asked.pop(sequence.id, None)
        if asked is None:
            return
        truths = sequence.tokens[asked.length :]
        for head, (truth, tokens, kinds) in enumerate(zip(truths, asked.tokens, asked.kinds, strict=False)):
            for token, kind in zip(tokens, kinds, strict=True):
                self._rates.record(head * len(CALIBRATION_PRIOR) + kind, token == truth)
