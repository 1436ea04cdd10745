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

from foredraft.target.kernels.builder import FEATURES, I8, I64, prefetch

__all__ = [
    "HAS_MATRIX_UNIT",
    "MATRIX_ROWS",
    "MATRIX_WORDS",
    "begin_matrix",
    "end_matrix",
    "multiply_matrix_bf16",
    "multiply_matrix_block",
    "multiply_matrix_int8",
    "whole_tiles",
]

MATRIX_ROWS = MATRIX_WORDS = 16
"""Rows of a register, and its words in a row."""

PANEL_COLUMNS, BLOCK_COLUMNS = 3, 4
"""Registers of sixteen columns in a panel of weights, and in a block of attention."""

ROWS, WEIGHTS = 4, 5
"""The register of the rows, and the first of three for what they are multiplied with; sums have those before them."""

AHEAD = 4096
"""Bytes by which weights are requested before they are needed."""


def _granted() -> bool:
    """Whether the processor has the unit and Linux lets this process use it; threads that start later inherit that."""
    if sys.platform != "linux" or not {"amx-tile", "amx-int8", "amx-bf16"} <= FEATURES:
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


def _multiply(instruction: str, columns: int) -> Any:
    @intrinsic
    def multiply(
        typingctx: Any, a: Any, a_stride: Any, w: Any, w_stride: Any, c: Any, c_stride: Any, words: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            if HAS_MATRIX_UNIT:
                builder.call(_function(builder.module, instruction, columns), arguments)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return multiply


def _function(module: Any, instruction: str, columns: int) -> Any:
    """name(a, a_stride, w, w_stride, c, c_stride, words): c[16, 16 columns] = a[16, words] . w[words, 16 columns];
    `words` is a positive multiple of 16, strides are in bytes. Whole registers of `c` are written, whatever is in the
    rows of `a` that aren't wanted.
    """
    symbol = f"foredraft_matrix_{instruction}_{columns}"
    if symbol in module.globals:
        return module.globals[symbol]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 7), symbol)
    function.linkage = "internal"
    a, a_stride, w, w_stride, c, c_stride, words = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    entry, loop, done = builder.block, function.append_basic_block("loop"), function.append_basic_block("done")
    for total in range(columns):
        _call(builder, "tilezero", _register(total))
    builder.branch(loop)

    builder.position_at_end(loop)
    word, at, source = builder.phi(I64), builder.phi(I64), builder.phi(I64)
    step = ir.Constant(I64, MATRIX_WORDS)
    following = builder.add(word, step)
    next_at, next_source = builder.add(at, builder.mul(w_stride, step)), builder.add(source, ir.Constant(I64, 64))
    for phi, start, after in ((word, ir.Constant(I64, 0), following), (at, w, next_at), (source, a, next_source)):
        phi.add_incoming(start, entry)
        phi.add_incoming(after, loop)
    if columns == PANEL_COLUMNS:  # weights, which come from memory one line after the other
        for byte in range(0, MATRIX_WORDS * 64 * columns, 64):
            prefetch(builder, builder.add(at, ir.Constant(I64, AHEAD + byte)))
    _call(builder, "tileloadd64", _register(ROWS), _pointer(builder, source), a_stride)
    for total in range(columns):
        place = builder.add(at, ir.Constant(I64, 64 * total))
        weights = WEIGHTS + total % 3
        _call(builder, "tileloadd64", _register(weights), _pointer(builder, place), w_stride)
        _call(builder, instruction, _register(total), _register(ROWS), _register(weights))
    builder.cbranch(builder.icmp_signed("<", following, words), loop, done)

    builder.position_at_end(done)
    for total in range(columns):
        place = builder.add(c, ir.Constant(I64, 64 * total))
        _call(builder, "tilestored64", _register(total), _pointer(builder, place), c_stride)
    builder.ret_void()
    return function


multiply_matrix_int8 = _multiply("tdpbsud", PANEL_COLUMNS)
multiply_matrix_bf16 = _multiply("tdpbf16ps", PANEL_COLUMNS)
multiply_matrix_block = _multiply("tdpbf16ps", BLOCK_COLUMNS)
"""Like the one before it, 64 columns wide: the positions of a block, or a head's values."""
