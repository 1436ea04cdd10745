"""How often a head guesses the target's own choice on text that is fed to it: what tells a head that is read right from
one that isn't.

Top-1 agreement needs no speculation, only some hundred tokens of the target's greedy text with the tapped states, and
nearly every mistake in reading a file shows in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from foredraft.heads.chains import ChainAttention
from foredraft.heads.eagle import EagleHead
from foredraft.heads.medusa import MedusaHeads

__all__ = ["TargetText", "eagle_agreement", "expected_accepted", "medusa_agreement"]


class TargetText(NamedTuple):
    """What the target computed on T tokens.

    tokens  [T] int64; best from the target's own greedy decoding
    picks   [T] int64, the target's most likely token after each of them
    taps    by boundary, the target's states [T, Ht]; -1 is the state after the final norm
    embed   token ids [n] -> the target's embeddings [n, Ht]
    head    the target's output layer, [n, Ht] -> [n, V]
    """

    tokens: Tensor
    picks: Tensor
    taps: dict[int, Tensor]
    embed: Callable[[Tensor], Tensor]
    head: Callable[[Tensor], Tensor]


@torch.no_grad()
def eagle_agreement(head: EagleHead, text: TargetText, steps: int = 3) -> tuple[float, ...]:
    """Share of right guesses by draft depth, with the text as the drafted tokens (teacher forcing).

    Depth 1 reads the target's states, deeper ones the head's own; a guess is right if it is the target's pick.
    """
    dtype = next(head.parameters()).dtype
    features = torch.stack([text.taps[layer] for layer in head.shape.aux_layers], dim=-2).to(dtype)
    feature = head.fuse(features)
    attend = ChainAttention()
    shares = []
    length = len(text.tokens)
    for depth in range(min(steps, length - 1)):
        rows = length - 1 - depth  # row t reads token t + 1 + depth and guesses the pick after it
        following = text.tokens[1 + depth :]
        positions = torch.arange(depth, depth + rows, device=following.device)
        embedding = head.embed(following, text.embed).to(dtype)
        state = head.step(embedding, feature[:rows], positions, attend)
        best = head.logits(state, text.head).argmax(dim=-1)
        guesses = best if head.draft_ids is None else head.draft_ids[best]
        shares.append(float((guesses == text.picks[1 + depth :]).double().mean()))
        feature = head.feedback(state)
    return tuple(shares)


@torch.no_grad()
def medusa_agreement(heads: MedusaHeads, text: TargetText) -> tuple[float, ...]:
    """Share of right guesses of each head. Head i's guess at row t is compared with the target's pick after token
    t + 1 + i."""
    hidden = text.taps[-1].to(next(heads.parameters()).dtype)
    best = heads.logits(heads(hidden), text.head).argmax(dim=-1)
    guesses = best if heads.draft_ids is None else heads.draft_ids[best]
    shares = []
    for head in range(min(heads.shape.heads, len(text.tokens) - 1)):
        right = guesses[: -(1 + head), head] == text.picks[1 + head :]
        shares.append(float(right.double().mean()))
    return tuple(shares)


def expected_accepted(shares: tuple[float, ...]) -> float:
    """Tokens that a chain would have accepted, were the shares independent: s1 + s1 s2 + ..."""
    total, survival = 0.0, 1.0
    for share in shares:
        survival *= share
        total += survival
    return total
