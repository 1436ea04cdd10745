"""Short forms of LLVM's builder calls for vectors of sixteen 32-bit lanes, shared by the compiled primitives."""

# mypy: ignore-errors
# numba and LLVM compile this file; its types are theirs, not Python's.
from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
from numba.core import cgutils

from foredraft.target.provenance import processor_features

__all__ = [
    "F32",
    "FEATURES",
    "FLOATS",
    "I8",
    "I16",
    "I32",
    "I64",
    "INTS",
    "LANES",
    "SPLIT_BF16",
    "SPLIT_INT8",
    "call",
    "constant",
    "halves_of",
    "load",
    "offset",
    "prefetch",
    "serves_processor",
    "splat",
    "store",
]

LANES = 16
I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F32 = ir.FloatType()
INTS = ir.VectorType(I32, LANES)
FLOATS = ir.VectorType(F32, LANES)


FEATURES = processor_features()
"""What compiled code may use of the processor."""


def serves_processor() -> bool:
    """Whether the compiled kernels can run here."""
    return {"avx2", "fma"} <= FEATURES


SPLIT_INT8 = "avx512vnni" not in FEATURES
"""Without a dot product of bytes, a row's four int8 of a word are stored as 16-bit numbers 0, 2, 1, 3."""

SPLIT_BF16 = "avx512bf16" not in FEATURES
"""Without a dot product of bfloat16 numbers, a row's are stored as float32."""


def offset(builder: Any, address: Any, stride: Any, times: int) -> Any:
    return builder.add(address, builder.mul(stride, ir.Constant(I64, times))) if times else address


def load(builder: Any, address: Any, kind: Any, align: int = 4) -> Any:
    value = builder.load(builder.inttoptr(address, kind.as_pointer()))
    value.align = align
    return value


def store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = 4


def splat(builder: Any, value: Any, kind: Any) -> Any:
    lane = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(I32, 0))
    return builder.shuffle_vector(lane, ir.Constant(kind, ir.Undefined), ir.Constant(INTS, [0] * LANES))


def halves_of(builder: Any, pairs: Any) -> tuple[Any, Any]:
    """The low and the high bfloat16 of every lane as the bits of a float32."""
    return builder.shl(pairs, constant(16)), builder.and_(pairs, constant(-65536))


def call(builder: Any, name: str, kind: Any, arguments: list[Any]) -> Any:
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(kind, [value.type for value in arguments]), name
    )
    return builder.call(function, arguments)


def prefetch(builder: Any, address: Any) -> None:
    """Ask for a cache line in the second level; any address is harmless."""
    pointer = builder.inttoptr(address, I8.as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, I32, I32, I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [pointer, ir.Constant(I32, 0), ir.Constant(I32, 2), ir.Constant(I32, 1)])


def constant(value: int) -> Any:
    return ir.Constant(INTS, [value] * LANES)
