"""The whole pass in one call: embeddings, layers and the final norm; or the head for the rows that need logits.

Every thread of the crew runs it with its rank and goes through the same stages; see `crew` for how they share the tiles of a stage.
"""

from __future__ import annotations

from numba import carray, float32, int64, njit, void

from foredraft.target.kernels import layout as at
from foredraft.target.kernels.crew import claim, complete
from foredraft.target.kernels.products import ADD, GATE, STORE, product
from foredraft.target.kernels.rows import convert_row, copy_row, normalise
from foredraft.target.kernels.stages import attend_unit, embed, norm_row, place_row
from foredraft.target.kernels.vectors import longs_at

__all__ = ["STAGES_PER_LAYER", "run"]

STAGES_PER_LAYER = 10


@njit
def convert_rows(plan, stage, rank, source, source_bytes, size):  # type: ignore[no-untyped-def]
    """Stage: all rows of `source` to the format of the next product."""
    done = 0
    while True:
        row = claim(plan[at.STEPS], plan[at.THREADS], stage, rank, plan[at.ROWS])
        if row < 0:
            break
        target = plan[at.WORDS] + row * plan[at.WORD_BYTES]
        convert_row(
            plan[at.FORMAT],
            source + row * source_bytes,
            size,
            target,
            plan[at.ROW_SCALE] + 4 * row,
            plan[at.ROW_SUM] + 4 * row,
        )
        done += 1
    complete(plan[at.STEPS], plan[at.THREADS], stage, done, plan[at.ROWS])


@njit
def decode(rank, plan, constants, layers):  # type: ignore[no-untyped-def]
    """Run all layers over the plan's rows."""
    threads, steps, rows, hidden = plan[at.THREADS], plan[at.STEPS], plan[at.ROWS], plan[at.HIDDEN]
    weight_format, words_bytes, source = plan[at.FORMAT], plan[at.WORD_BYTES], plan[at.WORDS]
    scale, total = plan[at.ROW_SCALE], plan[at.ROW_SUM]
    heads, kv_heads, head_dim = plan[at.HEADS], plan[at.KV_HEADS], plan[at.HEAD_DIM]
    width = (heads + 2 * kv_heads) * head_dim
    residual, projected, inner = plan[at.RESIDUAL], plan[at.PROJECTED], plan[at.INNER]
    scratch = plan[at.SCRATCH] + rank * plan[at.SCRATCH_BYTES]
    epsilon, residual_scale = constants[at.EPSILON], constants[at.RESIDUAL_SCALE]
    one, none = float32(1.0), int64(0)
    stage = 0

    done = 0
    while True:
        row = claim(steps, threads, stage, rank, rows)
        if row < 0:
            break
        embed(plan, row, constants[at.EMBEDDING_SCALE])
        done += 1
    complete(steps, threads, stage, done, rows)
    stage += 1

    for index in range(plan[at.LAYERS]):
        layer = layers[index]

        done = 0
        while True:
            row = claim(steps, threads, stage, rank, rows)
            if row < 0:
                break
            if layer[at.TAP] >= 0:
                copy_row(
                    residual + 4 * row * hidden,
                    hidden,
                    plan[at.TAPS] + 4 * hidden * (row * plan[at.TAP_COUNT] + layer[at.TAP]),
                )
            norm_row(plan, row, layer[at.ATTENTION_NORM], epsilon, scratch)
            done += 1
        complete(steps, threads, stage, done, rows)
        stage += 1

        product(
            steps, threads, stage, rank, weight_format, rows, words_bytes, source, hidden, scale, total,
            layer[at.QKV], layer[at.QKV_SCALE], layer[at.QKV_BIAS], width, STORE, one, projected, scratch,
        )  # fmt: skip
        stage += 1

        done = 0
        while True:
            row = claim(steps, threads, stage, rank, rows)
            if row < 0:
                break
            place_row(plan, layer, row, epsilon)
            done += 1
        complete(steps, threads, stage, done, rows)
        stage += 1

        done = 0
        tiles = plan[at.UNIT_COUNT] * kv_heads
        units = carray(longs_at(plan[at.UNITS]), (plan[at.UNIT_COUNT], 2))
        while True:
            tile = claim(steps, threads, stage, rank, tiles)
            if tile < 0:
                break
            attend_unit(
                plan,
                layer,
                units[tile // kv_heads, 0],
                units[tile // kv_heads, 1],
                tile % kv_heads,
                constants[at.SCORE_SCALE],
                scratch,
            )
            done += 1
        complete(steps, threads, stage, done, tiles)
        stage += 1

        convert_rows(plan, stage, rank, projected, 4 * width, heads * head_dim)
        stage += 1

        product(
            steps, threads, stage, rank, weight_format, rows, words_bytes, source, heads * head_dim, scale, total,
            layer[at.OUT], layer[at.OUT_SCALE], layer[at.OUT_BIAS], hidden, ADD, residual_scale, residual, scratch,
        )  # fmt: skip
        stage += 1

        done = 0
        while True:
            row = claim(steps, threads, stage, rank, rows)
            if row < 0:
                break
            norm_row(plan, row, layer[at.MLP_NORM], epsilon, scratch)
            done += 1
        complete(steps, threads, stage, done, rows)
        stage += 1

        product(
            steps, threads, stage, rank, weight_format, rows, words_bytes, source, hidden, scale, total,
            layer[at.UP], layer[at.UP_SCALE], layer[at.UP_BIAS], plan[at.INTERMEDIATE], GATE, one, inner, scratch,
        )  # fmt: skip
        stage += 1

        convert_rows(plan, stage, rank, inner, 4 * plan[at.INTERMEDIATE], plan[at.INTERMEDIATE])
        stage += 1

        product(
            steps, threads, stage, rank, weight_format, rows, words_bytes, source, plan[at.INTERMEDIATE], scale, total,
            layer[at.DOWN], layer[at.DOWN_SCALE], layer[at.DOWN_BIAS], hidden, ADD, residual_scale, residual, scratch,
        )  # fmt: skip
        stage += 1

    done = 0
    while True:
        row = claim(steps, threads, stage, rank, rows)
        if row < 0:
            break
        normalise(residual + 4 * row * hidden, plan[at.FINAL_NORM], hidden, epsilon, plan[at.LAST] + 4 * row * hidden)
        done += 1
    complete(steps, threads, stage, done, rows)


@njit
def project(rank, plan, constants):  # type: ignore[no-untyped-def]
    """Logits of the plan's rows, which are in RESIDUAL."""
    convert_rows(plan, 0, rank, plan[at.RESIDUAL], 4 * plan[at.HIDDEN], plan[at.HIDDEN])
    product(
        plan[at.STEPS], plan[at.THREADS], 1, rank, plan[at.FORMAT], plan[at.ROWS], plan[at.WORD_BYTES], plan[at.WORDS], plan[at.HIDDEN],
        plan[at.ROW_SCALE], plan[at.ROW_SUM], plan[at.HEAD], plan[at.HEAD_SCALE], int64(0), plan[at.VOCABULARY], STORE,
        constants[at.LOGITS_SCALE], plan[at.LOGITS], plan[at.SCRATCH] + rank * plan[at.SCRATCH_BYTES],
    )  # fmt: skip


@njit(void(int64, int64[::1], float32[::1], int64[:, ::1]), nogil=True, cache=True)
def run(rank, plan, constants, layers):  # type: ignore[no-untyped-def]
    """One thread's part of what the plan says: the one entry point, so that it is compiled and loaded once."""
    if plan[at.PROJECTS]:
        project(rank, plan, constants)
    else:
        decode(rank, plan, constants, layers)
