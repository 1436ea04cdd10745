from dataclasses import dataclass
import numpy as np
from bisect import bisect_left
from foredraft.drafters.suffix import SuffixDrafter
TRUST=64
class Alignment:
    def __init__(self,pred,cap=6):
        self.pred=pred; self.array=np.array(pred,dtype=np.int64); self.hyps={0:0}; self.anchor=0; self.lost=0; self.cap=cap
        self.places={}
        for i,t in enumerate(pred): self.places.setdefault(t,[]).append(i)
    def follow(self,token):
        pred=self.pred; n=len(pred)
        kept={p+1:r+1 for p,r in self.hyps.items() if p<n and pred[p]==token}
        self.lost+=1
        lead=max(kept.items(),key=lambda pr:pr[1],default=None)
        if lead and lead[1]>=SYNC:
            self.anchor=lead[0]; self.lost=0
        else:
            kept.setdefault(self.anchor,0)
            if SUB: kept.setdefault(self.anchor+self.lost,0)
            ps=self.places.get(token)
            if ps:
                i=bisect_left(ps,self.anchor)
                for q in ps[i:i+AFTER]: kept.setdefault(q+1,1)
                for q in ps[max(0,i-BEFORE):i]: kept.setdefault(q+1,1)
        if len(kept)>self.cap:
            kept=dict(sorted(kept.items(),key=lambda pr:(-pr[1],abs(pr[0]-self.anchor)))[:self.cap])
        self.hyps=kept
SYNC=3; SUB=True; AFTER=2; BEFORE=1
@dataclass(eq=False)
class PredictionDrafter(SuffixDrafter):
    def start(self,s):
        self.al=getattr(self,"al",{})
        self.al[s.id]=Alignment(s.prediction) if s.prediction else None
    def follow(self,s,new):
        a=self.al[s.id]
        if a:
            for t in new: a.follow(t)
    def gather(self,s):
        a=self.al[s.id]
        if not a: return
        ev=self.evidence
        for p,r in sorted(a.hyps.items(),key=lambda pr:(-pr[1],abs(pr[0]-a.anchor))):
            rest=a.array[p:p+ev.continuations.shape[1]]
            if len(rest)==0: continue
            row=ev.continuations[ev.count]; row[:len(rest)]=rest; row[len(rest):]=-1
            ev.lengths[ev.count]=TRUST+min(r,60)
            ev.count+=1
