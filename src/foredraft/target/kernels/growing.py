"""How the drafts of a drafting head grow from one level to the next, without leaving the compiled code.

The rules are those of `drafters/eagle_tree.py` (EAGLE-2, Li et al. 2024, arXiv 2406.16858): every guess at a row
becomes a node, a node's score is its guess's worth times its parent's, and the best new nodes are read next unless so
many better ones exist that their children would come too late.
"""

# mypy: ignore-errors
# numba compiles this file; its types are not Python's.
from __future__ import annotations

from numba import carray, float32, int64, njit, uint32

from foredraft.target.kernels import layout as at
from foredraft.target.kernels.best import best_noisy_shares, best_shares
from foredraft.target.kernels.memory import doubles_at, floats_at, longs_at
from foredraft.target.kernels.rows import copy_row

__all__ = ["guess_row", "next_level"]


@njit
def guess_row(plan, row):
    """The best guesses at a row, from its logits."""
    growth = growth_of(plan)
    count, size = growth[at.TOP_K], plan[at.VOCABULARY]
    scores = carray(floats_at(plan[at.LOGITS] + 4 * row * size), (size,))
    tokens = carray(longs_at(growth[at.GUESSES] + 8 * row * count), (count,))
    shares = carray(floats_at(growth[at.SHARES] + 4 * row * count), (count,))
    tree = row_list(growth, at.ROW_TREES, plan[at.LEVEL])[row]
    heat = heat_of(growth, tree)
    if heat == 0.0:
        best_shares(scores, tokens, shares)
        return
    levels, most = growth[at.NOISE_LEVELS], growth[at.CONSIDERED]
    key = carray(longs_at(growth[at.KEYS_OF_NOISE]), (growth[at.TREES], levels))[tree, plan[at.LEVEL]]
    ids = carray(longs_at(growth[at.DRAFT_IDS]), (size if growth[at.DRAFT_IDS] else 0,))
    candidates = carray(longs_at(growth[at.CANDIDATES] + 8 * row * most), (most,))
    values = carray(floats_at(growth[at.CANDIDATE_SCORES] + 4 * row * most), (most,))
    low, high = uint32(key & 0xFFFFFFFF), uint32((key >> 32) & 0xFFFFFFFF)
    best_noisy_shares(scores, float32(heat), ids, low, high, candidates, values, tokens, shares)


@njit
def next_level(plan, following, level, last):
    """Add the nodes that were guessed at this level's rows, and lay out `following`, the plan that reads the best."""
    growth = growth_of(plan)
    rows, placed = plan[at.ROWS], int64(0)
    trees = row_list(growth, at.ROW_TREES, level)
    row = int64(0)
    while row < rows:
        tree, end = trees[row], row
        first = tree_list(growth, at.COUNTS)[tree]
        while end < rows and trees[end] == tree:
            sprout(growth, level, tree, end)
            end += 1
        if not last:
            placed = place_best(plan, following, growth, level, tree, first, placed)
        row = end
    if not last:
        following[at.ROWS] = placed
        following[at.UNIT_COUNT] = group_rows(following, growth)


@njit
def sprout(growth, level, tree, row):
    """The guesses at a row become nodes, if they are worth it."""
    count, room, kinds = growth[at.TOP_K], growth[at.ROOM], growth[at.KINDS]
    counts = tree_list(growth, at.COUNTS)
    tokens, parents = node_list(growth, at.NODE_TOKENS, tree), node_list(growth, at.NODE_PARENTS, tree)
    node_kinds, readers = node_list(growth, at.NODE_KINDS, tree), node_list(growth, at.NODE_ROWS, tree)
    scores = carray(doubles_at(growth[at.NODE_SCORES] + 8 * tree * room), (room,))
    guesses = carray(longs_at(growth[at.GUESSES] + 8 * row * count), (count,))
    shares = carray(floats_at(growth[at.SHARES] + 4 * row * count), (count,))
    least = carray(doubles_at(growth[at.LEAST]), (1,))[0]
    first_kind = kinds if heat_of(growth, tree) > 0.0 else int64(0)
    edges, centres, rates = (
        carray(doubles_at(growth[at.EDGES]), (kinds - 1,)),
        carray(doubles_at(growth[at.CENTRES]), (kinds,)),
        carray(doubles_at(growth[at.RATES] + 8 * first_kind), (kinds,)),
    )
    parent = row_list(growth, at.ROW_NODES, level)[row]
    above = scores[parent] if parent >= 0 else 1.0
    for place in range(count):
        share = float(shares[place])
        if share <= 0:
            continue
        score = above * min(interpolated(share, centres, rates), 1.0)
        if score <= 0 or score < least:
            continue
        node = counts[tree]
        counts[tree] = node + 1
        guess = guesses[place]
        if growth[at.DRAFT_IDS]:
            guess = carray(longs_at(growth[at.DRAFT_IDS] + 8 * guess), (1,))[0]
        kind = int64(0)
        while kind < kinds - 1 and edges[kind] < share:
            kind += 1
        tokens[node], parents[node], node_kinds[node], readers[node] = guess, parent, first_kind + kind, row
        scores[node] = score


@njit
def interpolated(share, centres, rates):
    last = len(centres) - 1
    if share >= centres[last]:
        return rates[last]
    if share <= centres[0]:
        return rates[0]
    below = 0
    while centres[below + 1] <= share:
        below += 1
    part = (share - centres[below]) / (centres[below + 1] - centres[below])
    return rates[below] + part * (rates[below + 1] - rates[below])


@njit
def place_best(plan, following, growth, level, tree, first, placed):
    """Rows of the next level for the best nodes from `first` on; returns how many rows there are then."""
    room, hidden, most = growth[at.ROOM], plan[at.HIDDEN], growth[at.TOP_K]
    count = tree_list(growth, at.COUNTS)[tree]
    budget, stable = tree_list(growth, at.BUDGETS)[tree], tree_list(growth, at.STABLE)[tree]
    read, readers = tree_list(growth, at.READ), node_list(growth, at.NODE_ROWS, tree)
    node_tokens, entries = node_list(growth, at.NODE_TOKENS, tree), node_list(growth, at.NODE_ENTRIES, tree)
    scores = carray(doubles_at(growth[at.NODE_SCORES] + 8 * tree * room), (room,))
    trees, nodes = row_list(growth, at.ROW_TREES, level + 1), row_list(growth, at.ROW_NODES, level + 1)
    size = growth[at.ROW_ROOM]
    tokens, positions = (
        carray(longs_at(following[at.TOKENS]), (size,)),
        carray(longs_at(following[at.POSITIONS]), (size,)),
    )
    slots, row_entries = (
        carray(longs_at(following[at.ROW_SLOT]), (size,)),
        carray(longs_at(following[at.ROW_ENTRY]), (size,)),
    )
    for node in range(first, count):
        entries[node] = -1
    for _ in range(most):
        best = int64(-1)
        for node in range(first, count):
            fresh = entries[node] < 0 and not is_end(growth, tree, node_tokens[node])
            if fresh and (best < 0 or scores[node] > scores[best]):
                best = node
        # With `budget` nodes of at least its score, itself included, a node's children come too late.
        if best < 0 or as_good(scores, count, scores[best]) >= budget:
            break
        entries[best] = read[tree]
        read[tree] += 1
        trees[placed], nodes[placed], tokens[placed] = tree, best, node_tokens[best]
        positions[placed] = tree_list(growth, at.ROOT_POSITION)[tree] + level + 1
        slots[placed], row_entries[placed] = tree_list(growth, at.SLOTS)[tree], stable + entries[best]
        lay_path(following, growth, tree, best, placed, stable)
        copy_row(plan[at.RESIDUAL] + 4 * hidden * readers[best], hidden, following[at.RESIDUAL] + 4 * hidden * placed)
        placed += 1
    return placed


@njit
def as_good(scores, count, mark):
    """How many nodes have at least this score."""
    found = int64(0)
    for node in range(count):
        found += scores[node] >= mark
    return found


@njit
def lay_path(following, growth, tree, node, row, stable):
    """A row sees the stable entries, those of its ancestors, and its own."""
    size, width = growth[at.ROW_ROOM], following[at.TAIL_WIDTH]
    parents, entries = node_list(growth, at.NODE_PARENTS, tree), node_list(growth, at.NODE_ENTRIES, tree)
    tail = carray(longs_at(following[at.TAIL] + 8 * row * width), (width,))
    depth, above = int64(0), node
    while above >= 0:
        depth += 1
        above = parents[above]
    above = node
    for step in range(depth - 1, -1, -1):
        tail[step] = stable + entries[above]
        above = parents[above]
    carray(longs_at(following[at.STRAIGHT]), (size,))[row] = stable
    carray(longs_at(following[at.LENGTH]), (size,))[row] = stable + depth


@njit
def group_rows(following, growth):
    """Group rows of one slot for attention; returns how many groups."""
    rows, kv_heads, size = following[at.ROWS], following[at.KV_HEADS], growth[at.ROW_ROOM]
    most = max(1, min(growth[at.UNIT_MOST], -(-rows * kv_heads // growth[at.UNIT_SHARES])))
    slots, units = carray(longs_at(following[at.ROW_SLOT]), (size,)), carray(longs_at(following[at.UNITS]), (size, 2))
    count, first = int64(0), int64(0)
    while first < rows:
        end = first + 1
        while end < min(first + most, rows) and slots[end] == slots[first]:
            end += 1
        units[count, 0], units[count, 1] = first, end - first
        first, count = end, count + 1
    return count


@njit
def is_end(growth, tree, token):
    if not tree_list(growth, at.HEED_ENDS)[tree]:
        return False
    found = False
    for end in carray(longs_at(growth[at.ENDS]), (growth[at.END_COUNT],)):
        found |= end == token
    return found


@njit
def heat_of(growth, tree):
    return carray(doubles_at(growth[at.HEATS]), (growth[at.TREES],))[tree]


@njit
def growth_of(plan):
    return carray(longs_at(plan[at.GROWTH]), (at.GROWTH_FIELDS,))


@njit
def tree_list(growth, field):
    return carray(longs_at(growth[field]), (growth[at.TREES],))


@njit
def node_list(growth, field, tree):
    return carray(longs_at(growth[field] + 8 * tree * growth[at.ROOM]), (growth[at.ROOM],))


@njit
def row_list(growth, field, level):
    return carray(longs_at(growth[field] + 8 * (level & 1) * growth[at.ROW_ROOM]), (growth[at.ROW_ROOM],))
