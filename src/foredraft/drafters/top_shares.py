"""The best few scores of a row and their softmax, by compiled code that reads scores twice and sorts nothing."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from foredraft.target.kernels.best import best_shares

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
        best_shares(scores[row], tokens[row], shares[row])
