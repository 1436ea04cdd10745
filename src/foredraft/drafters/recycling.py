"""Token Recycling: what the target considered likely after a token the last time is a good guess the next time.

Luo et al. 2024 (arXiv 2408.08696) keep, for every token of the vocabulary, the candidates that the target ranked highest when it
last saw that token, in accepted and rejected drafts alike; a tree is read off this table without any model. Here the table has a small
companion, keyed by pairs of tokens, which is asked first. The paper's tree is static; this one is grown best-first from the measured
acceptance of each rank, so that its shape follows the text.
"""

from __future__ import annotations

from collections.abc import Sequence as Collection
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foredraft.drafters.base import BaseDrafter, Features, Wants
from foredraft.drafters.hit_rates import HitRates
from foredraft.drafters.scored_tree import Draft, ScoredTree, outcomes, scored
from foredraft.errors import ConfigError
from foredraft.types import Sequence
from foredraft.verify import Verdict

if TYPE_CHECKING:
    from foredraft.target.target import Target

__all__ = ["RecyclingDrafter"]

PAIRS = 8192


@dataclass(eq=False)
class RecyclingDrafter(BaseDrafter):
    num_speculative_tokens: int = 16
    recycling_candidates: int = 8
    recycling_min_token_prob: float = 0.03
    pairs: bool = True
    log: list | None = None

    @property
    def wants(self) -> Wants:
        return Wants(candidates=self.recycling_candidates)

    def bind(self, target: Target) -> None:
        self._table = np.full((target.vocab_size, self.recycling_candidates), -1, dtype=np.int32)
        self._pairs = np.full((PAIRS, self.recycling_candidates), -1, dtype=np.int32)
        self._keys = np.full(PAIRS, -1, dtype=np.int64)
        k=self.recycling_candidates
        self._rates = HitRates([0.3 * 0.5**rank for rank in range(k)] + [0.5 * 0.5**rank for rank in range(k)])
        self._drafts: dict[int, tuple] = {}

    def begin(self, sequence: Sequence) -> None:
        tokens = np.array(sequence.tokens, dtype=np.int64)
        fresh = self._table[tokens[:-1], 0] < 0
        self._table[tokens[:-1][fresh], 0] = tokens[1:][fresh]

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> ScoredTree:
        return scored([self._draft(sequence, nodes) for sequence, nodes in zip(batch, budget, strict=True)])

    def commit(self, batch: Collection[Sequence], verdict: Verdict, features: Features) -> None:
        for row, sequence in enumerate(batch):
            if sequence.id in self._drafts:
                length, tokens, parents, kinds = self._drafts.pop(sequence.id)
                for node, right in outcomes(tokens, parents, sequence.tokens[length:]):
                    self._rates.record(kinds[node], right)
                    if self.log is not None: self.log.append((kinds[node], right))
        if not batch: return
        tree = features.tree
        candidates = features.candidates.numpy()
        starts=[len(s.tokens) for s in batch]
        for row, (sequence, length, tokens, parents) in enumerate(zip(batch, verdict.lengths.tolist(), tree.tokens.tolist(), tree.parents.tolist(), strict=True)):
            # root
            committed = verdict.tokens[row,:length].tolist()
            at = self._roots[sequence.id]
            prev, root = at
            toks = [t for t in tokens if t>=0]
            seen=[root]+toks
            before=[prev]+[ (toks[p] if p>=0 else root) for p in parents[:len(toks)]]
            seen=np.array(seen); before=np.array(before)
            new=candidates[row,:len(seen)]
            ok=new[:,0]>=0
            seen=seen[ok];before=before[ok];new=new[ok]
            self._table[seen]=new
            if self.pairs:
                key=before*1_000_003+seen
                slot=key*2654435761>>7&PAIRS-1
                self._pairs[slot]=new
                self._keys[slot]=key

    def end(self, sequence: Sequence) -> None:
        self._drafts.pop(sequence.id, None)

    def _row(self, before, token):
        if self.pairs:
            key=before*1_000_003+token
            slot=key*2654435761>>7&PAIRS-1
            if self._keys[slot]==key: return self._pairs[slot].tolist(), self.recycling_candidates
        return self._table[token].tolist(), 0

    def _draft(self, sequence: Sequence, budget: int) -> Draft:
        k=self.recycling_candidates
        self._roots=getattr(self,"_roots",{})
        prev,root=sequence.tokens[-2],sequence.tokens[-1]
        self._roots[sequence.id]=(prev,root)
        rates=self._rates.rates.tolist()
        order={0:sorted(range(k),key=lambda r:-rates[r]), k:sorted(range(k),key=lambda r:-rates[k+r])}
        tokens=[];parents=[];scores=[];kinds=[]
        heap=[]
        arrival=0
        def offer(parent,row,base,place,above):
            nonlocal arrival
            if place<k:
                rank=order[base][place]
                s=above*rates[base+rank]
                if s>=self.recycling_min_token_prob:
                    arrival+=1
                    heappush(heap,(-s,arrival,parent,row,base,place,above))
        row,base=self._row(prev,root)
        if budget: offer(-1,row,base,0,1.0)
        while heap and len(tokens)<budget:
            s,_,parent,row,base,place,above=heappop(heap)
            rank=order[base][place]
            token=row[rank]
            offer(parent,row,base,place+1,above)
            if token<0: continue
            node=len(tokens)
            tokens.append(token);parents.append(parent);scores.append(-s);kinds.append(base+rank)
            r,b=self._row(tokens[parent] if parent>=0 else root,token)
            offer(node,r,b,0,-s)
        self._drafts[sequence.id]=(len(sequence.tokens),tokens,parents,kinds)
        return Draft(tokens,parents,scores)
