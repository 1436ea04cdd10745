"""The target's side of training: its hidden states, its embeddings and its output layer.

States come from the data folder where they were kept, and else from the target itself, run over the texts of a batch
in one pass; nothing is stored. The decoder is the one that serves, so a head learns from what it will read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from foredraft.errors import ConfigError
from foredraft.target.decoder import Decoder
from foredraft.target.flat_pass import FlatPass, Segment
from foredraft.target.kv_cache import KVCache
from foredraft.target.threads import torch_threads
from foredraft.training.examples import Example, in_order, to_example
from foredraft.training.records import STATES, Record, read_manifest

__all__ = ["StateSource", "TargetMatrices", "read_matrices"]

EMBED_ROWS = 4096
PASS_TOKENS = 4096


class StateSource:
    """Examples of records, with the states of `taps` (boundaries; -1: behind the final norm)."""

    def __init__(self, folder: Path, decoder: Decoder, taps: tuple[int, ...], max_length: int) -> None:
        kept = tuple((read_manifest(folder) or {}).get("taps") or ())
        self.taps, self.max_length, self._decoder = taps, max_length, decoder
        self._kept = kept if set(taps) <= set(kept) else ()
        self._file = folder / STATES

    def stored(self, record: Record) -> bool:
        """Whether the record's states are on disk."""
        return bool(self._kept) and record.place is not None

    def examples(self, records: Sequence[Record]) -> list[Example]:
        """In the order of the records, whole texts. What was in the target's cache already when an answer was made was
        not kept with it, and is computed here: a drafter should see the prompt in training as it will later."""
        missing = [
            record.tokens[: record.start] if self.stored(record) else record.tokens[: self.max_length][:-1]
            for record in records
        ]
        computed = self._compute(missing)
        return [
            to_example(record, self._behind(states, record), self.max_length)
            for record, states in zip(records, computed, strict=True)
        ]

    def _behind(self, states: Tensor, record: Record) -> Tensor:
        """`states` and the kept ones, if there are any."""
        return torch.cat([states.cpu(), self._read(record)]) if self.stored(record) else states

    def head(self, states: Tensor) -> Tensor:
        """States behind the final norm [R, H] -> the target's logits [R, V]."""
        decoder = self._decoder
        dtype = torch.float64 if decoder.cache_dtype == torch.float64 else torch.float32
        return decoder.head(states.to(decoder.device, dtype))

    def _read(self, record: Record) -> Tensor:
        width = len(self._kept) * self._decoder.hidden_size
        rows = min(len(record.tokens), self.max_length) - 1 - record.start
        size = rows * width * 2
        with self._file.open("rb") as file:
            found = os.pread(file.fileno(), size, record.place or 0)
        if len(found) != size:
            raise ConfigError(f"{self._file} ends before the states of answer {record.item}; restore it or delete it")
        states = torch.frombuffer(bytearray(found), dtype=torch.bfloat16).view(rows, len(self._kept), -1)
        if self.taps == self._kept:
            return states
        return states[:, [self._kept.index(tap) for tap in self.taps]]

    @torch.no_grad()
    def _compute(self, texts: Sequence[Sequence[int]]) -> list[Tensor]:
        """[n, taps, H] for each text; an empty one costs nothing."""
        found = [torch.empty((0, len(self.taps), self._decoder.hidden_size)) for _ in texts]
        wanted = [index for index, text in enumerate(texts) if text]
        for group in in_order([len(texts[index]) for index in wanted], PASS_TOKENS):
            chosen = [wanted[place] for place in group]
            for index, states in zip(chosen, self._pass([texts[index] for index in chosen]), strict=True):
                found[index] = states
        return found

    def _pass(self, texts: Sequence[Sequence[int]]) -> list[Tensor]:
        decoder = self._decoder
        cache = KVCache(decoder.cache_shape, len(texts), decoder.cache_dtype, decoder.device)
        cache.reserve(max(map(len, texts)))
        segments: list[Segment] = []
        for slot, text in enumerate(texts):
            first = segments[-1].first + segments[-1].rows if segments else 0
            segments.append(Segment(slot, 0, first, len(text)))
        tokens = torch.tensor([token for text in texts for token in text], device=decoder.device)
        positions = torch.cat([torch.arange(len(text)) for text in texts]).to(decoder.device)
        with torch_threads(1 if decoder.own_threads else None):
            hidden = decoder.forward(FlatPass(tokens, positions, tuple(segments)), cache, self.taps)
        assert hidden.taps is not None
        return list(torch.split(hidden.taps.clone(), [len(text) for text in texts]))


class TargetMatrices:
    """embedding [V, H] and output [V, H], float32: logits are output @ (state behind the final norm)."""

    def __init__(self, embedding: Tensor, output: Tensor) -> None:
        self.embedding, self.output = embedding, output


@torch.no_grad()
def read_matrices(decoder: Decoder, name: str) -> TargetMatrices:
    """The target's matrices as the decoder computes with them. Raises ConfigError if its output layer isn't linear."""
    vocabulary = torch.arange(decoder.vocab_size, device=decoder.device)
    embedding = torch.cat([decoder.embed(part).float() for part in torch.split(vocabulary, EMBED_ROWS)]).clone()
    unit = torch.eye(decoder.hidden_size, device=decoder.device)
    dtype = torch.float64 if decoder.cache_dtype == torch.float64 else torch.float32
    output = decoder.head(unit.to(dtype)).float().t().contiguous()
    probe = torch.randn(2, decoder.hidden_size, generator=torch.Generator().manual_seed(0)).to(decoder.device)
    logits = decoder.head(probe.to(dtype)).float()
    if not torch.allclose(probe @ output.t(), logits, rtol=0.05, atol=0.05 * float(logits.std())):
        raise ConfigError(f"{name} does more than one product in its output layer, which training can't follow")
    return TargetMatrices(embedding, output)
