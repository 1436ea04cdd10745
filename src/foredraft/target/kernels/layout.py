"""Where the compiled pass finds things: the fields of the tables of addresses and sizes that it is called with.

Compiled code takes plain int64 tables, so there is one signature for every model and format, and calling it costs a
microsecond. Whoever fills a table keeps the arrays alive that it points to.
"""

from __future__ import annotations

__all__: list[str] = []

INT8, BFLOAT16, FLOAT32 = 0, 1, 2
"""Weight formats; the last two are formats of the KV cache and of an embedding table as well."""

DECODE, PROJECT, MULTIPLY, PAIR, GROW = 0, 1, 2, 3, 4
"""What a call computes: the layers, the head, all products alone, the layer of a drafting head, or whole drafts."""

PANEL = 48
"""Columns of a weight matrix that are stored and computed together."""

KEY_BLOCK = 64
"""Positions that attention handles together; blocks start at multiples of it."""

(
    FORMAT,  # of the weights
    CACHE_FORMAT,
    ROWS,  # T
    HIDDEN,
    HEADS,
    KV_HEADS,
    HEAD_DIM,
    INTERMEDIATE,
    LAYERS,
    VOCABULARY,
    CAPACITY,  # of a cache slot
    TOKENS,  # int64 [T]
    POSITIONS,  # int64 [T]
    RESIDUAL,  # float32 [T, H]
    PROJECTED,  # float32 [T, (heads + 2 kv_heads) D], then the attention's output
    PROJECTED_BYTES,  # of a row
    INNER,  # float32 [T, I]
    WORDS,  # [T, WORD_BYTES] rows of the next product in its format
    WORD_BYTES,
    ROW_SCALE,  # float32 [T], int8 only
    ROW_SUM,  # int32 [T], int8 only
    LISTED,  # uint32 [T, LISTED_BYTES / 4], int8 only: the high digits of each row
    LISTED_BYTES,
    QUERIES,  # [T, heads, D] in the cache's format
    ROPE,  # float32 [positions, 2, D / 2]: cosines, sines
    ROW_SLOT,  # int64 [T]
    ROW_ENTRY,  # int64 [T], the cache entry that the row writes
    STRAIGHT,  # int64 [T], leading positions whose cache entry is the position itself
    LENGTH,  # int64 [T], positions that the row sees
    TAIL,  # int64 [T, TAIL_WIDTH], the entries of the remaining positions
    TAIL_WIDTH,
    UNITS,  # int64 [units, 2]: first row and rows of what attention computes together
    UNIT_COUNT,
    SCRATCH,  # [threads, SCRATCH_BYTES]
    SCRATCH_BYTES,
    EMBEDDING,  # float32 or bfloat16 [V, H], or a packed matrix whose columns are the embeddings
    EMBEDDING_SCALE,
    EMBEDDING_FORMAT,
    EMBEDDING_PACKED,  # whether it is one, in the format of the weights
    FINAL_NORM,
    LAST,  # float32 [T, H]
    TAPS,  # float32 [T, TAP_COUNT, H]
    TAP_COUNT,
    HEAD_NORM,  # of what the head reads; 0: it is normed already
    HEAD,  # packed
    HEAD_SCALE,
    HEAD_BIAS,
    LOGITS,  # float32 [R, V]
    STEPS,  # [stages, threads + 1] counters of a cache line each
    THREADS,
    WORK,  # one of the five above
    PAIRED_NORM,  # PAIR only: weights of the norms of embeddings and of features; 0: none
    FEATURE_NORM,
    KEEPS_NORMED,  # whether the normed features are the residual
    JOIN,  # packed, makes a feature of each pair first; 0: none
    JOIN_SCALE,
    JOIN_BIAS,
    LEVEL,  # GROW only: its number
    LEVELS,  # GROW only: int64 [LEVEL_COUNT, PLAN_FIELDS], a plan for each level of the drafts
    LEVEL_COUNT,
    GROWTH,  # GROW only: a table of the fields below
    VERSION,  # of the code that laid out the plan
    PLAN_FIELDS,
) = range(63)

EPSILON, SCORE_SCALE, EMBEDDING_FACTOR, RESIDUAL_SCALE, LOGITS_SCALE, CONSTANT_FIELDS = range(6)

(
    QKV,
    QKV_SCALE,
    QKV_BIAS,
    OUT,
    OUT_SCALE,
    OUT_BIAS,
    UP,  # panels of 24 gate columns and the 24 up columns that they gate
    UP_SCALE,
    UP_BIAS,
    DOWN,
    DOWN_SCALE,
    DOWN_BIAS,
    ATTENTION_NORM,
    MLP_NORM,
    QUERY_NORM,
    KEY_NORM,
    WINDOW,
    ROTATES,
    KEYS,
    VALUES,
    TAP,
    LAYER_FIELDS,
) = range(22)

(
    TREES,  # B, drafts that grow at once
    TOP_K,  # guesses kept of a row, and rows read of a draft and level
    ROOM,  # N, nodes that a draft can have before the best are chosen
    UNIT_MOST,  # rows that attention computes together at most
    UNIT_SHARES,  # in how many shares it should split the rows of a level
    DRAFT_IDS,  # int64 [Vd], the target's ids; 0: the same
    ENDS,  # int64 [END_COUNT], tokens after which nothing is drafted
    END_COUNT,
    HEED_ENDS,  # int64 [B], whether a draft does
    LEAST,  # float64 [1], the lowest score of a node
    KINDS,  # of guesses, by confidence
    EDGES,  # float64 [KINDS - 1], between them
    CENTRES,  # float64 [KINDS], where the rates hold; between centres they are interpolated
    RATES,  # float64 [2 KINDS], how often such a guess comes true, without noise and with
    BUDGETS,  # int64 [B], nodes that will be chosen
    SLOTS,  # int64 [B], of the head's cache
    STABLE,  # int64 [B], entries that all nodes see
    ROOT_POSITION,  # int64 [B], of the row from which a draft begins
    COUNTS,  # int64 [B], nodes so far
    READ,  # int64 [B], nodes read so far
    NODE_TOKENS,  # int64 [B, N], as are the next four
    NODE_PARENTS,  # index of a node, -1: the root
    NODE_KINDS,
    NODE_ROWS,  # the row that a node was guessed at
    NODE_ENTRIES,  # place behind the stable entries, of nodes that were read
    NODE_SCORES,  # float64 [B, N]
    ROW_TREES,  # int64 [2, rows], the draft of each row, of this level and the next in turn
    ROW_NODES,  # int64 [2, rows], the node that it reads
    ROW_ROOM,  # rows
    HEATS,  # float64 [B], temperatures; 0: no noise
    KEYS_OF_NOISE,  # int64 [B, LEVEL_COUNT]
    NOISE_LEVELS,  # LEVEL_COUNT
    CONSIDERED,  # tokens of a row whose noise is looked up
    CANDIDATES,  # int64 [rows, CONSIDERED]
    CANDIDATE_SCORES,  # float32 [rows, CONSIDERED]
    GUESSES,  # int64 [rows, TOP_K], indices into the head's vocabulary
    SHARES,  # float32 [rows, TOP_K]
    GROWTH_FIELDS,
) = range(38)
