"""The best score of every block of a large vocabulary: what tells which blocks need not be looked at."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["BLOCK", "block_maxima"]

BLOCK = 512


def block_maxima(scores: NDArray[np.floating]) -> NDArray[np.floating]:
    """[n, V] -> [n, ceil(V / BLOCK)]. numpy compares whole vectors, which compilers won't do for a maximum."""
    maxima: NDArray[np.floating] = np.maximum.reduceat(scores, np.arange(0, scores.shape[1], BLOCK), axis=1)
    return maxima
