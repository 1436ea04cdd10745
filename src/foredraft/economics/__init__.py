"""The arithmetic of speculation: what a draft gains, what it costs, and when it pays.

Pure Python without torch or numpy. Every formula takes floats or `fractions.Fraction`; with fractions the result is
exact. Time is counted in *plain passes* (one target pass over one new token per sequence = 1) unless a name says
milliseconds.

    chain      tokens per cycle, cost per cycle, speedup, best length, break-evens: the textbook form
    verdict    the word for a speedup, and its thresholds
    passes     the general form: any pass time T(rows, cached tokens, batch), measured or modelled
    roofline   a pass time from FLOP/s, bytes/s and the shape of the model
    goodput    tokens per second of a mixed batch, and the draft lengths that maximise it
    trees      expected tokens of a tree with a probability at every node, and the best tree of a given size
"""

from foredraft.economics.chain import (
    LONGEST,
    acceptance_for_tokens,
    best_length,
    break_even_acceptance,
    break_even_cost,
    cost_per_cycle,
    marginal_tokens,
    speedup,
    survival_curve,
    survival_from_conditional,
    tokens_from_survival,
    tokens_per_cycle,
    waterline,
)
from foredraft.economics.goodput import best_lengths, goodput
from foredraft.economics.passes import (
    Cycle,
    DraftTime,
    MeasuredPasses,
    PassPoint,
    PassTime,
    best_cycle,
    cycle,
    largest_paying_batch,
    relative_draft_time,
)
from foredraft.economics.roofline import MACHINES, MODELS, Machine, ModelShape, roofline
from foredraft.economics.trees import TreeShape, best_tree, rank_probabilities, reach, tree_depth, tree_tokens
from foredraft.economics.verdict import BREAK_EVEN_FROM, CLEAR_WIN_FROM, MODEST_FROM, verdict

__all__ = [
    "BREAK_EVEN_FROM",
    "CLEAR_WIN_FROM",
    "LONGEST",
    "MACHINES",
    "MODELS",
    "MODEST_FROM",
    "Cycle",
    "DraftTime",
    "Machine",
    "MeasuredPasses",
    "ModelShape",
    "PassPoint",
    "PassTime",
    "TreeShape",
    "acceptance_for_tokens",
    "best_cycle",
    "best_length",
    "best_lengths",
    "best_tree",
    "break_even_acceptance",
    "break_even_cost",
    "cost_per_cycle",
    "cycle",
    "goodput",
    "largest_paying_batch",
    "marginal_tokens",
    "rank_probabilities",
    "reach",
    "relative_draft_time",
    "roofline",
    "speedup",
    "survival_curve",
    "survival_from_conditional",
    "tokens_from_survival",
    "tokens_per_cycle",
    "tree_depth",
    "tree_tokens",
    "verdict",
    "waterline",
]
