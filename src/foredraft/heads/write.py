"""Writes a head for other programs, or for foredraft itself: a folder with config.json and model.safetensors.

Formats are named after who reads them. Where a format has no place for something the head needs, it is refused in a
sentence rather than written as a head that drafts nonsense.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from foredraft.errors import ConfigError
from foredraft.heads.eagle import EagleHead
from foredraft.heads.info import TargetFacts
from foredraft.heads.medusa import MedusaHeads
from foredraft.heads.native import native_config, native_tensors
from foredraft.heads.save import save_checkpoint
from foredraft.heads.write_eagle import safeailab_eagle, sglang_eagle, speculators_eagle
from foredraft.heads.write_medusa import fasterdecoding_medusa, vllm_medusa

__all__ = ["FORMATS", "NATIVE", "TargetWeights", "format_of", "write_head"]


class TargetWeights(NamedTuple):
    """embedding, output [V, Ht]: the target's matrices, for heads that lack their own in formats that want them."""

    embedding: Tensor | None = None
    output: Tensor | None = None


Written = tuple[dict[str, Any], dict[str, Tensor]]
EAGLE: dict[str, Callable[[EagleHead, TargetFacts, Tensor | None, Tensor | None], Written]] = {
    "safeailab": safeailab_eagle,
    "sglang": sglang_eagle,
    "speculators": speculators_eagle,
}
MEDUSA: dict[str, Callable[[MedusaHeads, TargetFacts, Tensor | None], Written]] = {
    "vllm-medusa": vllm_medusa,
    "medusa": fasterdecoding_medusa,
}
NATIVE = {"foredraft": False, "foredraft-int8": True}
FORMATS = (*EAGLE, *MEDUSA, *NATIVE)


def format_of(name: str) -> str:
    """`name` if it is a format; else raises ConfigError."""
    if name not in FORMATS:
        raise ConfigError(f"{name!r} is no format for heads; pass one of {', '.join(FORMATS)}")
    return name


def write_head(
    head: EagleHead | MedusaHeads,
    folder: str | Path,
    *,
    form: str = "foredraft",
    target: TargetFacts | None = None,
    weights: TargetWeights | None = None,
    extra: dict[str, Any] | None = None,
) -> Path:
    """Write `head` into `folder`, which may exist, and return it.

    `form` is one of FORMATS. `target` is written down as what the head is for. `extra` goes into config.json under
    "foredraft" (training provenance). Both files are written aside first and then renamed, so that a full disk or a
    kill leaves what was there. Raises ConfigError for a format that can't hold this head.
    """
    format_of(form)
    facts, own = target or TargetFacts(), weights or TargetWeights()
    if form in NATIVE:
        config, tensors = native_config(head, facts), native_tensors(head, int8=NATIVE[form])
    elif isinstance(head, EagleHead):
        if form not in EAGLE:
            raise ConfigError(f"An EAGLE head can't be written as {form}; pass one of {', '.join((*EAGLE, *NATIVE))}")
        config, tensors = EAGLE[form](head, facts, own.embedding, own.output)
    else:
        if form not in MEDUSA:
            raise ConfigError(f"Medusa heads can't be written as {form}; pass one of {', '.join((*MEDUSA, *NATIVE))}")
        config, tensors = MEDUSA[form](head, facts, own.output)
    config["foredraft"] = {**(extra or {}), "target": facts.to_json()}
    place = Path(folder)
    try:
        save_checkpoint(place, config, tensors)
    except OSError as error:
        raise ConfigError(f"{place} can't be written ({error.strerror or error}); pass another folder") from error
    return place
