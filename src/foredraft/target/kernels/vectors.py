"""Compiled primitives that numba lacks: raw memory, atomics, and the register tile of a matrix product in LLVM's vector instructions.

The register tile is where the time goes. It multiplies up to 8 rows by 16 x `width` columns, `word` by word: a word is four bytes, that is four
int8, two bfloat16 or one float32 numbers along the reduced dimension. The order of the sum over words is fixed and the same for every row
count, so a row's result has the same bits whichever rows share the tile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding
import llvmlite.ir as ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = [
    "add_atomically",
    "bits_of",
    "bytes_at",
    "exponentials",
    "float_of",
    "floats_at",
    "halves_at",
    "highest",
    "load_acquire",
    "longs_at",
    "multiply_bf16",
    "multiply_f32",
    "multiply_int8",
    "multiply_listed",
    "nearest",
    "quantise",
    "relax",
    "score_bf16",
    "score_f32",
    "transpose_words",
    "weigh_bf16",
    "weigh_f32",
    "words_at",
]

LANES = 16
AHEAD = 3072
"""Bytes by which a product asks for its weights before it needs them: farther than the processor looks by itself."""
I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F32 = ir.FloatType()
INTS = ir.VectorType(I32, LANES)
FLOATS = ir.VectorType(F32, LANES)
BYTES = ir.VectorType(I8, 4 * LANES)
HALVES = ir.VectorType(I16, LANES)


def _features() -> dict[str, bool]:
    return dict(llvmlite.binding.get_host_cpu_features())


def _offset(builder: Any, address: Any, stride: Any, times: int) -> Any:
    return builder.add(address, builder.mul(stride, ir.Constant(I64, times))) if times else address


def _load(builder: Any, address: Any, kind: Any, align: int = 4) -> Any:
    value = builder.load(builder.inttoptr(address, kind.as_pointer()))
    value.align = align
    return value


def _store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = 4


def _splat(builder: Any, value: Any, kind: Any) -> Any:
    lane = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(I32, 0))
    return builder.shuffle_vector(lane, ir.Constant(kind, ir.Undefined), ir.Constant(INTS, [0] * LANES))


def _call(builder: Any, name: str, kind: Any, arguments: list[Any]) -> Any:
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(kind, [value.type for value in arguments]), name
    )
    return builder.call(function, arguments)


def _prefetch(builder: Any, address: Any) -> None:
    """Ask for a cache line; any address is harmless."""
    pointer = builder.inttoptr(address, I8.as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, I32, I32, I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [pointer, ir.Constant(I32, 0), ir.Constant(I32, 3), ir.Constant(I32, 1)])


# ---- one step of the register tile: accumulator += activation word * 16 weight words


def _step_int8(builder: Any, total: Any, row: Any, column: Any) -> Any:
    """Four products of a signed activation and an unsigned weight (its int8 plus 128), summed exactly in 32 bits."""
    if _features().get("avx512vnni"):
        return _call(builder, "llvm.x86.avx512.vpdpbusd.512", INTS, [total, column, row])
    for shift in range(4):  # exact as well: the sums are integers
        weight = builder.and_(builder.lshr(column, _constant(8 * shift)), _constant(255))
        activation = builder.ashr(builder.shl(row, _constant(24 - 8 * shift)), _constant(24))
        total = builder.add(total, builder.mul(weight, activation))
    return total


def _step_bf16(builder: Any, total: Any, row: Any, column: Any) -> Any:
    """Two products of bfloat16 numbers."""
    if _features().get("avx512bf16"):
        return _call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", FLOATS, [total, column, row])
    for high in (False, True):
        weight, activation = (
            builder.bitcast(builder.and_(word, _constant(-65536)) if high else builder.shl(word, _constant(16)), FLOATS)
            for word in (column, row)
        )
        total = _call(builder, "llvm.fma.v16f32", FLOATS, [weight, activation, total])
    return total


def _step_f32(builder: Any, total: Any, row: Any, column: Any) -> Any:
    return _call(
        builder, "llvm.fma.v16f32", FLOATS, [builder.bitcast(row, FLOATS), builder.bitcast(column, FLOATS), total]
    )


def _constant(value: int) -> Any:
    return ir.Constant(INTS, [value] * LANES)


def _wide_column(builder: Any, address: Any, vector: int) -> Any:
    return _load(builder, builder.add(address, ir.Constant(I64, 64 * vector)), INTS)


def _half_column(builder: Any, address: Any, vector: int) -> Any:
    """Sixteen bfloat16 numbers as float32."""
    half = _load(builder, builder.add(address, ir.Constant(I64, 32 * vector)), HALVES, 2)
    return builder.bitcast(builder.shl(builder.zext(half, INTS), _constant(16)), FLOATS)


def _tile_function(
    module: Any, name: str, rows: int, width: int, step: Any, column: Any, accumulate: bool, ahead: int
) -> Any:
    """name(a, a_stride, w, w_stride, c, c_stride, words): c[rows, 16 * width] (+)= a[rows, words] . w[words, 16 * width], strides in bytes."""
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
        outputs[row, vector] = builder.add(_offset(builder, c, c_stride, row), ir.Constant(I64, 64 * vector))
    starts = {cell: _load(builder, outputs[cell], kind) if accumulate else ir.Constant(kind, None) for cell in cells}
    row_addresses = [_offset(builder, a, a_stride, row) for row in range(rows)]
    entry, loop, done = builder.block, function.append_basic_block("loop"), function.append_basic_block("done")
    builder.cbranch(builder.icmp_signed(">", words, ir.Constant(I64, 0)), loop, done)

    builder.position_at_end(loop)
    index, at = builder.phi(I64), builder.phi(I64)
    index.add_incoming(ir.Constant(I64, 0), entry)
    at.add_incoming(w, entry)
    totals = {cell: builder.phi(kind) for cell in cells}
    columns = [column(builder, at, vector) for vector in range(width)]
    for vector in range(width if ahead else 0):
        _prefetch(builder, builder.add(at, ir.Constant(I64, ahead + 64 * vector)))
    place = builder.shl(index, ir.Constant(I64, 2))
    sums = {}
    for row in range(rows):
        word = _splat(builder, _load(builder, builder.add(row_addresses[row], place), I32), INTS)
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
        _store(builder, result, address)
    builder.ret_void()
    return function


def _tile(
    name: str,
    max_rows: int,
    widths: tuple[int, ...],
    step: Any,
    column: Any = _wide_column,
    accumulate: bool = False,
    ahead: int = 0,
) -> Any:
    """An intrinsic (rows, width, a, a_stride, w, w_stride, c, c_stride, words) that calls the tile function for that many rows."""

    @intrinsic  # type: ignore[untyped-decorator]
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
                            _tile_function(builder.module, name, rows, width, step, column, accumulate, ahead),
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
weigh_bf16 = _tile("weigh_bf16", 6, (1, 4), _step_f32, _half_column, accumulate=True)
weigh_f32 = _tile("weigh_f32", 6, (1, 4), _step_f32, _wide_column, accumulate=True)


@intrinsic  # type: ignore[untyped-decorator]
def multiply_listed(typingctx: Any, listed: Any, count: Any, w: Any, c: Any) -> Any:
    """c[48] += 256 * sum over the list's (index, word) pairs of word . w[index]: the high digits of one row."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        listed, count, w, c = arguments
        totals = [cgutils.alloca_once_value(builder, ir.Constant(INTS, None)) for _ in range(3)]
        with cgutils.for_range(builder, count, intp=I64) as loop:
            pair = builder.add(listed, builder.shl(loop.index, ir.Constant(I64, 3)))
            index = builder.zext(_load(builder, pair, I32), I64)
            word = _splat(builder, _load(builder, builder.add(pair, ir.Constant(I64, 4)), I32), INTS)
            at = builder.add(w, builder.mul(index, ir.Constant(I64, 3 * 64)))
            for vector, total in enumerate(totals):
                builder.store(_step_int8(builder, builder.load(total), word, _wide_column(builder, at, vector)), total)
        for vector, total in enumerate(totals):
            address = builder.add(c, ir.Constant(I64, 64 * vector))
            high = builder.shl(builder.load(total), _constant(8))
            _store(builder, builder.add(_load(builder, address, INTS), high), address)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@intrinsic  # type: ignore[untyped-decorator]
def transpose_words(typingctx: Any, source: Any, source_stride: Any, target: Any, target_stride: Any) -> Any:
    """Sixteen rows of sixteen words to sixteen columns; addresses and strides in bytes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, source_stride, target, target_stride = arguments
        rows = [_load(builder, _offset(builder, source, source_stride, row), INTS) for row in range(LANES)]
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
            _store(builder, rows[row], _offset(builder, target, target_stride, row))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


# ---- whole rows

LOG2E, LN2_HIGH, LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
POLYNOMIAL = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
SHIFTS = 4


def _floats(value: float) -> Any:
    return ir.Constant(FLOATS, [value] * LANES)


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return _call(builder, "llvm.fma.v16f32", FLOATS, [a, b, c])


def _larger(builder: Any, a: Any, b: Any) -> Any:
    """Lane by lane; b where a is no number."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _exponential(builder: Any, x: Any) -> Any:
    """e**x for x <= 0 to about 2 units in the last place, 0 below -87 (the polynomial of Cephes' expf)."""
    bounded = _larger(builder, x, _floats(-87.5))
    whole = _call(builder, "llvm.rint.v16f32", FLOATS, [builder.fmul(bounded, _floats(LOG2E))])
    rest = _fma(builder, whole, _floats(-LN2_HIGH), bounded)
    rest = _fma(builder, whole, _floats(-LN2_LOW), rest)
    y = _floats(POLYNOMIAL[0])
    for coefficient in POLYNOMIAL[1:]:
        y = _fma(builder, y, rest, _floats(coefficient))
    y = _fma(builder, y, builder.fmul(rest, rest), builder.fadd(rest, _floats(1.0)))
    power = builder.shl(builder.add(builder.fptosi(whole, INTS), _constant(127)), _constant(23))
    y = builder.fmul(y, builder.bitcast(power, FLOATS))
    return builder.select(builder.fcmp_ordered(">", x, _floats(-87.0)), y, _floats(0.0))


def _across(builder: Any, lanes: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """Combine the sixteen lanes pairwise."""
    for distance in (8, 4, 2, 1):
        turned = ir.Constant(INTS, [(lane + distance) % LANES for lane in range(LANES)])
        lanes = combine(lanes, builder.shuffle_vector(lanes, lanes, turned))
    return builder.extract_element(lanes, ir.Constant(I32, 0))


@intrinsic  # type: ignore[untyped-decorator]
def highest(typingctx: Any, address: Any, vectors: Any) -> Any:
    """The largest of 16 * `vectors` float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, vectors = arguments
        top = cgutils.alloca_once_value(builder, _floats(-3e38))
        with cgutils.for_range(builder, vectors, intp=I64) as loop:
            x = _load(builder, builder.add(address, builder.shl(loop.index, ir.Constant(I64, 6))), FLOATS)
            builder.store(_larger(builder, x, builder.load(top)), top)
        return _across(builder, builder.load(top), lambda a, b: _larger(builder, a, b))

    return types.float32(types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def exponentials(typingctx: Any, address: Any, vectors: Any, top: Any, scale: Any) -> Any:
    """x = e ** ((x - top) * scale) for 16 * `vectors` float32 in place; returns their sum.

    The sum goes lane by lane, then over the lanes pairwise, so that trailing zeros change nothing.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, vectors, top, scale = arguments
        top, scale = _splat(builder, top, FLOATS), _splat(builder, scale, FLOATS)
        total = cgutils.alloca_once_value(builder, ir.Constant(FLOATS, None))
        with cgutils.for_range(builder, vectors, intp=I64) as loop:
            at = builder.add(address, builder.shl(loop.index, ir.Constant(I64, 6)))
            x = builder.fmul(builder.fsub(_load(builder, at, FLOATS), top), scale)
            weight = _exponential(builder, x)
            _store(builder, weight, at)
            builder.store(builder.fadd(builder.load(total), weight), total)
        return _across(builder, builder.load(total), builder.fadd)

    return types.float32(types.int64, types.int64, types.float32, types.float32), generate


@intrinsic  # type: ignore[untyped-decorator]
def quantise(typingctx: Any, source: Any, size: Any, target: Any, scale: Any, row_sum: Any, listed: Any) -> Any:
    """Levels of up to 12 bits for a float32 row: int8 low digits, and high digits (worth 256) for the few entries that need one.

    The finest of five scales is taken at which no more than one entry in 64 needs a high digit, so that a row's outliers don't cost the others
    their precision. `listed` gets the number of words with a high digit, then (word index, word) pairs. `size` is a multiple of 16.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, size, target, scale, row_sum, listed = arguments
        vectors = builder.lshr(size, ir.Constant(I64, 4))

        def magnitude(index: Any) -> Any:
            x = _load(builder, builder.add(source, builder.shl(index, ir.Constant(I64, 6))), FLOATS)
            return _call(builder, "llvm.fabs.v16f32", FLOATS, [x])

        peaks = cgutils.alloca_once_value(builder, ir.Constant(FLOATS, None))
        with cgutils.for_range(builder, vectors, intp=I64) as loop:
            builder.store(_larger(builder, magnitude(loop.index), builder.load(peaks)), peaks)
        top = _across(builder, builder.load(peaks), lambda a, b: _larger(builder, a, b))

        limits = [
            _splat(builder, builder.fmul(top, ir.Constant(F32, 0.5**shift)), FLOATS) for shift in range(1, SHIFTS + 1)
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
        inverse = _splat(builder, builder.select(empty, ir.Constant(F32, 0.0), builder.fdiv(levels, top)), FLOATS)
        _store(builder, builder.fdiv(top, levels), scale)

        total = cgutils.alloca_once_value(builder, ir.Constant(INTS, None))
        found = cgutils.alloca_once_value(builder, ir.Constant(I64, 0))
        quarter = ir.VectorType(I32, 4)
        with cgutils.for_range(builder, vectors, intp=I64) as loop:
            x = _load(builder, builder.add(source, builder.shl(loop.index, ir.Constant(I64, 6))), FLOATS)
            level = builder.fptosi(_call(builder, "llvm.rint.v16f32", FLOATS, [builder.fmul(x, inverse)]), INTS)
            builder.store(builder.add(builder.load(total), level), total)
            low = builder.trunc(level, ir.VectorType(I8, LANES))
            _store(builder, low, builder.add(target, builder.shl(loop.index, ir.Constant(I64, 4))))
            high = builder.ashr(builder.add(level, _constant(128)), _constant(8))
            some = builder.bitcast(builder.icmp_signed("!=", high, _constant(0)), I16)
            with builder.if_then(builder.icmp_unsigned("!=", some, ir.Constant(I16, 0)), likely=False):
                words = builder.bitcast(builder.trunc(high, ir.VectorType(I8, LANES)), quarter)
                first = builder.shl(builder.trunc(loop.index, I32), ir.Constant(I32, 2))
                for place in range(4):  # written always, kept when not zero
                    word = builder.extract_element(words, ir.Constant(I32, place))
                    pair = builder.add(listed, builder.shl(builder.load(found), ir.Constant(I64, 3)))
                    _store(builder, builder.add(first, ir.Constant(I32, place)), builder.add(pair, ir.Constant(I64, 4)))
                    _store(builder, word, builder.add(pair, ir.Constant(I64, 8)))
                    more = builder.zext(builder.icmp_unsigned("!=", word, ir.Constant(I32, 0)), I64)
                    builder.store(builder.add(builder.load(found), more), found)
        _store(builder, _across(builder, builder.load(total), builder.add), row_sum)
        _store(builder, builder.trunc(builder.load(found), I32), listed)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), generate


# ---- memory


def _view(kind: Any) -> Any:
    """An intrinsic (address) -> typed pointer, to be made an array by carray."""

    @intrinsic  # type: ignore[untyped-decorator]
    def view(typingctx: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64), generate

    return view


bytes_at, halves_at, words_at, floats_at, longs_at = (
    _view(kind) for kind in (types.int8, types.uint16, types.uint32, types.float32, types.int64)
)


@intrinsic  # type: ignore[untyped-decorator]
def add_atomically(typingctx: Any, address: Any, amount: Any) -> Any:
    """The old value of the int64 at `address`, which grows by `amount`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.atomic_rmw("add", builder.inttoptr(arguments[0], I64.as_pointer()), arguments[1], "acq_rel")

    return types.int64(types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def load_acquire(typingctx: Any, address: Any) -> Any:
    """The int64 at `address`, with everything written before it visible."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(arguments[0], I64.as_pointer()), "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def relax(typingctx: Any) -> Any:
    """Tell the core that this is a spin loop."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if _features().get("sse2"):
            _call(builder, "llvm.x86.sse2.pause", ir.VoidType(), [])
        return context.get_dummy_value()

    return types.void(), generate


# ---- numbers


@intrinsic  # type: ignore[untyped-decorator]
def bits_of(typingctx: Any, value: Any) -> Any:
    """The bits of a float32 as uint32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], I32)

    return types.uint32(types.float32), generate


@intrinsic  # type: ignore[untyped-decorator]
def float_of(typingctx: Any, bits: Any) -> Any:
    """The float32 with these 32 bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], F32)

    return types.float32(types.uint32), generate


@intrinsic  # type: ignore[untyped-decorator]
def nearest(typingctx: Any, value: Any) -> Any:
    """The nearest whole float32, halves to even."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _call(builder, "llvm.rint.f32", F32, [arguments[0]])

    return types.float32(types.float32), generate
