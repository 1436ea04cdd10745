"""Products by the processor's matrix unit (Intel AMX): sixteen rows by 48 columns at a time, sixteen words a step.

Sums of int8 are those of `tiles`, exact in 32 bits. Sums of bfloat16 have an order of the unit's own, the same for
every row, so a model runs on it with all passes or with none. A step costs the same for one row as for sixteen: rows up
to the next multiple of sixteen are read and multiplied, and nobody reads what becomes of them.
"""

# mypy: ignore-errors
# numba and LLVM compile this file; its types are theirs, not Python's.
from __future__ import annotations

import ctypes
import sys
from typing import Any

import llvmlite.ir as ir
from numba import types
from numba.extending import intrinsic

from foredraft.target.kernels.builder import I8, I64, features, prefetch

__all__ = [
    "HAS_MATRIX_UNIT",
    "MATRIX_ROWS",
    "MATRIX_WORDS",
    "begin_matrix",
    "end_matrix",
    "multiply_matrix_bf16",
    "multiply_matrix_int8",
    "whole_tiles",
]

MATRIX_ROWS = MATRIX_WORDS = 16
"""Rows of a register, and its words in a row."""

COLUMNS, LINE = 3, 3 * 64
"""Vectors of sixteen columns in a panel, and the bytes of its words at one place of the reduced dimension."""

TOTALS, ROWS, WEIGHTS = (0, 1, 2), 3, (4, 5, 6)
"""Registers."""

AHEAD = 4096
"""Bytes by which weights are requested before they are needed."""


def _granted() -> bool:
    """Whether the processor has the unit and Linux lets this process use it; threads that start later inherit that."""
    wanted = ("amx-tile", "amx-int8", "amx-bf16")
    if sys.platform != "linux" or not all(features().get(name) for name in wanted):
        return False
    arch_prctl, request, tile_data = 158, 0x1023, 18
    return ctypes.CDLL(None).syscall(arch_prctl, request, tile_data) == 0


HAS_MATRIX_UNIT = _granted()


def whole_tiles(rows: int) -> int:
    """How many rows of words a product over `rows` may read."""
    return -(-rows // MATRIX_ROWS) * MATRIX_ROWS


def _call(builder: Any, name: str, *arguments: Any) -> None:
    kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
    symbol = f"llvm.x86.{name}"
    function = builder.module.globals.get(symbol) or ir.Function(builder.module, kind, symbol)
    builder.call(function, arguments)


def _register(number: int) -> Any:
    return ir.Constant(I8, number)


def _pointer(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, I8.as_pointer())


@intrinsic
def begin_matrix(typingctx: Any) -> Any:
    """Give every register sixteen rows of 64 bytes; nothing on processors without the unit."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if HAS_MATRIX_UNIT:
            palette, bytes_of_rows, rows = [1] + [0] * 15, [64, 0] * 8 + [0] * 16, [MATRIX_ROWS] * 8 + [0] * 8
            shape = ir.Constant(ir.ArrayType(I8, 64), palette + bytes_of_rows + rows)
            name = "foredraft_matrix_registers"
            if name not in builder.module.globals:
                variable = ir.GlobalVariable(builder.module, shape.type, name)
                variable.linkage, variable.global_constant, variable.initializer = "internal", True, shape
            _call(builder, "ldtilecfg", builder.bitcast(builder.module.globals[name], I8.as_pointer()))
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def end_matrix(typingctx: Any) -> Any:
    """Let go of the registers, which the system would otherwise save whenever it switches threads."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if HAS_MATRIX_UNIT:
            _call(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), generate


def _multiply(instruction: str) -> Any:
    @intrinsic
    def multiply(typingctx: Any, a: Any, a_stride: Any, w: Any, c: Any, words: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            if HAS_MATRIX_UNIT:
                builder.call(_function(builder.module, instruction), arguments)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), generate

    return multiply


def _function(module: Any, instruction: str) -> Any:
    """name(a, a_stride, w, c, words): c[16, 48] = a[16, words] . w[words, 48]; `words` is a multiple of 16, strides are
    in bytes. Whole rows of `c` are written, whatever is in the rows of `a` that aren't wanted.
    """
    symbol = f"foredraft_matrix_{instruction}"
    if symbol in module.globals:
        return module.globals[symbol]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 5), symbol)
    function.linkage = "internal"
    a, a_stride, w, c, words = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    entry, loop, done = builder.block, function.append_basic_block("loop"), function.append_basic_block("done")
    line = ir.Constant(I64, LINE)
    for total in TOTALS:
        _call(builder, "tilezero", _register(total))
    builder.branch(loop)

    builder.position_at_end(loop)
    word, at, source = builder.phi(I64), builder.phi(I64), builder.phi(I64)
    following = builder.add(word, ir.Constant(I64, MATRIX_WORDS))
    next_at, next_source = (
        builder.add(at, ir.Constant(I64, MATRIX_WORDS * LINE)),
        builder.add(source, ir.Constant(I64, 64)),
    )
    for phi, start, after in ((word, ir.Constant(I64, 0), following), (at, w, next_at), (source, a, next_source)):
        phi.add_incoming(start, entry)
        phi.add_incoming(after, loop)
    for byte in range(0, MATRIX_WORDS * LINE, 64):
        prefetch(builder, builder.add(at, ir.Constant(I64, AHEAD + byte)))
    _call(builder, "tileloadd64", _register(ROWS), _pointer(builder, source), a_stride)
    for vector, (total, weights) in enumerate(zip(TOTALS, WEIGHTS, strict=True)):
        place = builder.add(at, ir.Constant(I64, 64 * vector))
        _call(builder, "tileloadd64", _register(weights), _pointer(builder, place), line)
        _call(builder, instruction, _register(total), _register(ROWS), _register(weights))
    builder.cbranch(builder.icmp_signed("<", following, words), loop, done)

    builder.position_at_end(done)
    for vector, total in enumerate(TOTALS):
        _call(
            builder,
            "tilestored64",
            _register(total),
            _pointer(builder, builder.add(c, ir.Constant(I64, 64 * vector))),
            line,
        )
    builder.ret_void()
    return function


multiply_matrix_int8 = _multiply("tdpbsud")
multiply_matrix_bf16 = _multiply("tdpbf16ps")
