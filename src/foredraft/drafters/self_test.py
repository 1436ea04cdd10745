"""Tries a head on text that the target writes, before anything is served with it.

A head that was read wrongly (a layer off by one, a norm in the wrong place) runs without complaint and drafts nonsense.
What its file leaves open is decided here, by which reading agrees best with the target.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from foredraft.heads.agreement import TargetText
from foredraft.heads.eagle import EagleHead
from foredraft.heads.info import Doubt
from foredraft.heads.interpretations import TOO_LOW, boundaries_to_tap, choose_interpretation
from foredraft.target.flat_pass import FlatPass, Segment
from foredraft.target.kv_cache import KVCache

if TYPE_CHECKING:
    from foredraft.target.target import Target

__all__ = ["target_text", "tried_on_text"]

TEXT = 200
"""Tokens that the target writes."""
OPENING = "The history of the city begins with"

logger = logging.getLogger(__name__)


def tried_on_text(name: str, head: EagleHead, target: Target, doubts: tuple[Doubt, ...]) -> EagleHead:
    """The head, read as agrees best with the target; how well that is, is logged."""
    layers = target.decoder.cache_shape.layers
    text = target_text(target, boundaries_to_tap(head.shape, layers))
    choice = choose_interpretation(head, text, doubts, layers)
    shares = ", ".join(f"{share:.0%}" for share in choice.agreement)
    if choice.agreement and choice.agreement[0] < TOO_LOW:
        logger.warning("The head %s agrees with %s on %s of its tokens only.", name, target.name, shares)
    else:
        logger.info("The head %s, read %s, agrees with %s on %s.", name, choice.reading, target.name, shares)
    return choice.head


@torch.inference_mode()
def target_text(target: Target, taps: tuple[int, ...], tokens: int = TEXT) -> TargetText:
    """The target's greedy text of about so many tokens, with its states at the boundaries `taps`. The target's own
    cache is left alone.
    """
    decoder = target.decoder
    text = _opening(target)
    length = min(len(text) + tokens, target.max_model_len)
    cache = KVCache(decoder.cache_shape, 1, decoder.cache_dtype, decoder.device)
    cache.reserve(length)
    picks: list[Tensor] = []
    states: list[Tensor] = []
    read = 0
    while read < length:
        chunk = torch.tensor(text[read:], device=decoder.device)
        positions = torch.arange(read, len(text), device=decoder.device)
        hidden = decoder.forward(FlatPass(chunk, positions, (Segment(0, read, 0, len(chunk)),)), cache, taps)
        assert hidden.taps is not None
        picks.append(decoder.head(hidden.last).argmax(dim=-1))
        states.append(hidden.taps)
        read = len(text)
        text.append(int(picks[-1][-1]))
    tapped = torch.cat(states)
    return TargetText(
        torch.tensor(text[:read], device=decoder.device),
        torch.cat(picks),
        {tap: tapped[:, index] for index, tap in enumerate(taps)},
        decoder.embed,
        decoder.head,
    )


def _opening(target: Target) -> list[int]:
    if target.tokenizer is None:
        return [token % target.vocab_size for token in (1, 5, 7)]
    return list(target.tokenizer(OPENING).input_ids)
