"""A block of the cache in the form that the tiles of attention read: turned, paired or widened."""

# mypy: ignore-errors
# numba and LLVM compile this file; its types are theirs, not Python's.
from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from foredraft.target.kernels.builder import I16, I64, INTS, LANES, constant, halves_of, load, offset, store

__all__ = ["pair_halves", "transpose_halves", "transpose_words", "widen_halves"]

HALVES = ir.VectorType(I16, LANES)


def _transpose(widen: bool) -> Any:
    @intrinsic
    def transpose(typingctx: Any, source: Any, source_stride: Any, target: Any, target_stride: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            source, source_stride, target, target_stride = arguments
            rows = [load(builder, offset(builder, source, source_stride, row), INTS) for row in range(LANES)]
            for distance in (8, 4, 2, 1):  # swap the off-diagonal blocks of that size
                for low in range(LANES):
                    if low & distance:
                        continue
                    high = low + distance
                    first = [lane if not lane & distance else lane - distance + LANES for lane in range(LANES)]
                    second = [lane + distance if not lane & distance else lane + LANES for lane in range(LANES)]
                    top, bottom = rows[low], rows[high]
                    rows[low] = builder.shuffle_vector(top, bottom, ir.Constant(INTS, first))
                    rows[high] = builder.shuffle_vector(top, bottom, ir.Constant(INTS, second))
            if widen:
                rows = [half for row in rows for half in halves_of(builder, row)]
            for number, row in enumerate(rows):
                store(builder, row, offset(builder, target, target_stride, number))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), generate

    return transpose


transpose_words = _transpose(widen=False)
"""(source, source_stride, target, target_stride): sixteen rows of sixteen words to sixteen columns; addresses and
strides in bytes.
"""

transpose_halves = _transpose(widen=True)
"""Sixteen rows of sixteen pairs of bfloat16 to 32 columns of float32."""


@intrinsic
def pair_halves(typingctx: Any, source: Any, count: Any, size: Any, target: Any) -> Any:
    """bfloat16 rows [count, size] to words [ceil(count / 2), size] of two rows each; a missing last row is zero."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, count, size, target = arguments
        vectors = builder.lshr(size, ir.Constant(I64, 4))

        def join(pair: Any, complete: bool) -> None:
            first = builder.add(source, builder.mul(pair, builder.shl(size, ir.Constant(I64, 2))))
            place = builder.add(target, builder.mul(pair, builder.shl(size, ir.Constant(I64, 2))))
            with cgutils.for_range(builder, vectors, intp=I64) as loop:
                at = builder.add(first, builder.shl(loop.index, ir.Constant(I64, 5)))
                words = builder.zext(load(builder, at, HALVES, 2), INTS)
                if complete:
                    below = load(builder, builder.add(at, builder.shl(size, ir.Constant(I64, 1))), HALVES, 2)
                    words = builder.or_(words, builder.shl(builder.zext(below, INTS), constant(16)))
                store(builder, words, builder.add(place, builder.shl(loop.index, ir.Constant(I64, 6))))

        pairs = builder.lshr(count, ir.Constant(I64, 1))
        with cgutils.for_range(builder, pairs, intp=I64) as loop:
            join(loop.index, complete=True)
        with builder.if_then(builder.trunc(count, ir.IntType(1))):
            join(pairs, complete=False)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@intrinsic
def widen_halves(typingctx: Any, source: Any, size: Any, target: Any) -> Any:
    """`size` bfloat16 numbers, a multiple of 16, to float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, size, target = arguments
        with cgutils.for_range(builder, builder.lshr(size, ir.Constant(I64, 4)), intp=I64) as loop:
            halves = load(builder, builder.add(source, builder.shl(loop.index, ir.Constant(I64, 5))), HALVES, 2)
            words = builder.shl(builder.zext(halves, INTS), constant(16))
            store(builder, words, builder.add(target, builder.shl(loop.index, ir.Constant(I64, 6))))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate
