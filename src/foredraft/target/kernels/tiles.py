"""The register tile of a matrix product in LLVM's vector instructions. This is where the time goes.

A tile multiplies up to 8 rows by 16 x `width` columns, `word` by word: a word is four bytes, that is four int8, two
bfloat16 or one float32 numbers along the reduced dimension. The order of the sum over words is fixed and the same for
every row count, so a row's result has the same bits whichever rows share the tile. Processors without the dot-product
instructions get the same sums from simpler ones.
"""

# mypy: ignore-errors
# numba and LLVM compile this file; its types are theirs, not Python's.
from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from foredraft.target.kernels.builder import (
    FLOATS,
    I16,
    I32,
    I64,
    INTS,
    LANES,
    call,
    constant,
    features,
    load,
    offset,
    prefetch,
    splat,
    store,
)

__all__ = [
    "multiply_bf16",
    "multiply_f32",
    "multiply_int8",
    "multiply_listed",
    "pair_halves",
    "score_bf16",
    "score_f32",
    "transpose_words",
    "weigh_bf16",
    "weigh_f32",
]

AHEAD, AHEAD_FROM = 8192, 6
"""Bytes by which a product asks for weights before it needs them, and from how many rows on: tiles of fewer rows read
so fast that the processor's own prefetching keeps up, and the requests only cost."""


def _step_int8(builder: Any, total: Any, row: Any, column: Any) -> Any:
    """Four products of a signed activation and an unsigned weight (its int8 plus 128), summed exactly in 32 bits."""
    if features().get("avx512vnni"):
        return call(builder, "llvm.x86.avx512.vpdpbusd.512", INTS, [total, column, row])
    for shift in range(4):  # exact as well: the sums are integers
        weight = builder.and_(builder.lshr(column, constant(8 * shift)), constant(255))
        activation = builder.ashr(builder.shl(row, constant(24 - 8 * shift)), constant(24))
        total = builder.add(total, builder.mul(weight, activation))
    return total


def _step_bf16(builder: Any, total: Any, row: Any, column: Any) -> Any:
    """Two products of bfloat16 numbers."""
    if features().get("avx512bf16"):
        return call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", FLOATS, [total, column, row])
    for high in (False, True):
        weight, activation = (
            builder.bitcast(builder.and_(word, constant(-65536)) if high else builder.shl(word, constant(16)), FLOATS)
            for word in (column, row)
        )
        total = call(builder, "llvm.fma.v16f32", FLOATS, [weight, activation, total])
    return total


def _step_f32(builder: Any, total: Any, row: Any, column: Any) -> Any:
    return call(
        builder, "llvm.fma.v16f32", FLOATS, [builder.bitcast(row, FLOATS), builder.bitcast(column, FLOATS), total]
    )


def _column(builder: Any, address: Any, vector: int) -> Any:
    return load(builder, builder.add(address, ir.Constant(I64, 64 * vector)), INTS)


def _tile_function(module: Any, name: str, rows: int, width: int, step: Any, accumulate: bool, ahead: int) -> Any:
    """name(a, a_stride, w, w_stride, c, c_stride, words): c[rows, 16 * width] (+)= a[rows, words] . w[words, 16 *
    width], strides in bytes.
    """
    symbol = f"foredraft_{name}_{rows}x{width}"
    if symbol in module.globals:
        return module.globals[symbol]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 7), symbol)
    function.linkage = "internal"
    a, a_stride, w, w_stride, c, c_stride, words = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    kind = INTS if step is _step_int8 else FLOATS
    cells = [(row, vector) for row in range(rows) for vector in range(width)]
    outputs = {}
    for row, vector in cells:
        outputs[row, vector] = builder.add(offset(builder, c, c_stride, row), ir.Constant(I64, 64 * vector))
    starts = {cell: load(builder, outputs[cell], kind) if accumulate else ir.Constant(kind, None) for cell in cells}
    row_addresses = [offset(builder, a, a_stride, row) for row in range(rows)]
    entry, loop, done = builder.block, function.append_basic_block("loop"), function.append_basic_block("done")
    builder.cbranch(builder.icmp_signed(">", words, ir.Constant(I64, 0)), loop, done)

    builder.position_at_end(loop)
    index, at = builder.phi(I64), builder.phi(I64)
    index.add_incoming(ir.Constant(I64, 0), entry)
    at.add_incoming(w, entry)
    totals = {cell: builder.phi(kind) for cell in cells}
    columns = [_column(builder, at, vector) for vector in range(width)]
    for vector in range(width if ahead and rows >= AHEAD_FROM else 0):
        prefetch(builder, builder.add(at, ir.Constant(I64, ahead + 64 * vector)))
    place = builder.shl(index, ir.Constant(I64, 2))
    sums = {}
    for row in range(rows):
        word = splat(builder, load(builder, builder.add(row_addresses[row], place), I32), INTS)
        for vector in range(width):
            totals[row, vector].add_incoming(starts[row, vector], entry)
            sums[row, vector] = step(builder, totals[row, vector], word, columns[vector])
    following = builder.add(index, ir.Constant(I64, 1))
    index.add_incoming(following, loop)
    at.add_incoming(builder.add(at, w_stride), loop)
    for cell in cells:
        totals[cell].add_incoming(sums[cell], loop)
    builder.cbranch(builder.icmp_signed("<", following, words), loop, done)

    builder.position_at_end(done)
    for cell in cells:
        result = builder.phi(kind)
        result.add_incoming(starts[cell], entry)
        result.add_incoming(sums[cell], loop)
        outputs[cell] = (outputs[cell], result)
    for address, result in outputs.values():
        store(builder, result, address)
    builder.ret_void()
    return function


def _tile(
    name: str,
    max_rows: int,
    widths: tuple[int, ...],
    step: Any,
    column: Any = _column,
    accumulate: bool = False,
    ahead: int = 0,
) -> Any:
    """An intrinsic (rows, width, a, a_stride, w, w_stride, c, c_stride, words) that calls the tile function for that
    many rows.
    """

    @intrinsic
    def tile(
        typingctx: Any,
        rows: Any,
        width: Any,
        a: Any,
        a_stride: Any,
        w: Any,
        w_stride: Any,
        c: Any,
        c_stride: Any,
        words: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            selected = builder.add(builder.mul(arguments[1], ir.Constant(I64, 16)), arguments[0])
            end = builder.append_basic_block("tile.end")
            switch = builder.switch(selected, end)
            for width in widths:
                for rows in range(1, max_rows + 1):
                    block = builder.append_basic_block("tile.case")
                    switch.add_case(ir.Constant(I64, 16 * width + rows), block)
                    with builder.goto_block(block):
                        builder.call(
                            _tile_function(builder.module, name, rows, width, step, accumulate, ahead),
                            arguments[2:],
                        )
                        builder.branch(end)
            builder.position_at_end(end)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9), generate

    return tile


multiply_int8 = _tile("multiply_int8", 8, (3,), _step_int8, ahead=AHEAD)
multiply_bf16 = _tile("multiply_bf16", 8, (3,), _step_bf16, ahead=AHEAD)
multiply_f32 = _tile("multiply_f32", 8, (3,), _step_f32, ahead=AHEAD)
score_bf16 = _tile("score_bf16", 6, (4,), _step_bf16)
score_f32 = _tile("score_f32", 6, (4,), _step_f32)
weigh_bf16 = _tile("weigh_bf16", 6, (1, 4), _step_bf16, accumulate=True)
weigh_f32 = _tile("weigh_f32", 6, (1, 4), _step_f32, accumulate=True)


@intrinsic
def multiply_listed(typingctx: Any, listed: Any, count: Any, w: Any, c: Any) -> Any:
    """c[48] += 256 * sum over the list's (index, word) pairs of word . w[index]: the high digits of one row."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        listed, count, w, c = arguments
        totals = [cgutils.alloca_once_value(builder, ir.Constant(INTS, None)) for _ in range(3)]
        with cgutils.for_range(builder, count, intp=I64) as loop:
            pair = builder.add(listed, builder.shl(loop.index, ir.Constant(I64, 3)))
            index = builder.zext(load(builder, pair, I32), I64)
            word = splat(builder, load(builder, builder.add(pair, ir.Constant(I64, 4)), I32), INTS)
            at = builder.add(w, builder.mul(index, ir.Constant(I64, 3 * 64)))
            for vector, total in enumerate(totals):
                builder.store(_step_int8(builder, builder.load(total), word, _column(builder, at, vector)), total)
        for vector, total in enumerate(totals):
            address = builder.add(c, ir.Constant(I64, 64 * vector))
            high = builder.shl(builder.load(total), constant(8))
            store(builder, builder.add(load(builder, address, INTS), high), address)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@intrinsic
def transpose_words(typingctx: Any, source: Any, source_stride: Any, target: Any, target_stride: Any) -> Any:
    """Sixteen rows of sixteen words to sixteen columns; addresses and strides in bytes."""

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
        for row in range(LANES):
            store(builder, rows[row], offset(builder, target, target_stride, row))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@intrinsic
def pair_halves(typingctx: Any, source: Any, count: Any, size: Any, target: Any) -> Any:
    """bfloat16 rows [count, size] to words [ceil(count / 2), size] of two rows each; a missing last row is zero."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, count, size, target = arguments
        halves = ir.VectorType(I16, LANES)
        vectors = builder.lshr(size, ir.Constant(I64, 4))

        def join(pair: Any, complete: bool) -> None:
            first = builder.add(source, builder.mul(pair, builder.shl(size, ir.Constant(I64, 2))))
            place = builder.add(target, builder.mul(pair, builder.shl(size, ir.Constant(I64, 2))))
            with cgutils.for_range(builder, vectors, intp=I64) as loop:
                at = builder.add(first, builder.shl(loop.index, ir.Constant(I64, 5)))
                words = builder.zext(load(builder, at, halves, 2), INTS)
                if complete:
                    below = load(builder, builder.add(at, builder.shl(size, ir.Constant(I64, 1))), halves, 2)
                    words = builder.or_(words, builder.shl(builder.zext(below, INTS), constant(16)))
                store(builder, words, builder.add(place, builder.shl(loop.index, ir.Constant(I64, 6))))

        pairs = builder.lshr(count, ir.Constant(I64, 1))
        with cgutils.for_range(builder, pairs, intp=I64) as loop:
            join(loop.index, complete=True)
        with builder.if_then(builder.trunc(count, ir.IntType(1))):
            join(pairs, complete=False)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate
