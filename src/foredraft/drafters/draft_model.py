"""A smaller language model as the drafter (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, 2302.01318).

It drafts a chain for all sequences together, one pass per depth, from its own KV cache. Its guess is the best token
under the request's own processors and the same noise as the target's pick, so that the two agree as often as they can.
Whatever the cache holds is compared with the committed tokens before each draft: rejected drafts, plain steps and new
prompts are all caught up with by the same first pass.
"""

from __future__ import annotations

from collections.abc import Sequence as Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from foredraft.drafters.base import BaseDrafter, Features
from foredraft.drafters.guesses import CALIBRATION_PRIOR, Ranking, calibrated, guess
from foredraft.drafters.hit_rates import HitRates
from foredraft.drafters.open_draft_model import open_draft_model
from foredraft.drafters.proposals import Draft, Proposals, tree_of
from foredraft.errors import ConfigError
from foredraft.sampling import Rows
from foredraft.target.flat_pass import FlatPass, Segment
from foredraft.target.kv_cache import KVCache, common_prefix
from foredraft.tree import TokenTree
from foredraft.types import Sequence
from foredraft.verify import Verdict

if TYPE_CHECKING:
    from foredraft.target.target import Target

__all__ = ["DraftModelDrafter"]

MOST_ROWS = 512
"""Rows per pass when a long prompt is caught up with."""


@dataclass(eq=False)
class DraftModelDrafter(BaseDrafter):
    """Raises ConfigError for values that make no sense, LoadError from `bind` if the model can't draft for the target.

    model                   anything that a target can be, with the target's tokenizer; "target:K" is the target's own
                            first K layers with its final norm and head; left out, what comes with foredraft for the
                            target
    num_speculative_tokens  longest chain
    draft_min_token_prob    a chain ends before a node with a lower score
    revision                branch, tag or commit of a hub id
    trust_remote_code       run Python code that comes with the checkpoint
    """

    model: str = ""
    num_speculative_tokens: int = 5
    draft_min_token_prob: float = 0.1
    revision: str | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.draft_min_token_prob <= 1:
            raise ConfigError(f"draft_min_token_prob is {self.draft_min_token_prob}; give a number from 0 to 1.")
        self._proposals = Proposals(HitRates(CALIBRATION_PRIOR))
        self._slots: dict[int, int] = {}
        self._known: dict[int, int] = {}

    def bind(self, target: Target) -> None:
        opened = open_draft_model(self.model, target, revision=self.revision, trust_remote_code=self.trust_remote_code)
        self._decoder, self._readable, self._draft_ids = opened.decoder, opened.vocab_size, opened.draft_ids
        self._max_length = min(opened.max_model_len, target.max_model_len)
        self._vocab_size = target.vocab_size
        self._eos_token_ids = target.eos_token_ids
        decoder = opened.decoder
        self._cache = KVCache(decoder.cache_shape, target.cache.slots, decoder.cache_dtype, decoder.device)
        self._beside = target.cache

    def begin(self, sequence: Sequence) -> None:
        """Of texts that are over, no more is kept than the target's cache keeps."""
        claimed = self._cache.claim(sequence.tokens, sequence.params.cache_salt, room=self._beside.retained)
        assert claimed is not None, "there are as many slots as in the target's cache"
        self._slots[sequence.id], self._known[sequence.id] = claimed

    @torch.inference_mode()
    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        chains = {
            sequence.id: _Chain(sequence, min(nodes, self.num_speculative_tokens))
            for sequence, nodes in zip(batch, budget, strict=True)
            if nodes and len(sequence.tokens) + nodes <= self._max_length
        }
        growing = list(chains.values())
        for chain in growing:
            self._rewind(chain.sequence)
        while growing:
            logits = self._forward(growing)
            for row, chain in enumerate(growing):
                self._extend(chain, logits[row : row + 1])
            growing = [chain for chain in growing if chain.grows]
        return tree_of([self._draft(chains.get(sequence.id)) for sequence in batch])

    def commit(self, batch: Collection[Sequence], verdict: Verdict, features: Features) -> None:
        self._proposals.judge_all(batch)

    def end(self, sequence: Sequence) -> None:
        self._proposals.drop(sequence)
        self._rewind(sequence)
        self._cache.retain(self._beside.retained)
        self._cache.release(self._slots.pop(sequence.id))
        del self._known[sequence.id]

    def _rewind(self, sequence: Sequence) -> None:
        """Forget cached drafts that didn't come true. The last token stays open, since its logits are needed, even if
        they were needed before.
        """
        slot, known = self._slots[sequence.id], min(self._known[sequence.id], len(sequence.tokens) - 1)
        rest = sequence.tokens[known:]
        known += common_prefix(self._cache.tokens(slot)[known:], rest, len(rest) - 1)
        self._cache.truncate(slot, known)
        self._known[sequence.id] = known

    def _forward(self, chains: Collection[_Chain]) -> Tensor:
        """Read what is not cached yet; logits after the last token of each chain [n, V], or [n, Vd] by draft id."""
        work = []
        for chain in chains:
            slot = self._slots[chain.sequence.id]
            tokens = chain.after(len(self._cache.tokens(slot)))
            while len(tokens) > MOST_ROWS:
                self._run([(slot, tokens[:MOST_ROWS])])
                tokens = tokens[MOST_ROWS:]
            work.append((slot, tokens))
            self._known[chain.sequence.id] = len(chain.sequence.tokens)
        logits = self._decoder.head(self._run(work))
        if self._draft_ids is not None:
            return logits
        logits = logits[:, : self._vocab_size]
        missing = self._vocab_size - logits.shape[1]  # padded vocabularies differ in length
        return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf) if missing else logits

    def _run(self, work: Collection[tuple[int, list[int]]]) -> Tensor:
        """One pass over further tokens of several slots; the hidden states of the last ones: [n, H]."""
        tokens: list[int] = []
        positions: list[int] = []
        segments: list[Segment] = []
        for slot, own in work:
            start = len(self._cache.tokens(slot))
            segments.append(Segment(slot, start, len(tokens), len(own)))
            # A token of the target's that the draft model has no embedding for only makes its next drafts worse.
            tokens += [token if token < self._readable else 0 for token in own]
            positions += range(start, start + len(own))
        self._cache.reserve(max(segment.start + segment.rows for segment in segments))
        device = self._decoder.device
        flat = FlatPass(torch.tensor(tokens, device=device), torch.tensor(positions, device=device), tuple(segments))
        hidden = self._decoder.forward(flat, self._cache).last
        for segment, (slot, own) in zip(segments, work, strict=True):
            self._cache.keep(slot, segment.start, range(len(own)), own)
        return hidden[[segment.first + segment.rows - 1 for segment in segments]]

    def _extend(self, chain: _Chain, logits: Tensor) -> None:
        """Add the best next token, unless it is too unlikely to be accepted."""
        params = chain.sequence.params
        found = guess(
            logits,
            Rows(chain.sequence, [tuple(chain.tokens)], self._eos_token_ids),
            1,
            draft_ids=self._draft_ids,
            vocab_size=self._vocab_size,
            ranking=Ranking.PERTURBED,
        )
        [[worth]], [[kind]] = calibrated(self._proposals.rates, found.confidences, params.greedy)
        token = int(found.tokens)
        score = (chain.scores[-1] if chain.scores else 1.0) * worth
        if score < self.draft_min_token_prob:
            chain.grows = False
            return
        chain.tokens.append(token)
        chain.scores.append(score)
        chain.kinds.append(kind)
        ended = token in self._eos_token_ids and not params.ignore_eos
        chain.grows = len(chain.tokens) < chain.budget and not ended

    def _draft(self, chain: _Chain | None) -> Draft:
        if chain is None:
            return Draft([], [], [])
        draft = Draft(chain.tokens, list(range(-1, len(chain.tokens) - 1)), chain.scores)
        return self._proposals.note(chain.sequence, draft, chain.kinds)


@dataclass(eq=False)
class _Chain:
    """A draft while it grows."""

    sequence: Sequence
    budget: int
    tokens: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    grows: bool = True

    def after(self, place: int) -> list[int]:
        """The sequence's tokens and the draft's from `place` on."""
        length = len(self.sequence.tokens)
        return self.sequence.tokens[place:] + self.tokens if place < length else self.tokens[place - length :]
