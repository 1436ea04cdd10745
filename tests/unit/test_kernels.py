"""The compiled primitives against numpy and torch, and the sharing of work among threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from numpy.typing import NDArray

from foredraft.target.kernels import layout as at
from foredraft.target.kernels.blocks import pair_halves, transpose_halves, transpose_words, widen_halves
from foredraft.target.kernels.builder import SPLIT_BF16, SPLIT_INT8
from foredraft.target.kernels.crew import Crew
from foredraft.target.kernels.lanes import exponentials, gate_panel, highest, narrow_exponentials, quantise, scale_panel
from foredraft.target.kernels.paths import lay_paths
from foredraft.target.kernels.sharing import STEP_BYTES, claim, complete
from foredraft.target.kernels.tiles import (
    multiply_bf16,
    multiply_f32,
    multiply_int8,
    multiply_listed,
)
from foredraft.target.quantization import interleave, pack, packed_bytes, quantise_activations, quantise_rows

Array = NDArray[Any]


@njit
def run_exponentials(narrow: bool, x: int, vectors: int, scale: np.float32) -> float:
    top = highest(x, vectors)
    return narrow_exponentials(x, vectors, top, scale) if narrow else exponentials(x, vectors, top, scale)


@njit
def run_quantise(x: int, size: int, low: int, scale: int, total: int, listed: int) -> None:
    quantise(x, size, low, scale, total, listed)


@njit
def run_tile(weight_format: int, rows: int, a: int, a_bytes: int, w: int, c: int, words: int) -> None:
    if weight_format == at.INT8:
        multiply_int8(rows, 3, a, a_bytes, w, 192, c, 192, words, w, 3)
    elif weight_format == at.BFLOAT16:
        multiply_bf16(rows, 3, a, a_bytes, w, 192, c, 192, words, w, 3)
    else:
        multiply_f32(rows, 3, a, a_bytes, w, 192, c, 192, words, w, 3)


@njit
def run_listed(listed: int, count: int, w: int, c: int) -> None:
    multiply_listed(listed, count, w, c)


@njit
def run_moves(source: int, turned: int, halves: int, count: int, paired: int) -> None:
    transpose_words(source, 80, turned, 64)
    pair_halves(halves, count, 32, paired)


@njit
def run_widening(source: int, turned: int, widened: int) -> None:
    transpose_halves(source, 80, turned, 64)
    widen_halves(source, 16 * 40, widened)


@njit
def run_panels(source: int, gated: int, scaled: int) -> None:
    gate_panel(source, gated)
    scale_panel(source, np.float32(0.5), scaled)
    gate_panel(source, source)


@njit(nogil=True)
def count_tiles(rank: int, plan: Array, stages: int, tiles: int, hits: Array) -> None:
    for stage in range(stages):
        done = 0
        while True:
            tile = claim(plan, stage, rank, tiles)
            if tile < 0:
                break
            hits[stage, tile] += 1 + (0 if stage == 0 else 100 * (hits[stage - 1].sum() != tiles))
            done += 1
        complete(plan, stage, done, tiles)


def address(array: Array) -> int:
    return int(array.ctypes.data)


def stored_row(row: Array) -> Array:
    """Rows as the tiles read them on this processor."""
    if row.dtype == np.int8 and SPLIT_INT8:
        return np.ascontiguousarray(row.reshape(*row.shape[:-1], -1, 4)[..., [0, 2, 1, 3]].astype(np.int16)).reshape(
            row.shape
        )
    if row.dtype == np.uint16 and SPLIT_BF16:
        return (row.astype(np.uint32) << 16).view(np.float32)
    return row


@pytest.mark.parametrize("narrow", [False, True])
def test_exponentials(narrow: bool) -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(0, 30, 192).astype(np.float32)
    scores[[5, 100]] = -3e38
    expected = np.exp((scores.astype(np.float64) - scores.max()) * np.float64(np.float32(0.7)))
    work = scores.copy()
    total = run_exponentials(narrow, address(work), 12, np.float32(0.7))
    if narrow:
        bits = work.view(np.uint16)[:192].astype(np.uint32) << 16
        weights, tolerance = bits.view(np.float32), 2**-8
    else:
        weights, tolerance = work, 5e-7
    normal = expected > 1e-37
    assert np.all(np.abs(weights[normal] / expected[normal] - 1) < tolerance + 1e-5)  # the argument itself is rounded
    assert np.all(weights[~normal] == 0)
    assert weights[5] == 0
    assert total == pytest.approx(float(weights.astype(np.float64).sum()), rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 24), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1e-35, 1.0, 300.0]), st.integers(0, 6))
def test_quantise_is_what_torch_computes(vectors: int, seed: int, spread: float, outliers: int) -> None:
    size = 16 * vectors
    rng = np.random.default_rng(seed)
    row = (rng.normal(0, spread, size)).astype(np.float32)
    row[rng.integers(0, size, outliers)] *= 20
    stored, scale, total = np.zeros(size, np.int16), np.zeros(1, np.float32), np.zeros(1, np.int32)
    listed = np.zeros(3 + size // 2, np.uint32)
    run_quantise(address(row), size, address(stored), address(scale), address(total), address(listed))
    torch_low, torch_high, torch_scale = (part[0].numpy() for part in quantise_activations(torch.from_numpy(row)[None]))
    high = np.zeros(size // 4, np.uint32)
    count = int(listed[0])
    assert count <= max(size // 64, 0) + 1 or spread == 0
    high[listed[1 : 1 + 2 * count : 2]] = listed[2 : 2 + 2 * count : 2]
    assert np.array_equal(stored.view(np.uint8)[: stored_row(torch_low).nbytes], stored_row(torch_low).view(np.uint8))
    assert np.array_equal(high.view(np.int8), torch_high)
    assert scale[0] == torch_scale
    assert total[0] == (torch_low.astype(np.int64) + 256 * torch_high.astype(np.int64)).sum()


def test_quantise_keeps_precision_beside_outliers() -> None:
    row = torch.linspace(-1, 1, 640)[None].clone()
    row[0, 17] = 14.0
    low, high, scale = quantise_activations(row)
    restored = (low.float() + 256 * high.float()) * scale.unsqueeze(1)
    assert (restored - row).abs().max() < 14 / 127 / 2 / 7.9
    assert high.count_nonzero() == 1


@pytest.mark.parametrize("rows", range(1, 9))
def test_tiles_multiply_and_do_not_depend_on_the_row_count(rows: int) -> None:
    rng = np.random.default_rng(rows)
    size = 64
    x, weight = rng.normal(size=(8, size)).astype(np.float32), torch.from_numpy(rng.normal(size=(40, size)))
    for weight_format, code in (("int8", at.INT8), ("bfloat16", at.BFLOAT16), ("float32", at.FLOAT32)):
        words = torch.empty(packed_bytes(40, size, weight_format), dtype=torch.uint8)  # type: ignore[arg-type]
        packed = pack(weight, weight_format, words)  # type: ignore[arg-type]
        if code == at.INT8:
            source: Array = rng.integers(-128, 128, (8, size)).astype(np.int8)
        else:
            source = torch.from_numpy(x).to(getattr(torch, weight_format)).view(torch.uint8).numpy()
            source = source.view(np.uint16 if code == at.BFLOAT16 else np.float32)
        stored = stored_row(source)
        results = []
        for count in (rows, 8):
            out = np.zeros((8, 48), np.float32)
            run_tile(
                code, count, address(stored), stored.strides[0], words.data_ptr(), address(out), size // (4, 2, 1)[code]
            )
            results.append(out)
        assert np.array_equal(results[0][:rows].view(np.int32), results[1][:rows].view(np.int32))
        assert not results[0][rows:].any()
        if code == at.INT8:
            sums = results[1].view(np.int32) - 128 * source.astype(np.int32).sum(1, keepdims=True)
            assert np.array_equal(
                sums[:, :40], source.astype(np.int32) @ quantise_rows(weight)[0].numpy().T.astype(np.int32)
            )
            assert packed.scale is not None
            assert packed.scale[40:].count_nonzero() == 0
        else:
            kind = getattr(torch, weight_format)
            exact = torch.from_numpy(x).to(kind).double() @ weight.to(kind).double().t()
            assert np.allclose(results[1][:, :40], exact.numpy(), atol=2e-5)


def test_high_digits_are_worth_256() -> None:
    rng = np.random.default_rng(0)
    weight = rng.integers(0, 256, (20, 48, 4)).astype(np.uint8)
    digits = rng.integers(-8, 9, (3, 4)).astype(np.int8)
    listed = np.zeros(6, np.uint32)
    listed[::2], listed[1::2] = [2, 11, 19], digits.view(np.uint32)[:, 0]
    out = np.full(48, 7, np.int32)
    run_listed(address(listed), 3, address(weight), address(out))
    expected = 7 + 256 * (weight[[2, 11, 19]].astype(np.int32) * digits.astype(np.int32)[:, None]).sum((0, 2))
    assert np.array_equal(out, expected)


def test_moves() -> None:
    source, turned = np.arange(16 * 20, dtype=np.uint32).reshape(16, 20), np.zeros((16, 16), np.uint32)
    halves, paired = np.arange(7 * 32, dtype=np.uint16).reshape(7, 32), np.zeros((4, 32, 2), np.uint16)
    run_moves(address(source), address(turned), address(halves), 7, address(paired))
    assert np.array_equal(turned, source[:, :16].T)
    assert np.array_equal(paired.transpose(0, 2, 1).reshape(8, 32)[:7], halves)
    assert not paired[3, :, 1].any()


def test_panels_are_gated_and_scaled() -> None:
    x = np.linspace(-100, 120, 48).astype(np.float32)
    x[3] = 0
    gated, scaled, source = np.zeros(24, np.float32), np.zeros(48, np.float32), x.copy()
    run_panels(address(source), address(gated), address(scaled))
    wide = x.astype(np.float64)
    assert np.allclose(gated, wide[:24] / (1 + np.exp(-wide[:24])) * wide[24:], rtol=2e-6, atol=1e-30)
    assert np.array_equal(scaled, x / 2)
    assert np.array_equal(source[:24], gated)
    assert np.array_equal(source[24:], x[24:])


def test_halves_are_widened_without_a_change() -> None:
    numbers = torch.randn(16, 40, generator=torch.manual_seed(0)).bfloat16()
    turned, widened = np.zeros((32, 16), np.float32), np.zeros((16, 40), np.float32)
    run_widening(numbers.data_ptr(), address(turned), address(widened))
    assert np.array_equal(turned, numbers[:, :32].T.float().numpy())
    assert np.array_equal(widened, numbers.float().numpy())


def test_gates_stand_beside_their_ups() -> None:
    gate, up = torch.arange(30.0).unsqueeze(1), -torch.arange(30.0).unsqueeze(1)
    joined = interleave(gate, up).squeeze(1).view(2, 2, 24)
    assert torch.equal(joined[:, 0].flatten()[:30], gate[:, 0])
    assert torch.equal(joined[:, 1].flatten()[:30], up[:, 0])
    assert not joined.flatten()[30 + 18 : 48].count_nonzero()


def test_paths_follow_ancestors() -> None:
    # slot 3, 10 entries before; a chain of 2; then a child of row 1, its sibling, the sibling's child, a child of row 2
    segments, parents = np.array([[3, 10, 0, 2, 4]], np.int64), np.array([1, 1, 3, 2], np.int64)
    slots, entries, straight, length = (np.zeros(6, np.int64) for _ in range(4))
    tail, units = np.zeros((6, 4), np.int64), np.zeros((6, 2), np.int64)
    assert lay_paths(segments, parents, 4, slots, entries, straight, length, tail, units) == 2
    assert units[:2].tolist() == [[0, 4], [4, 2]]
    assert entries.tolist() == [10, 11, 12, 13, 14, 15]
    assert length.tolist() == [11, 12, 13, 13, 14, 14]
    paths = [[*range(straight[row]), *tail[row, : length[row] - straight[row]]] for row in range(6)]
    prefix = list(range(12))
    assert paths[2:] == [[*prefix, 12], [*prefix, 13], [*prefix, 13, 14], [*prefix, 12, 15]]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_tile_is_done_once_and_stages_wait_for_one_another(threads: int) -> None:
    crew = Crew(threads)
    for tiles in (1, 2, 7, 64):
        plan, steps = np.zeros(at.PLAN_FIELDS, np.int64), np.zeros(40 * (threads + 1) * STEP_BYTES, np.uint8)
        plan[at.THREADS], plan[at.STEPS] = threads, address(steps)
        hits = np.zeros((40, tiles), np.int64)

        def work(rank: int, steps: Array, plan: Array, tiles: int, hits: Array) -> None:
            count_tiles(rank, plan, 40, tiles, hits)  # a late helper needs the counters as well

        crew.run(work, steps, plan, tiles, hits)
        assert np.all(hits == 1)


def test_helpers_that_come_late_delay_nobody() -> None:
    """The helper is busy elsewhere: the caller does all the work, and the helper finds nothing left."""
    crew = Crew(2)
    busy, calls = threading.Event(), []
    crew.run(lambda rank: busy.wait(10) if rank else None)
    plan, steps = np.zeros(at.PLAN_FIELDS, np.int64), np.zeros(3 * 3 * STEP_BYTES, np.uint8)
    plan[at.THREADS], plan[at.STEPS] = 2, address(steps)
    hits = np.zeros((3, 9), np.int64)

    def work(rank: int) -> None:
        count_tiles(rank, plan, 3, 9, hits)
        calls.append(rank)

    crew.run(work)
    assert calls == [0]
    busy.set()
    deadline = time.monotonic() + 10
    while len(calls) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert calls == [0, 1]
    assert np.all(hits == 1)


def test_helpers_end_with_their_crew() -> None:
    before = set(threading.enumerate())
    crew = Crew(3)
    helpers = set(threading.enumerate()) - before
    assert len(helpers) == 2
    del crew
    assert not any(helper.is_alive() for helper in helpers)


@pytest.mark.slow
def test_compiled_code_is_kept_when_the_package_cannot_be_written(tmp_path: Path) -> None:
    """The cache then goes to the user's cache directory, and the second start is much shorter than the first."""
    import shutil

    import foredraft

    copy = tmp_path / "site" / "foredraft"
    shutil.copytree(Path(foredraft.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for path in [*copy.rglob("*"), copy]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    code = "import time; t = time.time(); import foredraft.target.kernels.decode; print(time.time() - t)"
    environment = {**os.environ, "PYTHONPATH": str(copy.parent), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment.pop("NUMBA_CACHE_DIR", None)
    seconds = [
        float(subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True).stdout)
        for _ in range(2)
    ]
    for path in [*copy.rglob("*"), copy]:
        path.chmod(0o755)
    assert seconds[1] < seconds[0] / 3
