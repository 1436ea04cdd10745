"""Whole rows in LLVM's vector instructions: the largest entry, exponentials and their sum, int8 digits, gates."""

# mypy: ignore-errors
# numba and LLVM compile this file; its types are theirs, not Python's.
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.ir as ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from foredraft.target.kernels.builder import (
    F32,
    FLOATS,
    I8,
    I16,
    I32,
    I64,
    INTS,
    LANES,
    SPLIT_INT8,
    call,
    constant,
    load,
    splat,
    store,
)

__all__ = ["exponentials", "gate_panel", "highest", "narrow_exponentials", "quantise", "scale_panel"]

LOG2E, LN2_HIGH, LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
POLYNOMIAL = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
SHIFTS = 4


def _floats(value: float) -> Any:
    return ir.Constant(FLOATS, [value] * LANES)


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return call(builder, "llvm.fma.v16f32", FLOATS, [a, b, c])


def _larger(builder: Any, a: Any, b: Any) -> Any:
    """Lane by lane; b where a is no number."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _exponential(builder: Any, x: Any) -> Any:
    """e**x to about 2 units in the last place, 0 below -87, as at 88 above it (the polynomial of Cephes' expf)."""
    bounded = _larger(builder, x, _floats(-87.5))
    bounded = builder.select(builder.fcmp_ordered("<", bounded, _floats(88.0)), bounded, _floats(88.0))
    whole = call(builder, "llvm.rint.v16f32", FLOATS, [builder.fmul(bounded, _floats(LOG2E))])
    rest = _fma(builder, whole, _floats(-LN2_HIGH), bounded)
    rest = _fma(builder, whole, _floats(-LN2_LOW), rest)
    y = _floats(POLYNOMIAL[0])
    for coefficient in POLYNOMIAL[1:]:
        y = _fma(builder, y, rest, _floats(coefficient))
    y = _fma(builder, y, builder.fmul(rest, rest), builder.fadd(rest, _floats(1.0)))
    power = builder.shl(builder.add(builder.fptosi(whole, INTS), constant(127)), constant(23))
    y = builder.fmul(y, builder.bitcast(power, FLOATS))
    return builder.select(builder.fcmp_ordered(">", x, _floats(-87.0)), y, _floats(0.0))


def _across(builder: Any, lanes: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """Combine the sixteen lanes pairwise."""
    for distance in (8, 4, 2, 1):
        turned = ir.Constant(INTS, [(lane + distance) % LANES for lane in range(LANES)])
        lanes = combine(lanes, builder.shuffle_vector(lanes, lanes, turned))
    return builder.extract_element(lanes, ir.Constant(I32, 0))


@intrinsic
def highest(typingctx: Any, address: Any, vectors: Any) -> Any:
    """The largest of 16 * `vectors` float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, vectors = arguments
        top = cgutils.alloca_once_value(builder, _floats(-3e38))
        with cgutils.for_range(builder, vectors, intp=I64) as loop:
            x = load(builder, builder.add(address, builder.shl(loop.index, ir.Constant(I64, 6))), FLOATS)
            builder.store(_larger(builder, x, builder.load(top)), top)
        return _across(builder, builder.load(top), lambda a, b: _larger(builder, a, b))

    return types.float32(types.int64, types.int64), generate


def _exponentials(narrow: bool) -> Any:
    @intrinsic
    def exponentials(typingctx: Any, address: Any, vectors: Any, top: Any, scale: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            address, vectors, top, scale = arguments
            top, scale = splat(builder, top, FLOATS), splat(builder, scale, FLOATS)
            total = cgutils.alloca_once_value(builder, ir.Constant(FLOATS, None))
            with cgutils.for_range(builder, vectors, intp=I64) as loop:
                at = builder.add(address, builder.shl(loop.index, ir.Constant(I64, 6)))
                weight = _exponential(builder, builder.fmul(builder.fsub(load(builder, at, FLOATS), top), scale))
                if narrow:  # the halves end up before what is still to be read
                    at = builder.add(address, builder.shl(loop.index, ir.Constant(I64, 5)))
                    high = _round_to_half(builder, weight)
                    store(builder, builder.trunc(builder.lshr(high, constant(16)), ir.VectorType(I16, LANES)), at)
                    weight = builder.bitcast(high, FLOATS)
                else:
                    store(builder, weight, at)
                builder.store(builder.fadd(builder.load(total), weight), total)
            return _across(builder, builder.load(total), builder.fadd)

        return types.float32(types.int64, types.int64, types.float32, types.float32), generate

    return exponentials


def _round_to_half(builder: Any, x: Any) -> Any:
    """The bits of the nearest bfloat16, ties to even, followed by zeros."""
    bits = builder.bitcast(x, INTS)
    odd = builder.and_(builder.lshr(bits, constant(16)), constant(1))
    return builder.and_(builder.add(bits, builder.add(odd, constant(0x7FFF))), constant(-65536))


exponentials = _exponentials(narrow=False)
"""(address, vectors, top, scale): x = e ** ((x - top) * scale) for 16 * `vectors` float32 in place; returns their sum.

The sum goes lane by lane, then over the lanes pairwise, so that trailing zeros change nothing.
"""

narrow_exponentials = _exponentials(narrow=True)
"""The same, but the results are bfloat16, at the front of the row, and the sum is that of the rounded numbers."""


@intrinsic
def scale_panel(typingctx: Any, source: Any, factor: Any, target: Any) -> Any:
    """48 float32 times a factor; source and target may be the same."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, factor, target = arguments
        factor = splat(builder, factor, FLOATS)
        for vector in range(3):
            place = ir.Constant(I64, 64 * vector)
            x = load(builder, builder.add(source, place), FLOATS)
            store(builder, builder.fmul(x, factor), builder.add(target, place))
        return context.get_dummy_value()

    return types.void(types.int64, types.float32, types.int64), generate


@intrinsic
def gate_panel(typingctx: Any, source: Any, target: Any) -> Any:
    """silu(gate) * up of 24 float32 gates, followed by their ups; source and target may be the same."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, target = arguments
        products = []
        for first in (0, 8):  # two vectors of sixteen, which overlap
            gate, up = (
                load(builder, builder.add(source, ir.Constant(I64, 4 * (first + at))), FLOATS) for at in (0, 24)
            )
            power = _exponential(builder, builder.fneg(gate))
            products.append(builder.fmul(builder.fdiv(gate, builder.fadd(power, _floats(1.0))), up))
        for first, product in zip((0, 8), products, strict=True):
            store(builder, product, builder.add(target, ir.Constant(I64, 4 * first)))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def quantise(typingctx: Any, source: Any, size: Any, target: Any, scale: Any, row_sum: Any, listed: Any) -> Any:
    """Levels of up to 12 bits for a float32 row: int8 low digits, and high digits (worth 256) for the few entries that
    need one. Low digits are stored as 16-bit numbers where that is how rows are multiplied (`SPLIT_INT8`).

    The finest of five scales is taken at which no more than one entry in 64 needs a high digit, so that a row's
    outliers don't cost the others their precision. `listed` gets the number of words with a high digit, then (word
    index, word) pairs. `size` is a multiple of 16.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, size, target, scale, row_sum, listed = arguments
        vectors = builder.lshr(size, ir.Constant(I64, 4))

        def magnitude(index: Any) -> Any:
            x = load(builder, builder.add(source, builder.shl(index, ir.Constant(I64, 6))), FLOATS)
            return call(builder, "llvm.fabs.v16f32", FLOATS, [x])

        peaks = cgutils.alloca_once_value(builder, ir.Constant(FLOATS, None))
        with cgutils.for_range(builder, vectors, intp=I64) as loop:
            builder.store(_larger(builder, magnitude(loop.index), builder.load(peaks)), peaks)
        top = _across(builder, builder.load(peaks), lambda a, b: _larger(builder, a, b))

        limits = [
            splat(builder, builder.fmul(top, ir.Constant(F32, 0.5**shift)), FLOATS) for shift in range(1, SHIFTS + 1)
        ]
        counts = [cgutils.alloca_once_value(builder, ir.Constant(INTS, None)) for _ in limits]
        with cgutils.for_range(builder, vectors, intp=I64) as loop:
            x = magnitude(loop.index)
            for limit, count in zip(limits, counts, strict=True):
                above = builder.sext(builder.fcmp_ordered(">", x, limit), INTS)
                builder.store(builder.sub(builder.load(count), above), count)
        budget = builder.trunc(builder.lshr(size, ir.Constant(I64, 6)), I32)
        levels = ir.Constant(F32, 127.0)
        for count in counts:
            fits = builder.icmp_signed("<=", _across(builder, builder.load(count), builder.add), budget)
            levels = builder.select(fits, builder.fmul(levels, ir.Constant(F32, 2.0)), levels)
        empty = builder.fcmp_ordered("<", top, ir.Constant(F32, 1e-30))
        inverse = splat(builder, builder.select(empty, ir.Constant(F32, 0.0), builder.fdiv(levels, top)), FLOATS)
        store(builder, builder.fdiv(top, levels), scale)

        total = cgutils.alloca_once_value(builder, ir.Constant(INTS, None))
        found = cgutils.alloca_once_value(builder, ir.Constant(I64, 0))
        quarter = ir.VectorType(I32, 4)
        with cgutils.for_range(builder, vectors, intp=I64) as loop:
            x = load(builder, builder.add(source, builder.shl(loop.index, ir.Constant(I64, 6))), FLOATS)
            level = builder.fptosi(call(builder, "llvm.rint.v16f32", FLOATS, [builder.fmul(x, inverse)]), INTS)
            builder.store(builder.add(builder.load(total), level), total)
            low = builder.trunc(level, ir.VectorType(I8, LANES))
            if SPLIT_INT8:
                order = ir.Constant(INTS, [4 * word + byte for word in range(LANES // 4) for byte in (0, 2, 1, 3)])
                low = builder.shuffle_vector(
                    builder.sext(low, ir.VectorType(I16, LANES)),
                    ir.Constant(ir.VectorType(I16, LANES), ir.Undefined),
                    order,
                )
            store(builder, low, builder.add(target, builder.shl(loop.index, ir.Constant(I64, 5 if SPLIT_INT8 else 4))))
            high = builder.ashr(builder.add(level, constant(128)), constant(8))
            some = builder.bitcast(builder.icmp_signed("!=", high, constant(0)), I16)
            with builder.if_then(builder.icmp_unsigned("!=", some, ir.Constant(I16, 0)), likely=False):
                words = builder.bitcast(builder.trunc(high, ir.VectorType(I8, LANES)), quarter)
                first = builder.shl(builder.trunc(loop.index, I32), ir.Constant(I32, 2))
                for place in range(4):  # written always, kept when not zero
                    word = builder.extract_element(words, ir.Constant(I32, place))
                    pair = builder.add(listed, builder.shl(builder.load(found), ir.Constant(I64, 3)))
                    store(builder, builder.add(first, ir.Constant(I32, place)), builder.add(pair, ir.Constant(I64, 4)))
                    store(builder, word, builder.add(pair, ir.Constant(I64, 8)))
                    more = builder.zext(builder.icmp_unsigned("!=", word, ir.Constant(I32, 0)), I64)
                    builder.store(builder.add(builder.load(found), more), found)
        store(builder, _across(builder, builder.load(total), builder.add), row_sum)
        store(builder, builder.trunc(builder.load(found), I32), listed)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), generate
