"""A target that writes a given text, for tests of drafters: no model, no cache, one step at a time.

`follow` maps the tokens so far to the next one, and is asked for the picks at every node, accepted or not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Collection
from itertools import count

import torch

from foredraft.drafters.base import Drafter, Features
from foredraft.sampling import rows_of
from foredraft.tree import TokenTree
from foredraft.types import SamplingParams, Sequence
from foredraft.verify import verify

Follow = Callable[[list[int]], int]
VOCAB = 1000
_ids = count()


def sequence_of(prompt: Collection[int], *, prediction: Collection[int] = (), cache_salt: str = "") -> Sequence:
    """A new greedy sequence."""
    params = SamplingParams(temperature=0.0, max_tokens=None, cache_salt=cache_salt)
    return Sequence(next(_ids), params, list(prompt), len(prompt), seed=0, prediction=tuple(prediction))


def script(prompt: Collection[int], answer: Collection[int]) -> Follow:
    """Write `answer` after `prompt`; off that path, and after its end, the token VOCAB - 1."""
    whole = [*prompt, *answer]
    return lambda tokens: (
        whole[len(tokens)] if len(tokens) < len(whole) and whole[: len(tokens)] == tokens else VOCAB - 1
    )


def step(
    drafter: Drafter,
    sequences: list[Sequence],
    follow: Follow,
    budget: int,
    *,
    tree: TokenTree | None = None,
    seconds: float = 0.0,
) -> tuple[TokenTree, list[int]]:
    """Propose (unless a `tree` is given), verify and commit; the tree, and how many tokens each sequence emitted.

    `seconds` is the least time that verifying takes.
    """
    tree = drafter.propose(sequences, [budget] * len(sequences)) if tree is None else tree
    time.sleep(seconds)
    picks = torch.full((len(sequences), tree.width + 1), -1)
    candidates = torch.full((len(sequences), tree.width + 1, max(drafter.wants.candidates, 1)), -1)
    for row, part in enumerate(rows_of(sequences, tree)):
        for node, path in enumerate(part.paths):
            picks[row, node] = follow(part.sequence.tokens + list(path))
            # the runners-up are any tokens that differ from the pick
            candidates[row, node] = (picks[row, node] + torch.arange(candidates.shape[2])) % VOCAB
    verdict = verify(tree, picks)
    for sequence, tokens, length in zip(sequences, verdict.tokens.tolist(), verdict.lengths.tolist(), strict=True):
        sequence.tokens += tokens[:length]
    drafter.commit(sequences, verdict, Features(tree, picks, candidates if drafter.wants.candidates else None))
    return tree, verdict.lengths.tolist()


def write(
    drafter: Drafter,
    prompt: Collection[int],
    answer: Collection[int],
    *,
    budget: int = 8,
    prediction: Collection[int] = (),
    seconds: float = 0.0,
) -> list[int]:
    """Decode `answer` after `prompt` with a bound drafter; how many tokens each step emitted."""
    sequence = sequence_of(prompt, prediction=prediction)
    follow = script(prompt, answer)
    drafter.begin(sequence)
    emitted = []
    while len(sequence.tokens) < len(prompt) + len(answer):
        left = len(prompt) + len(answer) - len(sequence.tokens)
        emitted += step(drafter, [sequence], follow, min(budget, left - 1), seconds=seconds)[1]
    drafter.end(sequence)
    assert sequence.tokens == [*prompt, *answer]
    return emitted
