"""EAGLE heads over several texts at once, step by step as they draft: rows, labels, losses and guesses.

Row t reads the embedding of token t + 1 and a feature of position t, and guesses token t + 2. At step s the chain that
began at row t has read t + 1 + s tokens; the embedding is the text's (teacher forcing), the feature the head's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from foredraft.heads.eagle import EagleHead
from foredraft.training.chain_attention import PackedChains, TextRows
from foredraft.training.examples import Example

__all__ = ["ChainStep", "chain_steps", "each_chain"]


class ChainStep(NamedTuple):
    """step: its number; states [R, H] of the rows that draft, the head's before its final norm; after: for each text,
    which indices of its tokens those rows' guesses come after."""

    step: int
    states: Tensor
    after: list[slice]


def chain_steps(
    head: EagleHead,
    examples: Sequence[Example],
    features: Tensor,
    embed: Callable[[Tensor], Tensor],
    steps: int,
) -> Iterator[ChainStep]:
    """Run `head` for `steps` steps; `features` [sum of rows, H] are those of step 0, as `fuse` gives them."""
    texts = [TextRows(example.rows, example.first) for example in examples]
    attend = PackedChains(texts)
    feature = features
    for step in range(steps):
        tokens, positions = [], []
        for example, text in zip(examples, texts, strict=True):
            begin = 0 if step == 0 else text.first
            end = text.length if step == 0 else text.first + text.drafting(step)
            tokens.append(example.tokens[begin + 1 + step : end + 1 + step])
            positions.append(torch.arange(begin, end) + step)
        flat, places = torch.cat(tokens).to(features.device), torch.cat(positions).to(features.device)
        if not len(flat):
            return
        state = head.step(embed(flat), feature, places, attend)
        if step == 0:
            kept = [
                torch.arange(text.first, text.length) + offset
                for text, offset in zip(texts, _offsets([text.length for text in texts]), strict=True)
            ]
            state = state[torch.cat(kept).to(state.device)]
        yield ChainStep(
            step, state, [slice(text.first + 1 + step, text.first + 1 + step + text.drafting(step)) for text in texts]
        )
        counts = [text.drafting(step) for text in texts]
        left = [
            torch.arange(text.drafting(step + 1)) + offset for text, offset in zip(texts, _offsets(counts), strict=True)
        ]
        feature = head.feedback(state[torch.cat(left).to(state.device)])


def each_chain(values: Tensor, after: Sequence[slice]) -> list[Tensor]:
    """Split rows by text."""
    return list(torch.split(values, [part.stop - part.start for part in after]))


def _offsets(sizes: Sequence[int]) -> list[int]:
    offsets = [0]
    for size in sizes[:-1]:
        offsets.append(offsets[-1] + size)
    return offsets
