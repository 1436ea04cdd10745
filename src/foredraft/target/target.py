"""The target: a decoder, its KV cache, and what is known about the model.

`forward` lays a batch and its draft trees out as one flat pass; `commit` keeps the cache entries of the accepted paths.
Between the two, the cache holds entries of drafts that may yet be rejected, and no other sequence can see them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from foredraft.target.decoder import Decoder, Hidden
from foredraft.target.flat_pass import FlatPass, Segment
from foredraft.target.kv_cache import KVCache
from foredraft.tree import TokenTree
from foredraft.types import Batch
from foredraft.verify import Verdict

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Target", "TargetOutput"]


class TargetOutput(NamedTuple):
    """logits [R, V]: for each decoding sequence its root, then its draft nodes. flat, hidden: all rows of the pass."""

    logits: Tensor
    hidden: Hidden
    flat: FlatPass


@dataclass(eq=False)
class Target:
    """The model whose output is reproduced. `tokenizer` is None only for models without text.

    `fingerprint` identifies the checkpoint; what is measured about a model is kept under it.
    """

    decoder: Decoder
    cache: KVCache
    name: str
    max_model_len: int
    eos_token_ids: tuple[int, ...] = ()
    tokenizer: PreTrainedTokenizerBase | None = None
    fingerprint: str = ""

    @property
    def vocab_size(self) -> int:
        return self.decoder.vocab_size

    def forward(self, batch: Batch, tree: TokenTree, taps: tuple[int, ...] = ()) -> TargetOutput:
        """One pass over every chunk of the batch and the draft nodes of its decoding sequences."""
        tokens: list[int] = []
        positions: list[int] = []
        segments: list[Segment] = []
        logit_rows: list[int] = []
        drafts = iter(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True))
        for chunk in batch.chunks:
            sequence, start = chunk.sequence, chunk.sequence.cached
            chain = sequence.tokens[start : start + chunk.count]
            nodes: list[int] = []
            parents: tuple[int, ...] = ()
            if chunk.decodes:
                node_tokens, node_parents = next(drafts)
                nodes = [token for token in node_tokens if token >= 0]
                parents = tuple(chunk.count + parent for parent in node_parents[: len(nodes)])
            assert sequence.slot is not None
            segment = Segment(sequence.slot, start, len(tokens), chunk.count, parents)
            if chunk.decodes:
                logit_rows.extend(range(segment.first + chunk.count - 1, segment.first + segment.rows))
            tokens += chain + nodes
            positions += [start + depth for depth in segment.depths()]
            segments.append(segment)
        self.cache.reserve(max(segment.start + segment.rows for segment in segments))
        device = self.decoder.device
        flat = FlatPass(torch.tensor(tokens, device=device), torch.tensor(positions, device=device), tuple(segments))
        hidden = self.decoder.forward(flat, self.cache, taps)
        if not logit_rows:
            logits = hidden.last.new_empty((0, self.vocab_size))
        elif len(logit_rows) == flat.rows:
            logits = self.decoder.head(hidden.last)
        else:
            logits = self.decoder.head(hidden.last[torch.tensor(logit_rows, device=device)])
        return TargetOutput(logits, hidden, flat)

    def commit(self, batch: Batch, verdict: Verdict, flat: FlatPass) -> list[int]:
        """Keep the entries of chunks and accepted nodes, drop the others; the sequences' `cached` counts grow.

        Returns the rows of the pass that were kept, sequence by sequence.
        """
        kept_rows: list[int] = []
        verdicts = iter(zip(verdict.path.tolist(), verdict.tokens.tolist(), strict=True))
        for chunk, segment in zip(batch.chunks, flat.segments, strict=True):
            sequence = chunk.sequence
            entries = list(range(chunk.count))
            tokens = sequence.tokens[sequence.cached : sequence.cached + chunk.count]
            if chunk.decodes:
                path, emitted = next(verdicts)
                accepted = [node for node in path if node >= 0]
                entries += [chunk.count + node for node in accepted]
                tokens += emitted[: len(accepted)]
            self.cache.keep(segment.slot, segment.start, entries, tokens)
            sequence.cached += len(entries)
            kept_rows += [segment.first + entry for entry in entries]
        return kept_rows
