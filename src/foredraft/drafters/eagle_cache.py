"""The keys and values of an EAGLE head, and the rows that are still to be read.

Row t of a sequence reads the embedding of its token t + 1 and the target's feature of position t. Such rows are stable:
they are computed from the target's own features, once, after the target has committed them, so nothing that a draft
left behind survives it. Features wait until somebody drafts, or until too many do; then all sequences catch up in one
pass. Draft nodes are written behind the stable rows and never kept.

A slot's entries are named after the pair of tokens that a row depends on last, so that a prompt that begins like
another one takes over its rows, as it takes over the target's. The target computes nothing for what it takes over, so
the feature at which two texts part is kept with the rows, too. Should the target have more than there is here all the
same, rows are missing, and the sequence goes on with what it has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from foredraft.drafters.eagle_pass import EaglePass, Group
from foredraft.heads.eagle import EagleHead
from foredraft.target.kv_cache import CacheShape, KVCache
from foredraft.types import Sequence

__all__ = ["EagleCache", "Level"]

MOST_ROWS = 512
"""Rows per pass when long texts are caught up with."""
MOST_WAITING, FEW_WAITING = 1024, 32
"""Features of one sequence that may wait; and that are read although it is over: more are waiting only where drafting
doesn't pay, and reading a whole prompt for its successor would pay even less."""
MOST_SHARED = 64
"""Rows of a tensor that waits as it is: a part of a longer one is copied, so as not to hold the prompts of others."""
MISSING, NOBODYS = -1, -2
"""Names of an entry that follows missing rows, which no other sequence can take over, and of none."""


class Level(NamedTuple):
    """Nodes of one sequence's tree that a pass reads: rows `first .. first + rows` of it.

    entries  entries of earlier levels, behind the stable ones
    mask     [rows, entries + rows] bool, which of those and of one another they see; None if all of them
    """

    sequence: Sequence
    first: int
    rows: int
    entries: int
    mask: Tensor | None


@dataclass(eq=False)
class _Held:
    """reached: rows below it are in the slot, or will never be. inherited: the feature [H] of row `reached`, if another
    sequence has left it. waiting: the target's features of the rows that follow, as rows `first .. end` of a tensor
    [T, taps, Ht], which cost nothing to keep where nobody drafts. state: of row `reached - 1`.
    """

    sequence: Sequence
    slot: int
    reached: int
    inherited: Tensor | None = None
    waiting: list[tuple[Tensor, int, int]] = field(default_factory=list)
    rows_waiting: int = 0
    state: Tensor | None = None
    hole: bool = False

    @property
    def known(self) -> int:
        """The first row whose feature isn't known."""
        return self.reached + (self.inherited is not None) + self.rows_waiting

    @property
    def pending(self) -> int:
        """Rows to be read whose feature and token are known: a row needs the token after its own."""
        return min(self.known, len(self.sequence.tokens) - 1) - self.reached

    def take(self, rows: int) -> Tensor:
        """The first `rows` waiting features, which then no longer wait."""
        features = torch.cat([whole[first:end] for whole, first, end in self.waiting])
        self.waiting = [(features, rows, len(features))] if rows < len(features) else []
        self.rows_waiting -= rows
        return features[:rows]

    def forget(self) -> None:
        """Drop everything that waits."""
        self.inherited, self.waiting, self.rows_waiting = None, [], 0


class EagleCache:
    """Rows of `head`, which `passes` runs, for as many sequences as the target's cache has slots; of those that are
    over no more are kept than it keeps tokens.
    """

    def __init__(
        self, head: EagleHead, passes: EaglePass, beside: KVCache, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = head.shape
        heads, size = [shape.kv_heads] * shape.layers, [shape.head_dim] * shape.layers
        # One more layer, whose keys are the rows' features.
        layout = CacheShape((*heads, 1), (*size, shape.hidden), (*size, 0))
        self.kv = KVCache(layout, beside.slots, passes.cache_dtype, device)
        self._beside = beside
        self._head, self._passes, self._device, self._dtype = head, passes, device, dtype
        self._held: dict[int, _Held] = {}

    def begin(self, sequence: Sequence) -> None:
        """Start from the rows of another sequence that began alike."""
        # The name added is nobody's, so that even the last row can be taken over.
        names = [*self._names(sequence, 0, len(sequence.tokens) - 1), NOBODYS]
        inherited = self._feature_at_parting(sequence, names)
        claimed = self.kv.claim(names, sequence.params.cache_salt, room=self._beside.retained)
        assert claimed is not None, "there are as many slots as in the target's cache"
        self._held[sequence.id] = _Held(sequence, *claimed, inherited)

    def end(self, sequence: Sequence) -> None:
        """Forget a sequence; its rows stay until another one needs the room."""
        held = self._held.pop(sequence.id)
        try:
            if held.pending <= FEW_WAITING:
                self._read([held])  # what follows may begin with all of this text
        finally:
            self.kv.retain(self._beside.retained)
            self.kv.release(held.slot)

    def add(self, sequence: Sequence, start: int, features: Tensor, first: int, count: int) -> None:
        """The target's features of `count` positions from `start` on are rows of `features` [T, taps, Ht] from `first`
        on.
        """
        held = self._held[sequence.id]
        if start > held.known:
            held.forget()
            held.reached, held.state, held.hole = start, None, True
        if (new := start + count - held.known) > 0:
            end = first + count
            if len(features) > MOST_SHARED:
                features, end = features[first:end].clone(), count
            held.waiting.append((features, end - new, end))
            held.rows_waiting += new

    def drop_waiting(self, sequence: Sequence) -> None:
        """Its features won't be needed any more."""
        self._held[sequence.id].forget()

    def catch_up(self, sequences: Iterable[Sequence]) -> None:
        """Read everything that waits."""
        self._read([self._held[sequence.id] for sequence in sequences])

    def relieve(self) -> None:
        """Read what waits for those sequences that have too much of it."""
        self._read([held for held in self._held.values() if held.rows_waiting > MOST_WAITING])

    def state(self, sequence: Sequence) -> Tensor | None:
        """[H] the state of the row before the root, from which drafts start; None if it isn't known."""
        held = self._held[sequence.id]
        return held.state if held.reached == len(sequence.tokens) - 1 else None

    def step(self, levels: Iterable[Level], tokens: Tensor, features: Tensor, positions: Tensor) -> Tensor:
        """Read draft nodes: tokens [T], features [T, H] of their parents, positions [T] -> states [T, H]."""
        groups = []
        for level in levels:
            slot = self.slot(level.sequence)
            groups.append(Group(slot, level.first, level.rows, len(self.kv.tokens(slot)), level.entries, level.mask))
        return self._run(groups, tokens, features, positions)

    def slot(self, sequence: Sequence) -> int:
        return self._held[sequence.id].slot

    def room_behind(self, sequences: Iterable[Sequence], entries: int) -> tuple[list[int], list[int]]:
        """The sequences' slots and how many stable entries they have, with room for `entries` more behind those."""
        slots = [self.slot(sequence) for sequence in sequences]
        stable = [len(self.kv.tokens(slot)) for slot in slots]
        self.kv.reserve(max(stable) + entries)
        return slots, stable

    def _read(self, helds: list[_Held]) -> None:
        open_ones = [held for held in helds if held.pending > 0]
        while open_ones:
            room, work = MOST_ROWS, []
            for held in open_ones:
                if count := min(held.pending, room):
                    work.append((held, count))
                    room -= count
            self._pass(work)
            open_ones = [held for held in open_ones if held.pending > 0]

    def _feature_at_parting(self, sequence: Sequence, names: list[int]) -> Tensor | None:
        """[H] of the first row that can't be taken over, if only the token after its position is another one there."""
        prefixes = self.kv.prefixes(names, sequence.params.cache_salt)
        shared, slot = max((length, slot) for slot, length in enumerate(prefixes))
        held = self.kv.tokens(slot)
        if shared >= len(held) or held[shared] // self._head.shape.vocab_size != sequence.tokens[shared]:
            return None
        return self.kv.keys[-1][slot, 0, shared].clone()

    @torch.inference_mode()
    def _pass(self, work: list[tuple[_Held, int]]) -> None:
        """One pass over waiting rows of several sequences."""
        tokens: list[int] = []
        places: list[int] = []
        groups: list[Group] = []
        waiting, inherited = [], {}
        for held, count in work:
            groups.append(Group(held.slot, len(tokens), count, len(self.kv.tokens(held.slot)), 0, None))
            tokens += held.sequence.tokens[held.reached + 1 : held.reached + 1 + count]
            places += range(held.reached, held.reached + count)
            if held.inherited is not None:
                inherited[len(places) - count] = held.inherited
                count -= 1
            if count:
                waiting.append(held.take(count))
            held.inherited = None
        features = self._fused(waiting, inherited, len(tokens))
        states = self._run(
            groups, torch.tensor(tokens, device=self._device), features, torch.tensor(places, device=self._device)
        )
        for group, (held, count) in zip(groups, work, strict=True):
            rows = slice(group.first, group.first + count)
            self.kv.append(len(self.kv.keys) - 1, held.slot, group.start, *_as_entries(features[rows]))
            names = self._names(held.sequence, held.reached, count)
            self.kv.keep(held.slot, group.start, range(count), [MISSING] * count if held.hole else names)
            held.reached += count
            held.state = states[group.first + count - 1].clone()

    def _run(self, groups: list[Group], tokens: Tensor, features: Tensor, positions: Tensor) -> Tensor:
        self.kv.reserve(max(group.start + group.rows for group in groups))
        return self._passes.run(tokens, features, positions, groups, self.kv)

    def _fused(self, waiting: list[Tensor], inherited: dict[int, Tensor], rows: int) -> Tensor:
        """[rows, H] features in the order of the pass: the target's, and those that were fused before."""
        fused = self._head.fuse(torch.cat(waiting).to(self._device, self._dtype)) if waiting else None
        if not inherited and fused is not None:
            return fused
        features = torch.empty((rows, self._head.shape.hidden), dtype=self._dtype, device=self._device)
        others = torch.ones(rows, dtype=torch.bool, device=self._device)
        for row, feature in inherited.items():
            features[row], others[row] = feature, False
        if fused is not None:
            features[others] = fused
        return features

    def _names(self, sequence: Sequence, first: int, count: int) -> list[int]:
        tokens, vocab_size = sequence.tokens, self._head.shape.vocab_size
        return [tokens[row] * vocab_size + tokens[row + 1] for row in range(first, first + count)]


def _as_entries(features: Tensor) -> tuple[Tensor, Tensor]:
    """[n, H] as keys [n, 1, H] and values of no size."""
    keys = features.unsqueeze(1)
    return keys, keys[:, :, :0]
