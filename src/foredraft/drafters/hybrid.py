from __future__ import annotations
from collections.abc import Sequence as Collection
from dataclasses import dataclass, field
from foredraft.drafters.base import BaseDrafter, Features, Wants
from foredraft.drafters.scored_tree import *
@dataclass(eq=False)
class HybridDrafter(BaseDrafter):
    members: list = field(default_factory=list)
    @property
    def wants(self):
        return Wants(candidates=max(m.wants.candidates for m in self.members))
    def bind(self,t):
        for m in self.members: m.bind(t)
    def begin(self,s):
        for m in self.members: m.begin(s)
    def end(self,s):
        for m in self.members: m.end(s)
    def propose(self,batch,budget):
        trees=[m.propose(batch,budget).drafts() for m in self.members]
        return scored([merge(ds,b) for *ds,b in zip(*trees,budget)])
    def commit(self,b,v,f):
        for m in self.members: m.commit(b,v,f)
