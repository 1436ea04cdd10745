"""What a finding about a model depends on besides the model: the code, the libraries, and the processor."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from pathlib import Path

__all__ = ["compiled_for", "processor_features", "provenance"]


def compiled_for() -> tuple[str, str]:
    """The processor that numba compiles for, and its features as a list of +name or -name with commas between.

    They are this machine's unless the variables NUMBA_CPU_NAME and NUMBA_CPU_FEATURES say otherwise.
    """
    from numba.core.registry import cpu_target

    _, name, features = cpu_target.target_context.codegen().magic_tuple()
    return str(name), str(features)


def processor_features() -> frozenset[str]:
    """Which features the code that numba compiles may use, by LLVM's names."""
    return frozenset(item[1:] for item in compiled_for()[1].split(",") if item.startswith("+"))


def provenance() -> tuple[str, ...]:
    """Changes with anything but the model that could change what a pass computes, or how fast."""
    import llvmlite
    import numba
    import torch
    import transformers

    versions = (torch.__version__, transformers.__version__, numba.__version__, llvmlite.__version__)
    return (*versions, _code(), platform.machine(), *compiled_for())


@cache
def _code() -> str:
    sources = sorted(Path(__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
