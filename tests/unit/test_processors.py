"""The compiled kernels as other processors get them: this one runs what lesser ones run, and compiles for greater."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from foredraft.target.provenance import processor_features

HERE = Path(__file__).parent
AVX2 = "+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+popcnt,+cx16,+sse4.2"
AVX512 = f"{AVX2},+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl"
MATRIX = f"{AVX512},+avx512vnni,+avx512bf16,+amx-tile,+amx-int8,+amx-bf16"
WITH_MATRIX_UNIT = """
from foredraft.target.kernels import matrix
matrix.HAS_MATRIX_UNIT = True  # no matter whether this machine has one: nothing is run
import foredraft.target.kernels.decode
"""


def environment(folder: Path, name: str, features: str) -> dict[str, str]:
    """Every variable of this process, and what makes numba compile for another processor."""
    return os.environ | {
        "NUMBA_CPU_NAME": name,
        "NUMBA_CPU_FEATURES": features,
        "NUMBA_CACHE_DIR": str(folder / "compiled"),
        "FOREDRAFT_CACHE": str(folder / "cache"),
    }


def listed(features: str) -> set[str]:
    return set(features.replace("+", "").split(","))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "features"),
    [("haswell", AVX2), ("skylake-avx512", AVX512), ("cascadelake", f"{AVX512},+avx512vnni")],
)
def test_kernels_of_a_lesser_processor(tmp_path: Path, name: str, features: str) -> None:
    if missing := listed(features) - processor_features():
        pytest.skip(f"this processor can't run code that needs {', '.join(sorted(missing))}")
    files = [str(HERE / file) for file in ("test_kernels.py", "test_fast_decoder.py")]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=", *files]
    ended = subprocess.run(command, env=environment(tmp_path, name, features), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
    assert " passed" in ended.stdout


@pytest.mark.slow
@pytest.mark.skipif("avx2" not in processor_features(), reason="numba compiles for x86-64 only on such a machine")
def test_kernels_compile_for_the_matrix_unit(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITH_MATRIX_UNIT]
    ended = subprocess.run(command, env=environment(tmp_path, "sapphirerapids", MATRIX), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-4000:]


def test_numbas_variables_decide(tmp_path: Path) -> None:
    code = (
        "from foredraft.target.kernels.builder import FEATURES, serves_processor as serves; print(serves(), *FEATURES)"
    )
    command = [sys.executable, "-c", code]
    answers = [
        subprocess.run(command, env=environment(tmp_path, "x86-64", features), capture_output=True, text=True).stdout
        for features in ("+sse2", "+avx2,+fma,-avx512f")
    ]
    assert answers[0].split() == ["False", "sse2"]
    assert set(answers[1].split()) == {"True", "avx2", "fma"}
