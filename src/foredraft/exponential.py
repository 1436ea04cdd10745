"""e**x in float32 for compiled loops, and the bits of numbers that it is made from."""

# mypy: ignore-errors
# numba and LLVM compile this file; its types are theirs, not Python's.
from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
from numba import float32, int32, njit, types, uint32
from numba.extending import intrinsic

__all__ = ["bits_of", "exponential", "float_of", "nearest"]

F32, I32 = ir.FloatType(), ir.IntType(32)

LOG2E = float32(1.44269504088896341)
LN2_HIGH, LN2_LOW = float32(0.693359375), float32(-2.12194440e-4)


@intrinsic
def bits_of(typingctx: Any, value: Any) -> Any:
    """The bits of a float32 as uint32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], I32)

    return types.uint32(types.float32), generate


@intrinsic
def float_of(typingctx: Any, bits: Any) -> Any:
    """The float32 with these 32 bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], F32)

    return types.float32(types.uint32), generate


@intrinsic
def nearest(typingctx: Any, value: Any) -> Any:
    """The nearest whole float32, halves to even."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.call(builder.module.declare_intrinsic("llvm.rint", [F32]), [arguments[0]])

    return types.float32(types.float32), generate


@njit(inline="always")
def exponential(x):
    """e**x in float32, to about 2 units in the last place, 0 below -87; vectorises (the polynomial of Cephes' expf)."""
    x = min(max(x, float32(-87.5)), float32(88.0))
    whole = nearest(x * LOG2E)
    rest = x - whole * LN2_HIGH - whole * LN2_LOW
    y = float32(1.9875691500e-4)
    y = y * rest + float32(1.3981999507e-3)
    y = y * rest + float32(8.3334519073e-3)
    y = y * rest + float32(4.1665795894e-2)
    y = y * rest + float32(1.6666665459e-1)
    y = y * rest + float32(5.0000001201e-1)
    y = y * rest * rest + rest + float32(1.0)
    power = float_of(uint32((int32(whole) + int32(127)) << int32(23)))
    return y * power if x > float32(-87.0) else float32(0.0)
