"""What a drafting head guesses after a row, best first, and how sure each guess is.

Greedy requests are guessed from the head's probabilities. When the target samples, its pick is the best token under its
logits plus noise that the drafter knows (noise.py), so the head's own logits with the same noise say more than its
probabilities do: if the two models' logits differed by independent Gumbel errors, a token would be picked with exactly
the softmax of the perturbed scores. How often guesses of each confidence really come true is measured as it goes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foredraft.noise import gumbel, row_key
from foredraft.sampling import Rows, best_under_noise, is_edited, keys_of, process
from foredraft.types import Sequence

__all__ = [
    "CALIBRATION_PRIOR",
    "CENTRES",
    "EDGES",
    "Guesses",
    "Ranking",
    "calibrated",
    "guess",
    "noise_keys",
]

CONSIDERED = 48
"""Tokens whose noise is looked up for each row, besides the winner under noise."""
LOWEST = -1e30

EDGES = np.array([0.005, 0.01, 0.02, 0.04, 0.08, 0.14, 0.22, 0.32, 0.45, 0.6, 0.75, 0.87, 0.95, 0.985])
"""Between the kinds of guesses, by confidence."""
CENTRES = np.concatenate([[0.0025], np.sqrt(EDGES[:-1] * EDGES[1:]), [0.995]])
KINDS = len(CENTRES)
CALIBRATION_PRIOR = [*CENTRES.tolist(), *(0.02 + 0.9 * CENTRES).tolist()]
"""For `HitRates`: guesses for greedy requests, then guesses under noise."""


class Ranking(StrEnum):
    """How guesses under noise are ranked: all by their perturbed score, all by the head's probability, or the winner
    under noise first and the others by probability.
    """

    PERTURBED = "perturbed"
    PROBABILITY = "probability"
    MIXED = "mixed"


class Guesses(NamedTuple):
    """tokens [n, k] int64 and confidences [n, k], best first; excluded tokens have confidence 0."""

    tokens: Tensor
    confidences: Tensor


def guess(
    logits: Tensor, rows: Rows, count: int, *, draft_ids: Tensor | None, vocab_size: int, ranking: Ranking
) -> Guesses:
    """The `count` best guesses of the target's pick at each row of one sequence.

    logits [n, Vd]; `draft_ids` [Vd] are the target's ids of a reduced draft vocabulary, None if it is the target's.
    """
    params = rows.sequence.params
    if draft_ids is not None and is_edited(rows.sequence):  # these processors go by the target's ids
        logits, draft_ids = _spread(logits, draft_ids, vocab_size), None
    scores = process(logits, rows)
    if not params.greedy:
        keys = keys_of([rows], scores.device)
        full = scores if draft_ids is None else _spread(scores, draft_ids, vocab_size)
        return _under_noise(scores, full, keys, count, draft_ids, ranking)
    tokens, shares = _best(scores, min(count, scores.shape[-1]))
    return Guesses(tokens if draft_ids is None else draft_ids[tokens], shares)


def noise_keys(sequence: Sequence, depth: int) -> list[int]:
    """The keys of the noise at the root of a draft and below, by level; zeros without noise."""
    if sequence.params.greedy:
        return [0] * depth
    length = len(sequence.tokens)
    return [row_key(sequence.seed, sequence.choice, length + level) for level in range(depth)]


def calibrated(
    rates: NDArray[np.float64], confidences: Tensor, greedy: bool
) -> tuple[list[list[float]], list[list[int]]]:
    """[n, k] -> the probability that each guess comes true, given that the text gets there; and its kind, an index into
    the hit rates of `CALIBRATION_PRIOR`. `rates` are one such table, or a table for each row [n, 2 kinds].
    """
    given = confidences.double().cpu().numpy()
    own = np.broadcast_to(rates[..., :KINDS] if greedy else rates[..., KINDS:], (len(given), KINDS))
    place = np.interp(given, CENTRES, np.arange(KINDS))
    below = np.minimum(place.astype(np.int64), KINDS - 2)
    low, high = np.take_along_axis(own, below, 1), np.take_along_axis(own, below + 1, 1)
    values = np.where(given > 0, low + (place - below) * (high - low), 0.0)
    kinds = np.searchsorted(EDGES, given) + (0 if greedy else KINDS)
    return values.tolist(), kinds.tolist()


def _best(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` best of [n, V] scores and their probabilities, [n, count] each."""
    if scores.device.type == "cpu" and scores.dtype == torch.float32:
        from foredraft.drafters.top_shares import top_shares

        tokens, shares = top_shares(scores.contiguous().numpy(), count)
        return torch.from_numpy(tokens), torch.from_numpy(shares)
    best, found = scores.topk(count, dim=-1)
    return found, (best - _total(scores)).exp()


def _under_noise(
    scores: Tensor, full: Tensor, keys: Tensor, count: int, draft_ids: Tensor | None, ranking: Ranking
) -> Guesses:
    """scores [n, Vd] by draft id, full [n, V] by the target's, for whose noise keys [n, 1] are."""
    values, tokens = scores.topk(min(max(CONSIDERED, 2 * count), scores.shape[-1]), dim=-1)
    tokens = tokens if draft_ids is None else draft_ids[tokens]
    if ranking is Ranking.PROBABILITY:
        return Guesses(tokens[:, :count], (values[:, :count] - _total(scores)).exp())
    winner = best_under_noise(full, keys).unsqueeze(1)
    values = torch.cat([full.gather(1, winner), values.masked_fill(tokens == winner, -torch.inf)], dim=1)
    tokens = torch.cat([winner, tokens], dim=1)
    shares = (values + gumbel(keys, tokens)).softmax(dim=-1).nan_to_num(0.0)
    if ranking is Ranking.MIXED:
        left = 1 - shares[:, :1]
        shares = torch.cat([shares[:, :1], (values - _total(scores)).exp()[:, 1:] * left], dim=1)
    merit = shares.clone()
    merit[:, 0] = torch.inf  # the winner comes first in either ranking
    order = merit.argsort(dim=-1, descending=True)[:, :count]
    return Guesses(tokens.gather(1, order), shares.gather(1, order))


def _spread(values: Tensor, draft_ids: Tensor, vocab_size: int) -> Tensor:
    """[n, Vd] by draft id -> [n, V] by the target's, -inf where there is none."""
    return values.new_full((values.shape[0], vocab_size), -torch.inf).index_copy(1, draft_ids, values)


def _total(scores: Tensor) -> Tensor:
    """[n, 1] the logarithm of the sum; finite even if a form excludes all of a draft vocabulary."""
    return scores.logsumexp(dim=-1, keepdim=True).clamp_min(LOWEST)
