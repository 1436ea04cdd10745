"""Makes a drafting head ready to run beside a target: fit, device, number format.

A head that doesn't belong to the target would only ever be wrong, which is slow and looks like a bug, so it is refused
with the number that gives it away.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from foredraft.drafters.eagle_pass import described
from foredraft.drafters.self_test import tried_on_text
from foredraft.errors import LoadError
from foredraft.heads.checkpoint import read_head
from foredraft.heads.eagle import EagleHead
from foredraft.heads.info import Doubt, TargetFacts, vocabulary_hash
from foredraft.heads.medusa import MedusaHeads
from foredraft.heads.shipped import shipped_head

if TYPE_CHECKING:
    from foredraft.target.decoder import Decoder
    from foredraft.target.pair_layer import PairWay
    from foredraft.target.target import Target

__all__ = ["HeadOnTarget", "Swap", "facts_of", "open_eagle_head", "open_medusa_heads", "shipped_for", "swap_linears"]

logger = logging.getLogger(__name__)

Head = TypeVar("Head", bound=nn.Module)
Swap = Callable[[nn.Linear], nn.Module]
"""Makes a faster equivalent of a linear layer, or returns it as it is."""


@dataclass(frozen=True, slots=True)
class HeadOnTarget(Generic[Head]):
    """A head on the target's device in `dtype`. `target_head` [T, H] -> logits [T, V] is the target's output layer;
    `layer` runs an EAGLE head's layer in place of the head's own, if the target's decoder can."""

    name: str
    head: Head
    device: torch.device
    dtype: torch.dtype
    target_head: Callable[[Tensor], Tensor]
    layer: PairWay | None = None


def facts_of(target: Target) -> TargetFacts:
    """What a head is compared with."""
    decoder = target.decoder
    words = vocabulary_hash(target.tokenizer.get_vocab()) if target.tokenizer is not None else None
    return TargetFacts(target.name, decoder.cache_shape.layers, decoder.hidden_size, target.vocab_size, words)


def swap_linears(head: nn.Module, swap: Callable[[nn.Linear], nn.Module]) -> None:
    """Replace every linear layer of `head` by what `swap` makes of it, which may be the layer itself."""
    for module in list(head.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, swap(child))


def head_dtype(decoder: Decoder) -> torch.dtype:
    """What a head computes in: as precisely as the target in tests, narrow on GPUs, float32 where that is fastest."""
    if decoder.cache_dtype == torch.float64:
        return torch.float64
    if decoder.device.type != "cpu" and decoder.cache_dtype in (torch.bfloat16, torch.float16):
        return decoder.cache_dtype
    return torch.float32


def check_fit(name: str, target: Target, *, hidden: int, vocab_size: int, layers: tuple[int, ...] = ()) -> None:
    """Raise LoadError unless a head for states of that size, vocabulary and those tapped layers fits the target."""
    decoder = target.decoder
    sizes = (("hidden size", hidden, decoder.hidden_size), ("vocabulary size", vocab_size, target.vocab_size))
    for word, own, other in sizes:
        if own != other:
            raise LoadError(
                f"{name} is a head for a target of {word} {own}, and {target.name} has {other}; pass a head that was "
                "trained for this target"
            )
    depth = decoder.cache_shape.layers
    if wrong := [layer for layer in layers if not -1 <= layer < depth]:
        raise LoadError(
            f"{name} reads layer {wrong[0]}, and {target.name} has {depth} layers; pass a head that was trained for it"
        )


def open_eagle_head(
    model: str,
    target: Target,
    generation: Literal[1, 3],
    *,
    given: EagleHead | None = None,
    revision: str | None = None,
    allow_pickle: bool = False,
    self_test: bool = False,
    swap: Swap | None = None,
) -> HeadOnTarget[EagleHead]:
    """Read an EAGLE head of that generation, take the `given` one, or without either the one that comes with foredraft.
    Raises LoadError if it doesn't fit the target, or there is none.

    Where the file leaves its reading open, or if `self_test` is set, the target writes some text to decide.
    """
    method = "eagle" if generation == 1 else "eagle3"
    doubts: tuple[Doubt, ...] = ()
    head = copy.deepcopy(given)  # its layers are replaced below
    if head is None:
        model = model or shipped_for(method, target)
        head, doubts = _read(model, target, EagleHead, method, revision, allow_pickle)
    name, shape = model or "The given head", head.shape
    if shape.generation != generation:
        raise LoadError(f"{name} is an EAGLE-{shape.generation} head, which method {method!r} can't run")
    check_fit(name, target, hidden=shape.target_hidden, vocab_size=shape.vocab_size, layers=shape.aux_layers)
    if shape.output == "target" and shape.hidden != shape.target_hidden:
        raise LoadError(
            f"{name} uses the target's output layer for states of {shape.hidden} numbers, and the target's have "
            f"{shape.target_hidden}; pass a head with an output layer of its own"
        )
    if shape.generation == 1 and shape.hidden != shape.target_hidden:
        raise LoadError(
            f"{name} is an EAGLE-1 head of hidden size {shape.hidden}, which must be the target's {shape.target_hidden}"
        )
    opened = _place(name, head, target)
    if doubts or self_test:  # before layers are swapped: other readings are built from the weights as they were read
        opened = replace(opened, head=tried_on_text(name, opened.head, target, doubts))
    layer = None if swap else _adopted_layer(opened.head, target.decoder)
    return replace(_swapped(opened, swap or target.decoder.adopt), layer=layer)


def open_medusa_heads(
    model: str,
    target: Target,
    *,
    given: MedusaHeads | None = None,
    revision: str | None = None,
    allow_pickle: bool = False,
    swap: Swap | None = None,
) -> HeadOnTarget[MedusaHeads]:
    """Read Medusa heads, take the `given` ones, or without either those that come with foredraft. Raises LoadError if
    they don't fit the target, or there are none.
    """
    if given is None:
        model = model or shipped_for("medusa", target)
    heads = given or _read(model, target, MedusaHeads, "medusa", revision, allow_pickle)[0]
    name = model or "The given heads"
    check_fit(name, target, hidden=heads.shape.hidden, vocab_size=heads.shape.vocab_size)
    return _swapped(_place(name, heads, target), swap or target.decoder.adopt)


def shipped_for(method: str, target: Target) -> str:
    """The folder of what comes with foredraft for the method and target. Raises LoadError if there is nothing."""
    folder = shipped_head(method, facts_of(target))
    if folder is None:
        raise LoadError(
            f"Nothing for method {method!r} comes with foredraft for {target.name}; name one with `model`, or train "
            f"one with `foredraft train {method} MODEL`"
        )
    return str(folder)


def _read(
    model: str, target: Target, kind: type[Head], method: str, revision: str | None, allow_pickle: bool
) -> tuple[Head, tuple[Doubt, ...]]:
    """The head in the checkpoint `model`, which must be one that `method` runs, and what the file leaves open."""
    head, info = read_head(model, target=facts_of(target), revision=revision, allow_pickle=allow_pickle)
    if not isinstance(head, kind) or info.method != method:
        raise LoadError(f"{model} holds {info.dialect} heads, which method {method!r} can't run; use {info.method!r}")
    for note in info.notes:
        logger.info("%s: %s", model, note)
    return head, info.doubts


def _place(name: str, head: Head, target: Target) -> HeadOnTarget[Head]:
    decoder = target.decoder
    device, dtype = decoder.device, head_dtype(decoder)
    return HeadOnTarget(name, head.to(device, dtype).train(False).requires_grad_(False), device, dtype, decoder.head)


def _adopted_layer(head: EagleHead, decoder: Decoder) -> PairWay | None:
    """The head's layer as the decoder runs it, which the head then no longer holds."""
    layer = described(head)
    adopted = decoder.adopt_layer(layer) if layer is not None else None
    if adopted is not None:
        head.layers, head.lm_head, head.embed_tokens = nn.ModuleList(), None, None
    return adopted


def _swapped(opened: HeadOnTarget[Head], swap: Swap) -> HeadOnTarget[Head]:
    swap_linears(opened.head, swap)
    return opened
