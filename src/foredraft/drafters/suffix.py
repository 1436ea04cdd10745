"""proto"""
from __future__ import annotations
from collections.abc import Sequence as Collection
from dataclasses import dataclass, field
import numpy as np
from foredraft.drafters.base import BaseDrafter, Features
from foredraft.drafters.hit_rates import HitRates
from foredraft.drafters.scored_tree import Draft, ScoredTree, outcomes, scored
from foredraft.tree import TokenTree
from foredraft.types import Sequence
from foredraft.verify import Verdict
LOG=[]
@dataclass(eq=False)
class SuffixDrafter(BaseDrafter):
    num_speculative_tokens: int = 16
    occurrences: int = 32
    branches: int = 4
    least: float = 0.1
    depth: int = 64
    match: int = 32
    log: bool = False
    use_prediction: bool=True
    def start(self,s): pass
    def follow(self,s,new): pass
    def __post_init__(self):
        self.rates=None
    def bind(self,target):
        from foredraft.drafters.suffix_index import Evidence
        from foredraft.drafters.suffix_kernels import KINDS
        self.evidence=Evidence(self.occurrences,self.depth)
        if self.rates is None: self.rates=HitRates([0.5]*KINDS)
        self.index={}
        self.last={}
    def begin(self,s):
        from foredraft.drafters.suffix_index import SuffixIndex
        pre=[*s.prediction,-1] if s.prediction and self.use_prediction else []; ix=self.index[s.id]=SuffixIndex(pre+s.tokens); ix.offset=len(pre); self.start(s)
    def end(self,s):
        del self.index[s.id]; self.last.pop(s.id,None)
    def gather(self,s): pass
    def propose(self,batch,budget):
        out=[]
        for s,b in zip(batch,budget):
            ix=self.index[s.id]
            new=s.tokens[ix.length-ix.offset:]
            if new: ix.append(new); self.follow(s,new)
            ev=self.evidence; ev.count=0
            self.gather(s)
            ix.recall(ix.tail(self.match),ev)
            t,p,sc,k=ev.grow(self.rates.rates,self.least,self.branches,b) if b else ([],[],[],[])
            self.last[s.id]=(len(s.tokens),t,p,k)
            out.append(Draft(t,p,sc))
        return scored(out)
    def commit(self,batch,verdict,features):
        for s in batch:
            if s.id not in self.last: continue
            at,t,p,k=self.last.pop(s.id)
            for n,right in outcomes(t,p,s.tokens[at:]):
                self.rates.record(k[n],right)
                if self.log: LOG.append((k[n],right))
