"""Log-probabilities of a prompt's own tokens, for `echo` and `prompt_logprobs`.

Decoding computes logits for the last token of a prompt only, and skips what the cache holds already. Scoring needs
them all, so it reads the prompt once more, chunk by chunk on a scratch cache, and disturbs no sequence that is being
decoded. The values are the target's raw ones, as for emitted tokens.
"""

from __future__ import annotations

from collections.abc import Sequence as Collection
from dataclasses import replace

import torch

from foredraft.engine.logprobs import token_logprobs
from foredraft.engine.outputs import Logprob
from foredraft.target.kv_cache import KVCache
from foredraft.target.target import Target
from foredraft.target.threads import torch_threads
from foredraft.tree import TokenTree
from foredraft.types import Batch, Chunk, SamplingParams, Sequence

__all__ = ["PromptScoring"]


class PromptScoring:
    """Scores `tokens`, with the `count` likeliest alternatives each; call `advance` until `done`.

    logprobs  one entry per token; the first is None, since nothing comes before it
    """

    def __init__(self, target: Target, tokens: Collection[int], count: int, *, chunk: int) -> None:
        decoder = target.decoder
        scratch = KVCache(decoder.cache_shape, 1, decoder.cache_dtype, decoder.device)
        self._target = replace(target, cache=scratch)
        self._sequence = Sequence(0, SamplingParams(), list(tokens), len(tokens), seed=0, slot=0)
        self._count = count
        self._chunk = chunk
        self.logprobs: list[dict[int, Logprob] | None] = [None]

    @property
    def done(self) -> bool:
        return len(self.logprobs) >= self._sequence.prompt_length

    @torch.inference_mode()
    def advance(self) -> None:
        """One pass over the next chunk."""
        sequence, target = self._sequence, self._target
        # The last token predicts nothing that was asked for, and leaving it out keeps the chunk from decoding.
        count = min(self._chunk, sequence.pending - 1)
        if count < 1:
            return
        with torch_threads(1 if target.decoder.own_threads else None):
            output = target.forward(Batch((Chunk(sequence, count),)), TokenTree.empty(0))
            logits = target.decoder.head(output.hidden.last)
        start = sequence.cached
        target.cache.keep(0, start, range(count), sequence.tokens[start : start + count])
        sequence.cached += count
        following = sequence.tokens[start + 1 : start + count + 1]
        self.logprobs += token_logprobs(logits, following, self._count, target.tokenizer)
