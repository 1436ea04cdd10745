"""The whole pass in one call: embeddings, layers and the final norm; or the head for the rows that need logits.

Every thread of the crew runs it with its rank and goes through the same stages; see `sharing` for how they share the
tiles of a stage.
"""

# mypy: ignore-errors
# numba and LLVM compile this file; its types are theirs, not Python's.
from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from numba import carray, float32, int64, njit, void

from foredraft import hash_noise
from foredraft.target.kernels import layout as at
from foredraft.target.kernels.growing import guess_row, next_level
from foredraft.target.kernels.matrix import HAS_MATRIX_UNIT, begin_matrix, end_matrix
from foredraft.target.kernels.memory import longs_at
from foredraft.target.kernels.products import ADD, GATE, STORE, product
from foredraft.target.kernels.sharing import claim, complete
from foredraft.target.kernels.stages import attend_unit, convert, embed, finish_row, norm_row, pair_row, place_row

__all__ = ["GROW_STAGES", "PAIR_STAGES", "PROJECT_STAGES", "VERSION", "decode_stages", "multiply_stages", "run"]

PROJECT_STAGES, PAIR_STAGES = 2, 12
GROW_STAGES = PAIR_STAGES + PROJECT_STAGES + 2
"""Of each level."""
EMBED, NORM, PLACE, CONVERT, FINISH, JOIN, GUESS = range(7)


def decode_stages(layers: int) -> int:
    """How many stages a pass through so many layers has."""
    return 2 + 10 * layers


def multiply_stages(layers: int) -> int:
    """How many stages the products of a pass have."""
    return 2 + 4 * layers


@njit
def each_row(plan, constants, layer, stage, rank, work, address, stride, size):
    """Stage: the same work for every row."""
    done, rows = 0, plan[at.ROWS]
    while True:
        row = claim(plan, stage, rank, rows)
        if row < 0:
            break
        if work == NORM:
            norm_row(plan, layer, row, address, constants[at.EPSILON], plan[at.SCRATCH] + rank * plan[at.SCRATCH_BYTES])
        elif work == PLACE:
            place_row(plan, layer, row, constants[at.EPSILON])
        elif work == CONVERT:
            convert(plan, row, address + row * stride, size)
        elif work == EMBED:
            embed(plan, row, constants[at.EMBEDDING_FACTOR], plan[at.RESIDUAL] + 4 * row * plan[at.HIDDEN])
        elif work == JOIN:
            pair_row(plan, row, constants[at.EPSILON], plan[at.SCRATCH] + rank * plan[at.SCRATCH_BYTES])
        elif work == GUESS:
            guess_row(plan, row)
        else:
            finish_row(plan, row, constants[at.EPSILON])
        done += 1
    complete(plan, stage, done, rows)


@njit
def each_unit(plan, constants, layer, stage, rank):
    """Stage: attention of every unit of rows to every key head."""
    done, tiles = 0, plan[at.UNIT_COUNT] * plan[at.KV_HEADS]
    while True:
        tile = claim(plan, stage, rank, tiles)
        if tile < 0:
            break
        scratch = plan[at.SCRATCH] + rank * plan[at.SCRATCH_BYTES]
        attend_unit(
            plan, layer, tile // plan[at.KV_HEADS], tile % plan[at.KV_HEADS], constants[at.SCORE_SCALE], scratch
        )
        done += 1
    complete(plan, stage, done, tiles)


@njit
def decode(rank, plan, constants, layers):
    """Run all layers over the plan's rows."""
    none = int64(0)
    each_row(plan, constants, layers[0], 0, rank, EMBED, none, none, none)
    for index in range(plan[at.LAYERS]):
        layer, stage = layers[index], 1 + 10 * index
        each_row(plan, constants, layer, stage, rank, NORM, layer[at.ATTENTION_NORM], none, none)
        attend_and_mix(plan, constants, layer, stage + 1, rank, plan[at.HIDDEN])
    each_row(plan, constants, layers[0], 1 + 10 * plan[at.LAYERS], rank, FINISH, none, none, none)


@njit
def attend_and_mix(plan, constants, layer, stage, rank, size):
    """A layer, nine stages, from the queries, keys and values of `size` numbers a row on."""
    hidden, inner = plan[at.HIDDEN], plan[at.INTERMEDIATE]
    attended = plan[at.HEADS] * plan[at.HEAD_DIM]
    width = attended + 2 * plan[at.KV_HEADS] * plan[at.HEAD_DIM]
    factor, one, none = constants[at.RESIDUAL_SCALE], float32(1.0), int64(0)
    product(plan, stage, rank, layer, at.QKV, size, width, STORE, one, plan[at.PROJECTED])
    each_row(plan, constants, layer, stage + 1, rank, PLACE, none, none, none)
    each_unit(plan, constants, layer, stage + 2, rank)
    each_row(plan, constants, layer, stage + 3, rank, CONVERT, plan[at.PROJECTED], 4 * width, attended)
    product(plan, stage + 4, rank, layer, at.OUT, attended, hidden, ADD, factor, plan[at.RESIDUAL])
    each_row(plan, constants, layer, stage + 5, rank, NORM, layer[at.MLP_NORM], none, none)
    product(plan, stage + 6, rank, layer, at.UP, hidden, inner, GATE, one, plan[at.INNER])
    each_row(plan, constants, layer, stage + 7, rank, CONVERT, plan[at.INNER], 4 * inner, inner)
    product(plan, stage + 8, rank, layer, at.DOWN, inner, hidden, ADD, factor, plan[at.RESIDUAL])


@njit
def pair(rank, plan, constants, layers):
    """Run a drafting head's layer over pairs of embedding and feature; what comes out is in RESIDUAL."""
    layer, hidden, none = layers[0], plan[at.HIDDEN], int64(0)
    each_row(plan, constants, layer, 0, rank, JOIN, none, none, none)
    size = 2 * hidden
    if plan[at.JOIN]:
        product(plan, 1, rank, plan, at.JOIN, size, hidden, STORE, float32(1.0), plan[at.RESIDUAL])
        size = hidden
        if layer[at.ATTENTION_NORM]:
            each_row(plan, constants, layer, 2, rank, NORM, layer[at.ATTENTION_NORM], none, none)
        else:
            each_row(plan, constants, layer, 2, rank, CONVERT, plan[at.RESIDUAL], 4 * hidden, hidden)
    attend_and_mix(plan, constants, layer, 3, rank, size)


@njit
def project(rank, plan, constants, layers, stage):
    """Logits of the plan's rows, whose final hidden states are in RESIDUAL, from the stage of that number on."""
    hidden, none = plan[at.HIDDEN], int64(0)
    if plan[at.HEAD_NORM]:
        each_row(plan, constants, layers[0], stage, rank, NORM, plan[at.HEAD_NORM], none, none)
    else:
        each_row(plan, constants, layers[0], stage, rank, CONVERT, plan[at.RESIDUAL], 4 * hidden, hidden)
    factor = constants[at.LOGITS_SCALE]
    product(plan, stage + 1, rank, plan, at.HEAD, hidden, plan[at.VOCABULARY], STORE, factor, plan[at.LOGITS])


@njit
def grow(rank, plan, constants, layers):
    """Whole drafts of a drafting head. Each level has a plan of its own, which nobody changes once it is being worked
    on: a thread that comes late must find the tables of the level it is at."""
    levels = carray(longs_at(plan[at.LEVELS]), (plan[at.LEVEL_COUNT], at.PLAN_FIELDS))
    none = int64(0)
    for level in range(plan[at.LEVEL_COUNT]):
        own = levels[level]
        if own[at.ROWS] == 0:
            return
        if level:
            pair(rank, own, constants, layers)
        project(rank, own, constants, layers, PAIR_STAGES)
        stage = PAIR_STAGES + PROJECT_STAGES
        each_row(own, constants, layers[0], stage, rank, GUESS, none, none, none)
        done, last = 0, level == plan[at.LEVEL_COUNT] - 1
        if claim(own, stage + 1, rank, 1) >= 0:
            next_level(own, own if last else levels[level + 1], level, last)
            done = 1
        complete(own, stage + 1, done, 1)


@njit
def multiply(rank, plan, constants, layers):
    """Every product of a pass and the head's, over rubbish, and nothing between them: what a whole pass is compared
    with.
    """
    hidden, inner = plan[at.HIDDEN], plan[at.INTERMEDIATE]
    attended = plan[at.HEADS] * plan[at.HEAD_DIM]
    width = attended + 2 * plan[at.KV_HEADS] * plan[at.HEAD_DIM]
    shortest = min(hidden, attended, inner)
    each_row(plan, constants, layers[0], 0, rank, CONVERT, plan[at.RESIDUAL], 4 * hidden, shortest)
    one = float32(1.0)
    for index in range(plan[at.LAYERS]):
        layer, stage = layers[index], 1 + 4 * index
        product(plan, stage, rank, layer, at.QKV, hidden, width, STORE, one, plan[at.PROJECTED])
        product(plan, stage + 1, rank, layer, at.OUT, attended, hidden, STORE, one, plan[at.RESIDUAL])
        product(plan, stage + 2, rank, layer, at.UP, hidden, inner, GATE, one, plan[at.INNER])
        product(plan, stage + 3, rank, layer, at.DOWN, inner, hidden, STORE, one, plan[at.RESIDUAL])
    last = 1 + 4 * plan[at.LAYERS]
    product(plan, last, rank, plan, at.HEAD, hidden, plan[at.VOCABULARY], STORE, one, plan[at.LOGITS])


def _entry(version: int) -> Callable[[int, Any, Any, Any], None]:
    """The one entry point, so that everything is compiled and loaded once.

    numba finds compiled code by this file's date and the values that the function closes over, hence the version, of
    all files.
    """

    @njit(void(int64, int64[::1], float32[::1], int64[:, ::1]), nogil=True, cache=True)
    def run(rank: int, plan: Any, constants: Any, layers: Any) -> None:
        if plan[at.VERSION] != version:
            return
        begin_matrix()
        if plan[at.WORK] == at.PROJECT:
            project(rank, plan, constants, layers, 0)
        elif plan[at.WORK] == at.MULTIPLY:
            multiply(rank, plan, constants, layers)
        elif plan[at.WORK] == at.PAIR:
            pair(rank, plan, constants, layers)
        elif plan[at.WORK] == at.GROW:
            grow(rank, plan, constants, layers)
        else:
            decode(rank, plan, constants, layers)
        end_matrix()

    return run


def _version() -> int:
    """A number that changes with any line that is compiled here, and with what this process may use."""
    sources = [*sorted(Path(__file__).parent.glob("*.py")), Path(hash_noise.__file__)]
    code = b"".join(source.read_bytes() for source in sources) + bytes([HAS_MATRIX_UNIT])
    return int.from_bytes(sha256(code).digest()[:7], "big")


VERSION = _version()
run = _entry(VERSION)
"""One thread's part of what the plan says: run(rank, plan, constants, layers)."""
