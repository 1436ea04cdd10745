"""Tries a head on a target: has the target write a text, and compares the head's guesses with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foredraft.heads.agreement import TargetText
    from foredraft.heads.eagle import EagleHead
    from foredraft.heads.info import HeadInfo
    from foredraft.heads.medusa import MedusaHeads
    from foredraft.target.target import Target

__all__ = ["Trial", "read_text", "try_head"]


@dataclass(frozen=True, slots=True)
class Trial:
    """agreement: share of right guesses by draft depth (EAGLE) or head (Medusa). reading: how the file had to be read,
    "as written" if it was right. tried: all readings that were compared."""

    tokens: int
    agreement: list[float]
    reading: str
    tried: dict[str, list[float]]


def try_head(head: EagleHead | MedusaHeads, info: HeadInfo, target: Target) -> Trial:
    """Teacher-forced agreement with some 200 tokens of the target's, under the reading that fits best."""
    import torch

    from foredraft.heads.agreement import medusa_agreement
    from foredraft.heads.eagle import EagleHead
    from foredraft.heads.interpretations import boundaries_to_tap, choose_interpretation

    double = target.decoder.cache_dtype.itemsize == 8
    head = head.to(target.decoder.device, torch.float64 if double else torch.float32)
    if not isinstance(head, EagleHead):
        text = read_text(target, (-1,))
        shares = list(medusa_agreement(head, text))
        return Trial(len(text.tokens), shares, "as written", {"as written": shares})
    layers = target.decoder.cache_shape.layers
    text = read_text(target, boundaries_to_tap(head.shape, layers))
    choice = choose_interpretation(head, text, info.doubts, layers)
    tried = {words: list(shares) for words, shares in choice.tried}
    return Trial(len(text.tokens), list(choice.agreement), choice.reading, tried)


def read_text(target: Target, layers: tuple[int, ...]) -> TargetText:
    """A greedy text of the target's; its output layer takes states of any type."""
    from foredraft.drafters.self_test import target_text

    text = target_text(target, layers)
    kind = text.taps[layers[0]].dtype
    return text._replace(head=lambda states: target.decoder.head(states.to(kind)))
