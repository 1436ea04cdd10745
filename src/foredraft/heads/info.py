"""What is known about a head besides its weights: which file it came from, which target it is for, what is in doubt."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from foredraft.errors import LoadError

__all__ = ["Dialect", "Doubt", "HeadInfo", "TargetFacts", "check_target", "vocabulary_hash"]


class Dialect(StrEnum):
    """The formats that heads are written in, by the project that writes them."""

    FOREDRAFT = "foredraft"
    SAFEAILAB_EAGLE1 = "SafeAILab EAGLE-1/2"
    HASS = "HASS"
    SAFEAILAB_EAGLE3 = "SafeAILab EAGLE-3"
    SPECFORGE = "SpecForge/SGLang EAGLE-3"
    MODELOPT_EAGLE = "ModelOpt EAGLE"
    SPECULATORS = "speculators eagle3"
    MEDUSA_HEADS = "FasterDecoding Medusa"
    MEDUSA_MODEL = "FasterDecoding Medusa-2, a whole model"
    MODELOPT_MEDUSA = "ModelOpt Medusa"
    VLLM_MEDUSA = "vLLM Medusa"


class Doubt(StrEnum):
    """What a file leaves open, because its format has changed or readers disagree; only a test on text decides."""

    LAYER_IDS = "layer ids"
    NORM_BEFORE_RESIDUAL = "norm_before_residual"
    NORM_OUTPUT = "norm_output"
    FINAL_NORM = "final norm"


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """The target that a head is for. None or "": not known.

    tokenizer  `vocabulary_hash` of its tokenizer
    """

    name: str = ""
    layers: int | None = None
    hidden: int | None = None
    vocab_size: int | None = None
    tokenizer: str | None = None

    def to_json(self) -> dict[str, object]:
        """The keys of a head's config.json under foredraft.target; what isn't known is left out."""
        named = {
            "name": self.name or None,
            "num_hidden_layers": self.layers,
            "hidden_size": self.hidden,
            "vocab_size": self.vocab_size,
            "tokenizer_sha256": self.tokenizer,
        }
        return {key: value for key, value in named.items() if value is not None}

    @staticmethod
    def from_json(content: object) -> TargetFacts:
        """The reverse; facts of the wrong type count as unknown."""
        found: Mapping[str, Any] = content if isinstance(content, dict) else {}

        def number(key: str) -> int | None:
            value = found.get(key)
            return value if isinstance(value, int) and not isinstance(value, bool) else None

        name, tokenizer = found.get("name"), found.get("tokenizer_sha256")
        return TargetFacts(
            name if isinstance(name, str) else "",
            number("num_hidden_layers"),
            number("hidden_size"),
            number("vocab_size"),
            tokenizer if isinstance(tokenizer, str) else None,
        )


@dataclass(frozen=True, slots=True)
class HeadInfo:
    """Where a head came from.

    method   the speculative_config's "method" that runs it
    target   what the file says about its target; a name only, for most formats
    layers_known  whether the tapped layers are known; else they follow from the target's number of layers
    doubts   what the file leaves open; `choose_interpretation` decides
    notes    sentences about what was assumed or left unused
    """

    path: str
    dialect: Dialect
    method: Literal["eagle", "eagle3", "medusa"]
    target: TargetFacts
    layers_known: bool = True
    doubts: tuple[Doubt, ...] = ()
    notes: tuple[str, ...] = ()


def vocabulary_hash(vocabulary: Mapping[str, int]) -> str:
    """A tokenizer's fingerprint: SHA-256 over its tokens in the order of their ids."""
    ordered = sorted(vocabulary.items(), key=lambda entry: (entry[1], entry[0]))
    return hashlib.sha256(json.dumps(ordered, ensure_ascii=True).encode()).hexdigest()


def check_target(path: str, head: TargetFacts, target: TargetFacts) -> None:
    """Raise LoadError if the facts of both are known and differ."""
    for word, own, other in (
        ("hidden size", head.hidden, target.hidden),
        ("vocabulary size", head.vocab_size, target.vocab_size),
        ("number of layers", head.layers, target.layers),
    ):
        if own is not None and other is not None and own != other:
            made_for = f" ({head.name})" if head.name else ""
            name = target.name or "the target"
            raise LoadError(
                f"{path} is a head for a target{made_for} of {word} {own}, and {name} has {other}; "
                "pass a head that was trained for this target"
            )
    if head.tokenizer and target.tokenizer and head.tokenizer != target.tokenizer:
        raise LoadError(
            f"{path} was trained with another tokenizer (vocabulary {head.tokenizer[:12]}) than that of "
            f"{target.name or 'the target'} ({target.tokenizer[:12]}); pass a head that was trained for this target"
        )
