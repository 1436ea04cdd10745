"""Decides how an EAGLE file is to be read when the file doesn't say, or says it wrongly: by trying.

Formats disagree about layer numbers (by one), about which state is fed back and which is the residual, and about the
order of embedding and feature. Each reading is another head with the same weights; the one that agrees best with the
target's text is right. Readings that the file leaves open are always compared; all others only when the head agrees so
seldom with the target that something must be wrong.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from foredraft.heads.agreement import TargetText, eagle_agreement, expected_accepted
from foredraft.heads.eagle import EagleHead, EagleShape
from foredraft.heads.info import Doubt

__all__ = ["Choice", "Reading", "boundaries_to_tap", "choose_interpretation", "readings", "reread"]

TOO_LOW = 0.2
"""Agreement at depth 1 under which a file is suspected to be read wrongly."""
MOST_CHANGES = 2
"""Single changes that are combined while the agreement stays too low."""
CLEARLY_BETTER = 0.05
"""Expected accepted tokens by which another reading must win: on some hundred tokens less than that is chance."""


class Reading(NamedTuple):
    """One way to read the file, in words, as the shape it gives; `swapped`: embedding and feature trade places."""

    words: str
    shape: EagleShape
    swapped: bool = False
    biased: bool = True


class Choice(NamedTuple):
    """head: as it is to be used. agreement: by depth. reading: in words, "as written" if the file was right.
    tried: (words, agreement) of every reading compared."""

    head: EagleHead
    reading: str
    agreement: tuple[float, ...]
    tried: tuple[tuple[str, tuple[float, ...]], ...]


def readings(shape: EagleShape, doubts: tuple[Doubt, ...], target_layers: int | None = None) -> list[Reading]:
    """The readings other than the one in `shape` that could be right; those for `doubts` only, if there are any.

    Without doubts: every single change that is known from files in the wild.
    """
    found = []
    everything = not doubts
    if shape.generation == 3:
        if everything or Doubt.LAYER_IDS in doubts:
            found += _shifted(shape, target_layers)
        if everything or Doubt.NORM_BEFORE_RESIDUAL in doubts:
            value = not shape.norm_before_residual
            found.append(Reading(f"norm_before_residual {value}", replace(shape, norm_before_residual=value)))
        if shape.final_norm and (everything or Doubt.NORM_OUTPUT in doubts):
            value = not shape.norm_output
            found.append(Reading(f"norm_output {value}", replace(shape, norm_output=value)))
        if shape.final_norm and not shape.norm_output and Doubt.FINAL_NORM in doubts:
            found.append(Reading("no norm before the output layer", replace(shape, final_norm=False)))
    if everything:
        found.append(Reading("feature before embedding", shape, swapped=True))
    if everything and shape.fc_bias:
        found.append(Reading("without fc's bias", replace(shape, fc_bias=False), biased=False))
    return found


def boundaries_to_tap(shape: EagleShape, target_layers: int | None = None) -> tuple[int, ...]:
    """Every boundary that some reading of `shape` needs."""
    shapes = [shape, *(reading.shape for reading in readings(shape, (), target_layers))]
    return tuple(sorted({layer for one in shapes for layer in one.aux_layers}))


def reread(head: EagleHead, reading: Reading) -> EagleHead:
    """`head` under another reading; the weights are shared unless columns trade places."""
    with torch.device("meta"):
        other = EagleHead(reading.shape, head.draft_ids)
    wanted = other.state_dict()
    tensors = {name: tensor for name, tensor in head.state_dict().items() if name in wanted}
    if reading.swapped:
        first = "fc" if head.shape.generation == 1 else "layers.0.self_attn."
        mixing = ("fc.weight",) if first == "fc" else tuple(f"{first}{part}_proj.weight" for part in "qkv")
        tensors |= {name: _swapped(tensors[name], head.shape.hidden) for name in mixing}
    other.load_state_dict(tensors, assign=True)
    return other.eval().requires_grad_(False)


def choose_interpretation(
    head: EagleHead,
    text: TargetText,
    doubts: tuple[Doubt, ...] = (),
    target_layers: int | None = None,
    steps: int = 3,
) -> Choice:
    """The reading of `head` that explains the target's text best. `text` has two tokens or more, and its taps
    hold `boundaries_to_tap`."""
    best = Choice(head, "as written", eagle_agreement(head, text, steps), ())
    tried = [(best.reading, best.agreement)]
    for pending in [*([doubts] if doubts else []), *[()] * MOST_CHANGES]:
        if not pending and best.agreement[0] >= TOO_LOW:
            break
        start = best
        for reading in readings(start.head.shape, pending, target_layers):
            other = reread(start.head, reading)
            agreement = eagle_agreement(other, text, steps)
            words = reading.words if start.reading == "as written" else f"{start.reading}, {reading.words}"
            tried.append((words, agreement))
            if expected_accepted(agreement) > expected_accepted(best.agreement) + CLEARLY_BETTER:
                best = Choice(other, words, agreement, ())
        if not pending and best is start:
            break
    return best._replace(tried=tuple(tried))


def _shifted(shape: EagleShape, target_layers: int | None) -> list[Reading]:
    found = []
    for shift in (1, -1):
        layers = tuple(layer + shift for layer in shape.aux_layers)
        if min(layers) >= 0 and (target_layers is None or max(layers) < target_layers):
            found.append(Reading(f"layer ids {list(layers)}", replace(shape, aux_layers=layers)))
    return found


def _swapped(weight: Tensor, hidden: int) -> Tensor:
    return torch.cat([weight[:, hidden:], weight[:, :hidden]], dim=1)
