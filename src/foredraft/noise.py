"""Counter-based Gumbel noise: a pure function of (seed, choice, position, token).

Nothing is drawn in order, so the noise of a token is the same in any batch, on any device, with or without drafts, and
a drafter with a reduced vocabulary can look up just the tokens it has. `pick = argmax(logits + gumbel)` is then an
exact sample of softmax(logits) (the Gumbel-max trick), and the same sample whoever computes it.

Two stages: `row_key` mixes seed, choice and position into 64 bits on the host; `bits` hashes them with a token id into
32 uniform bits by integer arithmetic alone (two rounds of multiply-xorshift with the two halves of the key). `gumbel`
maps bits to float64.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["GUMBEL_MAX", "bits", "gumbel", "row_key"]

_MASK64 = (1 << 64) - 1
# Multipliers of well-tested integer mixers: splitmix64's two and the two of Chris Wellons' 32-bit "lowbias" search.
_MIX64 = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_MIX32 = (0x7FEB352D, 0x846CA68B - (1 << 32))
_GOLDEN = 0x9E3779B97F4A7C15

GUMBEL_MAX = -math.log(-math.log1p(-(2.0**-33)))
"""The largest value that `gumbel` returns, about 22.9: a token whose logit is further below another's can't win."""


def row_key(seed: int, choice: int, position: int) -> int:
    """The key of one draw as a signed 64-bit integer.

    `position` is the absolute position in the sequence of the token to be drawn.
    """
    key = seed & _MASK64
    for word in (choice, position):
        key = _mix64((key + _GOLDEN * (2 * word + 1)) & _MASK64)
    return key - (1 << 64) if key >> 63 else key


def bits(keys: Tensor, tokens: Tensor) -> Tensor:
    """Uniform integers in [0, 2^32).

    keys [R, 1] int64 from `row_key`, tokens [K] or [R, K] int64 -> [R, K] int64
    """
    low = keys.to(torch.int32)  # keeps the low 32 bits
    high = (keys >> 32).to(torch.int32)
    x = tokens.to(torch.int32) ^ low
    x = (x ^ _shift(x, 16)) * _MIX32[0]
    x = (x ^ _shift(x, 15)) + high
    x = (x ^ _shift(x, 16)) * _MIX32[1]
    x = (x ^ _shift(x, 15)) * _MIX32[0]
    x = x ^ _shift(x, 16)
    return x.to(torch.int64) & 0xFFFFFFFF


def gumbel(keys: Tensor, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise.

    keys [R, 1] int64, tokens [K] or [R, K] int64 -> [R, K] float64
    """
    return gumbel_of(bits(keys, tokens))


def gumbel_of(uniform_bits: Tensor) -> Tensor:
    """Map 32 uniform bits to Gumbel noise in float64, monotonically."""
    uniform = (uniform_bits.to(torch.float64) + 0.5) * 2.0**-32
    return -torch.log(-torch.log(uniform))


def _shift(x: Tensor, count: int) -> Tensor:
    return (x >> count) & ((1 << (32 - count)) - 1)


def _mix64(x: int) -> int:
    x = ((x ^ (x >> 30)) * _MIX64[0]) & _MASK64
    x = ((x ^ (x >> 27)) * _MIX64[1]) & _MASK64
    return x ^ (x >> 31)
