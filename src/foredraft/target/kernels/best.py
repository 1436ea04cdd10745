"""The best few scores of a row and the sum of its softmax: scores are read twice and nothing is sorted."""

# mypy: ignore-errors
# numba compiles this file; its types are not Python's.
from __future__ import annotations

import numpy as np
from numba import float32, njit

from foredraft.exponential import exponential
from foredraft.hash_noise import hash_bits, noise_of

__all__ = ["best_noisy_shares", "best_shares"]


@njit
def best_shares(scores, tokens, shares):
    """Fill `tokens` and `shares` with the best entries of `scores` [V], best first and the lower one of equals, and
    their shares of the softmax. A score of -inf has share 0."""
    best(scores, tokens, shares)
    top = shares[0]
    if top == -np.inf:
        shares[:] = float32(0.0)
        return
    total = sum_of_shares(scores, top)
    for place in range(len(shares)):
        shares[place] = exponential(shares[place] - top) / total


@njit
def best_noisy_shares(scores, heat, ids, low, high, candidates, values, tokens, shares):
    """The same under the noise of a key, among the `candidates` likeliest alone: indices and shares of softmax(scores /
    heat + noise). `ids` are the target's ids of the scores, empty if they are the same."""
    best(scores, candidates, values)
    top = -np.inf
    for place in range(len(candidates)):
        token = candidates[place]
        named = ids[token] if len(ids) else token
        noise = noise_of(hash_bits(np.uint32(named), low, high))
        values[place] = float32(np.float64(values[place] / heat) + noise)
        top = max(top, values[place])
    total = float32(0.0)
    for place in range(len(candidates)):
        total += exponential(values[place] - top)
    for place in range(len(tokens)):
        chosen = 0
        for other in range(1, len(candidates)):
            if values[other] > values[chosen]:
                chosen = other
        tokens[place], shares[place] = candidates[chosen], exponential(values[chosen] - top) / total
        values[chosen] = -np.inf


@njit
def best(scores, tokens, found):
    """Fill `tokens` and `found` in falling order of score."""
    count = len(found)
    found[:] = -np.inf
    tokens[:] = np.arange(count)
    held = 0
    for token in range(len(scores)):
        score = scores[token]
        if held == count and score <= found[count - 1]:
            continue
        place = held if held < count else count - 1
        while place > 0 and found[place - 1] < score:
            found[place], tokens[place] = found[place - 1], tokens[place - 1]
            place -= 1
        found[place], tokens[place] = score, token
        held = min(held + 1, count)


@njit(fastmath={"reassoc", "contract", "nsz"})  # lets the sum vectorise
def sum_of_shares(scores, top):
    total = float32(0.0)
    for token in range(len(scores)):
        total += exponential(scores[token] - top)
    return total
