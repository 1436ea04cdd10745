"""EAGLE: a small head drafts from the target's own hidden states (Li et al. 2024, arXiv 2401.15077; 2025, 2503.01840).

Where the target has been, the head reads the target's features; beyond, it goes on from its own states. Those are
approximations, so after each verification the rows of accepted tokens are read again with the features the target
computed for them. All sequences draft together, one pass a level; a draft is a chain, or a tree that grows where the
head is confident (EAGLE-2). Features of tokens decoded plainly wait until the next draft needs them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Sequence as Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from foredraft.drafters.base import BaseDrafter, Features, Wants
from foredraft.drafters.eagle_cache import EagleCache, Level
from foredraft.drafters.eagle_pass import EaglePass, KernelPass, TorchPass
from foredraft.drafters.eagle_tree import Growth
from foredraft.drafters.guesses import (
    CALIBRATION_PRIOR,
    CENTRES,
    EDGES,
    Ranking,
    calibrated,
    guess,
    noise_keys,
)
from foredraft.drafters.hit_rates import HitRates
from foredraft.drafters.open_head import HeadOnTarget, Swap, open_eagle_head
from foredraft.drafters.proposals import Draft, Proposals, tree_of
from foredraft.drafters.tree_shape import TreeShape, shape_of
from foredraft.errors import ConfigError
from foredraft.heads.eagle import EagleHead
from foredraft.sampling import Rows, is_edited, is_filtered
from foredraft.target.pair_layer import Growing
from foredraft.tree import TokenTree
from foredraft.types import Sequence
from foredraft.verify import Verdict

if TYPE_CHECKING:
    from foredraft.target.target import Target

__all__ = ["Eagle3Drafter", "EagleDrafter"]

CHAIN_LENGTH = 5
CHAIN_LEAST, TREE_LEAST = 0.1, 0.02

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class EagleDrafter(BaseDrafter):
    """Raises ConfigError for values that make no sense, LoadError from `bind` if the head doesn't fit the target.

    model                   folder, file or hub id of the head; left out, what comes with foredraft for the target
    num_speculative_tokens  longest chain, or most nodes of a tree
    tree                    {"depth": 6, "top_k": 8, "nodes": 60}: levels, nodes read a level, nodes in all; without it
                            drafts are chains
    draft_min_token_prob    nodes with a lower score aren't drafted; 0.1 for chains and 0.02 for trees if left out
    revision                branch, tag or commit of a hub id
    allow_pickle            read weights that come as a pickle, with torch's weights-only loader
    self_test               compare the head's guesses with text that the target writes first, and log how often they
                            agree; a file that leaves open how to read it is tested in any case
    head                    the head itself, instead of a model
    swap                    makes faster equivalents of linear layers
    """

    generation: ClassVar[Literal[1, 3]] = 1

    model: str = ""
    num_speculative_tokens: int | None = None
    tree: Mapping[str, int] | TreeShape | None = None
    draft_min_token_prob: float | None = None
    revision: str | None = None
    allow_pickle: bool = False
    self_test: bool = False
    head: EagleHead | None = field(default=None, repr=False, metadata={"config": False})
    swap: Swap | None = field(default=None, repr=False, metadata={"config": False})

    _ranking: ClassVar[Ranking] = Ranking.PERTURBED

    def __post_init__(self) -> None:
        self._shape, self.num_speculative_tokens = shape_of(self.tree, self.num_speculative_tokens, CHAIN_LENGTH)
        least = self.draft_min_token_prob
        self._least = (CHAIN_LEAST if self._shape.top_k == 1 else TREE_LEAST) if least is None else least
        if not 0 <= self._least <= 1:
            raise ConfigError(f"draft_min_token_prob is {least}; give a number from 0 to 1.")
        self._proposals = Proposals(HitRates(CALIBRATION_PRIOR))
        self._warned = False

    @property
    def wants(self) -> Wants:
        return Wants(layers=self._opened.head.shape.aux_layers)

    @torch.inference_mode()
    def bind(self, target: Target) -> None:
        self._opened: HeadOnTarget[EagleHead] = open_eagle_head(
            self.model,
            target,
            self.generation,
            given=self.head,
            revision=self.revision,
            allow_pickle=self.allow_pickle,
            self_test=self.self_test,
            swap=self.swap,
        )
        self._vocab_size = target.vocab_size
        self._ends = target.eos_token_ids
        opened, embed = self._opened, target.decoder.embed
        if opened.layer is None:
            self._passes: EaglePass = TorchPass(opened.head, opened.dtype, embed, opened.target_head)
        else:
            self._passes = KernelPass(opened.layer, opened.head, opened.target_head)
        self._cache = EagleCache(opened.head, self._passes, target.cache, opened.device, opened.dtype)

    def begin(self, sequence: Sequence) -> None:
        self._cache.begin(sequence)

    @torch.inference_mode()
    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        asked = [(seq, nodes) for seq, nodes in zip(batch, budget, strict=True) if nodes and self._reaches(seq)]
        self._cache.catch_up([sequence for sequence, _ in asked])
        growths: dict[int, Growth] = {}
        states = []
        for sequence, nodes in asked:
            if (state := self._cache.state(sequence)) is not None:
                ends = () if sequence.params.ignore_eos else self._ends
                limit = min(nodes, self._shape.nodes, self.num_speculative_tokens or nodes)
                growths[sequence.id] = Growth(sequence, self._shape, limit, self._least, ends)
                states.append(state)
        if growths:
            self._begin(list(growths.values()), torch.stack(states))
        while growing := [growth for growth in growths.values() if growth.frontier]:
            self._sprout(growing, self._read(growing))
        return tree_of([self._draft(sequence, growths.get(sequence.id)) for sequence in batch])

    def commit(self, batch: Collection[Sequence], verdict: Verdict, features: Features) -> None:
        self._proposals.judge_all(batch)
        if features.hidden is None:
            return
        first = 0
        for sequence, start, count in zip(features.sequences, features.starts, features.counts, strict=True):
            if sequence.params.speculative and start + count <= self._opened.head.shape.max_positions:
                self._cache.add(sequence, start, features.hidden, first, count)
            first += count
        self._cache.relieve()

    @torch.inference_mode()
    def end(self, sequence: Sequence) -> None:
        self._proposals.drop(sequence)
        self._cache.end(sequence)

    def _reaches(self, sequence: Sequence) -> bool:
        """Whether the head has positions for a draft."""
        most = self._opened.head.shape.max_positions
        if len(sequence.tokens) - 1 + self._shape.depth <= most:
            return True
        self._cache.drop_waiting(sequence)
        if not self._warned:
            self._warned = True
            logger.warning("The head %s has %d positions; longer texts are decoded plainly.", self._opened.name, most)
        return False

    def _begin(self, growths: list[Growth], states: Tensor) -> None:
        """Grow the drafts whole where that can be done, and else their first level."""
        if not self._grow_at_once(growths, states):
            self._sprout(growths, states)

    def _grow_at_once(self, growths: list[Growth], states: Tensor) -> bool:
        """All levels in one call of compiled code, if there is such and if nothing but the head decides what comes."""
        sequences = [growth.sequence for growth in growths]
        if any(is_edited(sequence) or is_filtered(sequence) for sequence in sequences):
            return False
        shape, draft_ids = self._shape, self._opened.head.draft_ids
        slots, stable = self._cache.room_behind(sequences, shape.depth * shape.top_k)
        growing = Growing(
            depth=shape.depth,
            top_k=min(shape.top_k, self._opened.head.shape.draft_vocab_size),
            least=self._least,
            ends=np.array(self._ends, np.int64),
            draft_ids=None if draft_ids is None else draft_ids.cpu().numpy(),
            edges=EDGES,
            centres=CENTRES,
            rates=self._proposals.rates,
            heats=np.array([0.0 if seq.params.greedy else seq.params.temperature for seq in sequences]),
            keys=np.array([noise_keys(sequence, shape.depth) for sequence in sequences]),
            slots=np.array(slots),
            stable=np.array(stable),
            positions=np.array([len(sequence.tokens) - 2 for sequence in sequences]),
            budgets=np.array([growth.budget for growth in growths]),
            heeds=np.array([not sequence.params.ignore_eos for sequence in sequences]),
        )
        grown = self._passes.grow(states, growing, self._cache.kv)
        if grown is None:
            return False
        for growth, nodes in zip(growths, grown, strict=True):
            growth.tokens, growth.parents, growth.scores, growth.kinds = nodes
        return True

    def _read(self, growing: list[Growth]) -> Tensor:
        """One pass over the frontiers of all drafts: states [T, H]."""
        head, device = self._opened.head, self._opened.device
        levels: list[Level] = []
        tokens: list[int] = []
        positions: list[int] = []
        for growth in growing:
            rows = len(growth.frontier)
            levels.append(Level(growth.sequence, len(tokens), rows, growth.entries, growth.mask()))
            tokens += [growth.tokens[node] for node in growth.frontier]
            positions += [len(growth.sequence.tokens) - 2 + growth.depth] * rows
        features = torch.cat([growth.features for growth in growing if growth.features is not None])
        return self._cache.step(
            levels,
            torch.tensor(tokens, device=device),
            head.feedback(features),
            torch.tensor(positions, device=device),
        )

    def _sprout(self, growing: list[Growth], states: Tensor) -> None:
        """New nodes below those that were read."""
        opened = self._opened
        logits = self._passes.logits(states)
        rates = self._proposals.rates
        first = 0
        for growth in growing:
            paths = growth.paths
            rows = slice(first, first + len(paths))
            first += len(paths)
            greedy = growth.sequence.params.greedy
            found = guess(
                logits[rows],
                Rows(growth.sequence, paths, self._ends),
                self._shape.top_k,
                draft_ids=opened.head.draft_ids,
                vocab_size=self._vocab_size,
                ranking=self._ranking,
            )
            worth, kinds = calibrated(rates, found.confidences, greedy)
            growth.sprout(
                states[rows],
                [list(zip(*row, strict=True)) for row in zip(found.tokens.tolist(), worth, kinds, strict=True)],
            )

    def _draft(self, sequence: Sequence, growth: Growth | None) -> Draft:
        if growth is None:
            return Draft([], [], [])
        return self._proposals.note(sequence, *growth.draft())


@dataclass(eq=False)
class Eagle3Drafter(EagleDrafter):
    """`EagleDrafter` with a head of the third generation: several tapped layers, perhaps a reduced vocabulary."""

    generation: ClassVar[Literal[1, 3]] = 3
