"""The noise of noise.py, compiled: uniform bits of a token under a row's key, and the noise that they stand for."""

# mypy: ignore-errors
# numba compiles this file; its types are not Python's.
from __future__ import annotations

import math

import numpy as np
from numba import njit

__all__ = ["hash_bits", "noise_of"]

_FIRST, _SECOND = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)


@njit
def hash_bits(token, low, high):
    """32 bits of a token; `low` and `high` are the halves of the key. All are uint32."""
    x = np.uint32(token ^ low)
    x = np.uint32((x ^ (x >> np.uint32(16))) * _FIRST)
    x = np.uint32((x ^ (x >> np.uint32(15))) + high)
    x = np.uint32((x ^ (x >> np.uint32(16))) * _SECOND)
    x = np.uint32((x ^ (x >> np.uint32(15))) * _FIRST)
    return np.uint32(x ^ (x >> np.uint32(16)))


@njit
def noise_of(bits):
    """float64"""
    return -math.log(-math.log((np.float64(bits) + 0.5) * 2.0**-32))
