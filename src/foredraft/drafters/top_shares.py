"""The best few scores of a row and their softmax, by compiled code that reads scores twice and sorts nothing."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from foredraft.target.kernels.rows import exponential

__all__ = ["top_shares"]


def top_shares(scores: NDArray[np.float32], count: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """scores [n, V] -> indices [n, count], best first and the lower one of equals, and their shares of the softmax.

    A score of -inf has share 0.
    """
    tokens = np.empty((len(scores), count), np.int64)
    shares = np.empty((len(scores), count), np.float32)
    _all_rows(scores, tokens, shares)
    return tokens, shares


@njit(cache=True, nogil=True)
def _all_rows(scores: NDArray[np.float32], tokens: NDArray[np.int64], shares: NDArray[np.float32]) -> None:
    for row in range(len(scores)):
        _best(scores[row], tokens[row], shares[row])
        top = shares[row, 0]
        if top == -np.inf:
            shares[row] = np.float32(0.0)
            continue
        total = _total(scores[row], top)
        for place in range(len(shares[row])):
            shares[row, place] = exponential(shares[row, place] - top) / total


@njit(cache=True, nogil=True)
def _best(scores: NDArray[np.float32], tokens: NDArray[np.int64], best: NDArray[np.float32]) -> None:
    """Fill `tokens` and `best` in falling order of score."""
    count = len(best)
    best[:] = -np.inf
    tokens[:] = np.arange(count)
    held = 0
    for token in range(len(scores)):
        score = scores[token]
        if held == count and score <= best[count - 1]:
            continue
        place = held if held < count else count - 1
        while place > 0 and best[place - 1] < score:
            best[place], tokens[place] = best[place - 1], tokens[place - 1]
            place -= 1
        best[place], tokens[place] = score, token
        held = min(held + 1, count)


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})  # lets the sum vectorise
def _total(scores: NDArray[np.float32], top: np.float32) -> np.float32:
    total = np.float32(0.0)
    for token in range(len(scores)):
        total += exponential(scores[token] - top)
    return total
