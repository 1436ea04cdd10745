"""Keeps what the target computes while it writes training data, so that training need not compute it again.

A drafter that never drafts: it only taps layers. Rows that were copied from another sequence's cache are not computed
and hence missing, so requests share none while states are kept.
"""

from __future__ import annotations

from collections.abc import Sequence as Collection
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from foredraft.drafters.base import BaseDrafter, Features, Wants
from foredraft.heads.taps import default_boundaries
from foredraft.tree import TokenTree
from foredraft.types import Sequence
from foredraft.verify import Verdict

if TYPE_CHECKING:
    from foredraft.target.target import Target

__all__ = ["LAST", "Recorded", "Recorder", "usual_taps"]

LAST = -1
"""The tap behind the final norm."""


class Recorded(NamedTuple):
    """states [n, taps, H] bfloat16 of the tokens from position `start` on."""

    start: int
    states: Tensor


class Recorder(BaseDrafter):
    """Drafts nothing and keeps the tapped states of every sequence until they are taken."""

    def __init__(self, taps: tuple[int, ...]) -> None:
        self.taps = taps
        self._parts: dict[str, list[Recorded]] = {}

    @property
    def wants(self) -> Wants:
        return Wants(layers=self.taps)

    def begin(self, sequence: Sequence) -> None:
        self._parts[sequence.request_id] = []  # a preempted sequence is computed again

    def propose(self, batch: Collection[Sequence], budget: Collection[int]) -> TokenTree:
        return TokenTree.empty(len(batch))

    def commit(self, batch: Collection[Sequence], verdict: Verdict, features: Features) -> None:
        if features.hidden is None:
            return
        first = 0
        for sequence, start, count in zip(features.sequences, features.starts, features.counts, strict=True):
            states = features.hidden[first : first + count].to("cpu", torch.bfloat16)
            self._parts[sequence.request_id].append(Recorded(start, states))
            first += count

    def take(self, request_id: str) -> Recorded | None:
        """Everything of a request, which is forgotten; None if nothing was computed."""
        parts = self._parts.pop(request_id, [])
        return Recorded(parts[0].start, torch.cat([part.states for part in parts])) if parts else None


def usual_taps(target: Target) -> tuple[int, ...]:
    """What the heads trained here read: low, middle, high, and the state behind the final norm."""
    return (*default_boundaries(target.decoder.cache_shape.layers), LAST)
