"""The register tile of a matrix product in LLVM's vector instructions. This is where the time goes.

A tile multiplies up to 8 rows by 16 x `width` columns, `word` by word: a word is four bytes, that is four int8, two
bfloat16 or one float32 numbers along the reduced dimension. The order of the sum over words is fixed and the same for
every row count, so a row's result has the same bits whichever rows share the tile.

Processors without dot-product instructions multiply half words: 16-bit integers, or float32. Rows are stored that way
(see `SPLIT_INT8`, `SPLIT_BF16`), columns are split in registers, once for all rows of a tile. Those with few registers
compute a tile in parts.
"""

# mypy: ignore-errors
# numba and LLVM compile this file; its types are theirs, not Python's.
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import llvmlite.ir as ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from foredraft.target.kernels.builder import (
    FEATURES,
    FLOATS,
    I16,
    I32,
    I64,
    INTS,
    LANES,
    SPLIT_BF16,
    SPLIT_INT8,
    call,
    constant,
    halves_of,
    load,
    offset,
    prefetch,
    splat,
    store,
)
from foredraft.target.provenance import compiled_for

__all__ = [
    "multiply_bf16",
    "multiply_f32",
    "multiply_int8",
    "multiply_listed",
    "score_bf16",
    "score_f32",
    "weigh_bf16",
    "weigh_f32",
]

ASKING_FROM = 6 if compiled_for()[0].startswith("znver") else 1
"""Rows of a tile from which on it asks for weights before they are needed. Where tiles of fewer rows read so fast that
the processor's own prefetching keeps up, the requests only cost: so on AMD's, not on Intel's."""


def _whole(builder: Any, column: Any) -> tuple[Any, ...]:
    return (column,)


def _step_dot_int8(builder: Any, total: Any, row: Any, column: Any) -> Any:
    """Four products of a signed activation and an unsigned weight (its int8 plus 128), summed exactly in 32 bits."""
    return call(builder, "llvm.x86.avx512.vpdpbusd.512", INTS, [total, column, row])


def _split_int8(builder: Any, column: Any) -> tuple[Any, ...]:
    """Bytes 0 and 2, then bytes 1 and 3, as 16-bit numbers."""
    mask = constant(0x00FF00FF)
    return builder.and_(column, mask), builder.and_(builder.lshr(column, constant(8)), mask)


def _step_pairs(builder: Any, total: Any, row: Any, column: Any) -> Any:
    """Two products of 16-bit integers, exactly the same sums; half a vector at a time, which any AVX2 processor can."""
    half, narrow = ir.VectorType(I16, LANES), ir.VectorType(I32, LANES // 2)
    parts = []
    for lanes in (range(LANES // 2), range(LANES // 2, LANES)):
        select = ir.Constant(narrow, list(lanes))
        pair = [builder.bitcast(builder.shuffle_vector(word, word, select), half) for word in (row, column)]
        parts.append(call(builder, "llvm.x86.avx2.pmadd.wd", narrow, pair))
    joined = builder.shuffle_vector(*parts, ir.Constant(INTS, list(range(LANES))))
    return builder.add(total, joined)


def _step_dot_bf16(builder: Any, total: Any, row: Any, column: Any) -> Any:
    """Two products of bfloat16 numbers."""
    return call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", FLOATS, [total, column, row])


def _step_f32(builder: Any, total: Any, row: Any, column: Any) -> Any:
    return call(
        builder, "llvm.fma.v16f32", FLOATS, [builder.bitcast(row, FLOATS), builder.bitcast(column, FLOATS), total]
    )


class _Arithmetic(NamedTuple):
    """How words are multiplied.

    totals  the kind of the sums
    split   a column's word as what `step` takes, one half after the other
    step    adds the products of a row's half and a column's half
    halves  into how many a row's word is stored
    cells   vectors of sums that the registers hold beside what is multiplied; sixteen lanes take two registers of AVX2
    """

    totals: Any
    split: Callable[[Any, Any], tuple[Any, ...]]
    step: Callable[[Any, Any, Any, Any], Any]
    halves: int
    cells: int


WIDE = "avx512f" in FEATURES
INT8 = _Arithmetic(INTS, _whole, _step_dot_int8, halves=1, cells=24)
if SPLIT_INT8:
    INT8 = _Arithmetic(INTS, _split_int8, _step_pairs, halves=2, cells=12 if WIDE else 3)
BF16 = _Arithmetic(FLOATS, _whole, _step_dot_bf16, halves=1, cells=24)
if SPLIT_BF16:
    BF16 = _Arithmetic(FLOATS, halves_of, _step_f32, halves=2, cells=24 if WIDE else 4)
F32 = _Arithmetic(FLOATS, _whole, _step_f32, halves=1, cells=24 if WIDE else 6)


def _column(builder: Any, address: Any, vector: int) -> Any:
    return load(builder, builder.add(address, ir.Constant(I64, 64 * vector)), INTS)


class _Kind(NamedTuple):
    """One of the products below.

    most        rows that a tile of it can have
    widths      vectors of columns that it can have
    accumulate  whether it adds to what is there
    asks        whether it asks for the weights that are needed later while it computes
    """

    name: str
    most: int
    widths: tuple[int, ...]
    arithmetic: _Arithmetic
    accumulate: bool = False
    asks: bool = False


def _tile_function(module: Any, kind: _Kind, rows: int, width: int, asks: bool) -> Any:
    """name(a, a_stride, w, w_stride, c, c_stride, words, wanted, lines): c[rows, 16 * width] (+)= a[rows, words] .
    w[words, 16 * width], strides in bytes. If it asks, it does so with every word for the cache lines that are so many
    times `w_stride` bytes behind the `lines` lines at `wanted`.
    """
    symbol = f"foredraft_{kind.name}_{rows}x{width}{'_asking' if asks else ''}"
    if symbol in module.globals:
        return module.globals[symbol]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 9), symbol)
    function.linkage = "internal"
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    if rows * width > kind.arithmetic.cells:
        _compute_parts(builder, function.args, kind, rows, width, asks)
    else:
        _compute(builder, function, kind, rows, width, asks)
    builder.ret_void()
    return function


def _compute_parts(builder: Any, arguments: Any, kind: _Kind, rows: int, width: int, asks: bool) -> None:
    """A tile in parts that fit the registers: 16 columns at a time, which stay in the first cache for all rows.

    The first part asks for the lines of the others, too, which would otherwise come one in three from memory.
    """
    a, a_stride, w, w_stride, c, c_stride, *rest = arguments
    parts = -(-rows // kind.arithmetic.cells)
    for vector in range(width):
        for part in range(parts):
            first, end = rows * part // parts, rows * (part + 1) // parts
            function = _tile_function(builder.module, kind, end - first, 1, asks and vector == part == 0)
            source, target = offset(builder, a, a_stride, first), offset(builder, c, c_stride, first)
            side = ir.Constant(I64, 64 * vector)
            columns, sums = builder.add(w, side), builder.add(target, side)
            builder.call(function, [source, a_stride, columns, w_stride, sums, c_stride, *rest])


def _compute(builder: Any, function: Any, kind: _Kind, rows: int, width: int, asks: bool) -> None:
    """A tile whose sums stay in registers."""
    a, a_stride, w, w_stride, c, c_stride, words, wanted, lines = function.args
    arithmetic, totals_kind = kind.arithmetic, kind.arithmetic.totals
    cells = [(row, vector) for row in range(rows) for vector in range(width)]
    outputs = {}
    for row, vector in cells:
        outputs[row, vector] = builder.add(offset(builder, c, c_stride, row), ir.Constant(I64, 64 * vector))
    nothing = ir.Constant(totals_kind, None)
    starts = {cell: load(builder, outputs[cell], totals_kind) if kind.accumulate else nothing for cell in cells}
    row_addresses = [offset(builder, a, a_stride, row) for row in range(rows)]
    asked = _lines(builder, wanted, lines, max(kind.widths)) if asks else []
    entry, loop, done = builder.block, function.append_basic_block("loop"), function.append_basic_block("done")
    builder.cbranch(builder.icmp_signed(">", words, ir.Constant(I64, 0)), loop, done)

    builder.position_at_end(loop)
    index, at = builder.phi(I64), builder.phi(I64)
    index.add_incoming(ir.Constant(I64, 0), entry)
    at.add_incoming(w, entry)
    totals = {cell: builder.phi(totals_kind) for cell in cells}
    passed = builder.mul(index, w_stride)
    for address in asked:
        prefetch(builder, builder.add(address, passed))
    place = builder.mul(index, ir.Constant(I64, 4 * arithmetic.halves))
    for cell in cells:
        totals[cell].add_incoming(starts[cell], entry)
    sums = dict(totals)
    columns = [arithmetic.split(builder, _column(builder, at, vector)) for vector in range(width)]
    for half in range(arithmetic.halves):
        for row in range(rows):
            at_half = builder.add(builder.add(row_addresses[row], place), ir.Constant(I64, 4 * half))
            word = splat(builder, load(builder, at_half, I32), INTS)
            # All columns before the next row: with the sums, the words of eight rows would not fit the registers.
            for vector in range(width):
                sums[row, vector] = arithmetic.step(builder, sums[row, vector], word, columns[vector][half])
    following = builder.add(index, ir.Constant(I64, 1))
    index.add_incoming(following, loop)
    at.add_incoming(builder.add(at, w_stride), loop)
    for cell in cells:
        totals[cell].add_incoming(sums[cell], loop)
    builder.cbranch(builder.icmp_signed("<", following, words), loop, done)

    builder.position_at_end(done)
    for cell in cells:
        result = builder.phi(totals_kind)
        result.add_incoming(starts[cell], entry)
        result.add_incoming(sums[cell], loop)
        outputs[cell] = (outputs[cell], result)
    for address, result in outputs.values():
        store(builder, result, address)


def _lines(builder: Any, first: Any, count: Any, most: int) -> list[Any]:
    """The addresses of `count` cache lines, then the last one again up to `most`, which costs next to nothing."""
    last = builder.sub(count, ir.Constant(I64, 1))
    addresses = []
    for number in range(most):
        line = ir.Constant(I64, number)
        line = builder.select(builder.icmp_signed("<", line, last), line, last)
        addresses.append(builder.add(first, builder.shl(line, ir.Constant(I64, 6))))
    return addresses


def _call_tile(builder: Any, kind: _Kind, rows: Any, width: Any, arguments: list[Any]) -> None:
    """Call the function for that many rows and that width."""
    end = builder.append_basic_block("tile.end")
    switch = builder.switch(builder.add(builder.mul(width, ir.Constant(I64, 16)), rows), end)
    for vectors in kind.widths:
        for count in range(1, kind.most + 1):
            block = builder.append_basic_block("tile.case")
            switch.add_case(ir.Constant(I64, 16 * vectors + count), block)
            asks = kind.asks and (count >= ASKING_FROM or count * vectors > kind.arithmetic.cells)
            with builder.goto_block(block):
                builder.call(_tile_function(builder.module, kind, count, vectors, asks), arguments)
                builder.branch(end)
    builder.position_at_end(end)


def _tile(kind: _Kind) -> Any:
    """An intrinsic (rows, width, a, a_stride, w, w_stride, c, c_stride, words, wanted, lines) that calls the tile
    function for that many rows and that width. One that doesn't ask ignores `wanted` and `lines`.
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
        wanted: Any,
        lines: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            rows, width, *rest = arguments
            _call_tile(builder, kind, rows, width, rest)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 11), generate

    return tile


multiply_int8 = _tile(_Kind("multiply_int8", 8, (3,), INT8, asks=True))
multiply_bf16 = _tile(_Kind("multiply_bf16", 8, (3,), BF16, asks=True))
multiply_f32 = _tile(_Kind("multiply_f32", 8, (3,), F32, asks=True))
score_bf16 = _tile(_Kind("score_bf16", 6, (4,), BF16))
score_f32 = _tile(_Kind("score_f32", 6, (4,), F32))
weigh_bf16 = _tile(_Kind("weigh_bf16", 6, (1, 4), BF16, accumulate=True))
weigh_f32 = _tile(_Kind("weigh_f32", 6, (1, 4), F32, accumulate=True))


def _signed_halves(builder: Any, word: Any) -> tuple[Any, Any]:
    """A word of four int8 as `_split_int8` splits a column, but signed."""
    pairs = ir.VectorType(I16, 2 * LANES)
    eight = ir.Constant(pairs, [8] * 2 * LANES)
    odd = builder.bitcast(word, pairs)
    even = builder.shl(odd, eight)
    return tuple(builder.bitcast(builder.ashr(part, eight), INTS) for part in (even, odd))


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
            words = _signed_halves(builder, word) if SPLIT_INT8 else (word,)
            at = builder.add(w, builder.mul(index, ir.Constant(I64, 3 * 64)))
            for vector, total in enumerate(totals):
                columns = INT8.split(builder, _column(builder, at, vector))
                for half, column in zip(words, columns, strict=True):
                    builder.store(INT8.step(builder, builder.load(total), half, column), total)
        for vector, total in enumerate(totals):
            address = builder.add(c, ir.Constant(I64, 64 * vector))
            high = builder.shl(builder.load(total), constant(8))
            store(builder, builder.add(load(builder, address, INTS), high), address)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate
