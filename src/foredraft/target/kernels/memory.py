"""Compiled primitives that numba lacks: arrays at addresses, atomics, a spin loop's pause."""

# mypy: ignore-errors
# numba and LLVM compile this file; its types are theirs, not Python's.
from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
from numba import types
from numba.extending import intrinsic

from foredraft.target.kernels.builder import FEATURES, I64, call

__all__ = [
    "add_atomically",
    "bytes_at",
    "doubles_at",
    "floats_at",
    "halves_at",
    "load_acquire",
    "longs_at",
    "relax",
    "words_at",
]


def _view(kind: Any) -> Any:
    """An intrinsic (address) -> typed pointer, to be made an array by carray."""

    @intrinsic
    def view(typingctx: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64), generate

    return view


bytes_at, halves_at, words_at, floats_at, longs_at, doubles_at = (
    _view(kind) for kind in (types.int8, types.uint16, types.uint32, types.float32, types.int64, types.float64)
)


@intrinsic
def add_atomically(typingctx: Any, address: Any, amount: Any) -> Any:
    """The old value of the int64 at `address`, which grows by `amount`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.atomic_rmw("add", builder.inttoptr(arguments[0], I64.as_pointer()), arguments[1], "acq_rel")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def load_acquire(typingctx: Any, address: Any) -> Any:
    """The int64 at `address`, with everything written before it visible."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(arguments[0], I64.as_pointer()), "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic
def relax(typingctx: Any) -> Any:
    """Tell the core that this is a spin loop."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if "sse2" in FEATURES:
            call(builder, "llvm.x86.sse2.pause", ir.VoidType(), [])
        return context.get_dummy_value()

    return types.void(), generate
