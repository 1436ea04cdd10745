"""Where two answers to one prompt part, and how close the decision was.

Speculation never changes what the target picks for given logits, so a difference can only come from logits that were
rounded differently. The gap between the two best scores at the parting says whether that explains it: near ties can
flip, others can't.
"""

from __future__ import annotations

from collections.abc import Sequence as Collection
from dataclasses import dataclass

import torch

from foredraft.noise import gumbel
from foredraft.sampling import keys_of, process, rows_of
from foredraft.target.target import Target
from foredraft.tree import TokenTree
from foredraft.types import Batch, Chunk, SamplingParams, Sequence

__all__ = ["Difference", "first_difference", "top_two_gap"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token in which a speculative answer differs from the plain one.

    source, position  which prompt, and how many tokens of the answer agree
    plain, other      the two token ids; -1 where that answer had ended
    gap               difference of the two best scores there in a plain pass, in logits; at temperature > 0 after
                      processing, with the request's own noise
    """

    source: str
    position: int
    plain: int
    other: int
    gap: float


def first_difference(plain: Collection[int], other: Collection[int]) -> int | None:
    """The first position in which the answers differ, one being longer included; None if they are equal."""
    for position, (one, two) in enumerate(zip(plain, other, strict=False)):
        if one != two:
            return position
    return None if len(plain) == len(other) else min(len(plain), len(other))


@torch.inference_mode()
def top_two_gap(target: Target, prompt: Collection[int], output: Collection[int], params: SamplingParams) -> float:
    """Difference of the two best scores for the token after `prompt` + `output`, computed plainly.

    `params.seed` must be set unless greedy. Needs a free cache slot.
    """
    tokens = [*prompt, *output]
    sequence = Sequence(-1, params, tokens, len(prompt), params.seed or 0)
    claimed = target.cache.claim(tokens)
    assert claimed is not None, "no cache slot is free"
    sequence.slot, sequence.cached = claimed
    try:
        tree = TokenTree.empty(1)
        logits = target.forward(Batch((Chunk(sequence, sequence.pending),)), tree).logits
    finally:
        target.cache.release(sequence.slot)
    [rows] = rows_of([sequence], tree, target.eos_token_ids)
    scores = process(logits, rows).double()
    if not params.greedy:
        scores = scores + gumbel(keys_of([rows], scores.device), torch.arange(scores.shape[-1], device=scores.device))
    best, second = scores[0].topk(2).values.tolist()
    return float(best - second)
