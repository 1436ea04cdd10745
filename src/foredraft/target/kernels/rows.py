"""What is computed row by row between the products: norms, conversions to the product's format, rotary positions,
activation.

A function here reads one row and writes one row, always in the same order.
"""

# mypy: ignore-errors
# numba and LLVM compile this file; its types are theirs, not Python's.
from __future__ import annotations

from math import sqrt

from numba import carray, float32, njit, uint32

from foredraft.exponential import bits_of, float_of
from foredraft.target.kernels.builder import SPLIT_BF16
from foredraft.target.kernels.lanes import quantise
from foredraft.target.kernels.layout import BFLOAT16, INT8
from foredraft.target.kernels.memory import floats_at, halves_at, words_at

__all__ = ["as_bfloat16", "convert_row", "copy_row", "normalise", "rotate", "store_row"]

REORDER = {"reassoc", "contract", "nnan", "nsz"}
"""Lets a sum over a row be split among vector lanes: the same split for every row, since the code is the same."""


@njit(inline="always")
def as_bfloat16(value):
    """The bits of the nearest bfloat16, ties to even."""
    bits = bits_of(value)
    return (bits + uint32(0x7FFF) + ((bits >> uint32(16)) & uint32(1))) >> uint32(16)


@njit(fastmath=REORDER, error_model="numpy")
def inverse_rms(source, size, epsilon):
    x = carray(floats_at(source), (size,))
    total = float32(0.0)
    for i in range(size):
        total += x[i] * x[i]
    return float32(1.0) / float32(sqrt(total / float32(size) + epsilon))


@njit
def normalise(source, weight, size, epsilon, target):
    """Root-mean-square norm of a float32 row; source and target may be the same row."""
    factor = inverse_rms(source, size, epsilon)
    x, w, y = carray(floats_at(source), (size,)), carray(floats_at(weight), (size,)), carray(floats_at(target), (size,))
    for i in range(size):
        y[i] = x[i] * factor * w[i]


@njit
def store_row(source, size, target, narrow):
    """Copy a float32 row, as bfloat16 if `narrow`."""
    x = carray(floats_at(source), (size,))
    if narrow:
        half = carray(halves_at(target), (size,))
        for i in range(size):
            half[i] = as_bfloat16(x[i])
    else:
        copy_row(source, size, target)


@njit
def copy_row(source, words, target):
    x, y = carray(words_at(source), (words,)), carray(words_at(target), (words,))
    for i in range(words):
        y[i] = x[i]


@njit
def convert_row(weight_format, source, size, target, scale, row_sum, listed):
    """A float32 row to the product's format; int8 rows get scale, sum of levels, and list of high digits."""
    if weight_format == INT8:
        quantise(source, size, target, scale, row_sum, listed)
    elif weight_format == BFLOAT16 and SPLIT_BF16:
        store_rounded(source, size, target)
    else:
        store_row(source, size, target, weight_format == BFLOAT16)


@njit
def store_rounded(source, size, target):
    """Copy a float32 row with every number rounded to bfloat16."""
    x, y = carray(floats_at(source), (size,)), carray(floats_at(target), (size,))
    for i in range(size):
        y[i] = float_of(as_bfloat16(x[i]) << uint32(16))


@njit
def rotate(head, rope, size):
    """Rotary position of one head's query or key, in place; rope points to the position's cosines and sines."""
    half = size // 2
    x = carray(floats_at(head), (size,))
    table = carray(floats_at(rope), (size,))
    for i in range(half):
        low, high = x[i], x[i + half]
        cosine, sine = table[i], table[i + half]
        x[i] = low * cosine - high * sine
        x[i + half] = high * cosine + low * sine
