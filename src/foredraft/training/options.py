"""The choices for each kind of drafter, with the values that a small model is trained with on a CPU."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from foredraft.errors import ConfigError
from foredraft.training.losses import Objective

__all__ = ["LEARNING_RATES", "DrafterOptions", "Kind"]


class Kind(StrEnum):
    MEDUSA = "medusa"
    EAGLE = "eagle"
    EAGLE3 = "eagle3"
    DRAFT = "draft"


LEARNING_RATES = {Kind.MEDUSA: 1e-3, Kind.EAGLE: 5e-4, Kind.EAGLE3: 5e-4, Kind.DRAFT: 3e-4}
FORMS = ("target", "low_rank", "own")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterOptions:
    """draft_vocab_size  tokens that are compared, and that EAGLE-3 and low-rank or own Medusa layers can draft
    steps             EAGLE: of the training-time test
    intermediate      EAGLE: width of the feed-forward part (None: the target's)
    norm_output       EAGLE-3: feed back the normalised state (EAGLE-3.1)
    regression        EAGLE-1: weight of the next state's regression
    classification    EAGLE-1: weight of the distribution
    noise             EAGLE-1: largest size of the noise on states
    heads             Medusa: how many
    layers            Medusa: residual blocks of a head; draft: layers of the model
    form              Medusa: output layer - the target's, one of low rank, or an own one for each head
    rank              Medusa: of the low-rank output layer
    """

    objective: Objective = Objective.KL
    draft_vocab_size: int = 8192
    steps: int = 4
    decay: float = 0.8
    intermediate: int | None = None
    norm_output: bool = False
    regression: float = 1.0
    classification: float = 1.0
    noise: float = 0.1
    heads: int = 4
    layers: int = 1
    form: str = "target"
    rank: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        bounds = {
            "draft_vocab_size": (2, 1 << 24),
            "steps": (1, 16),
            "heads": (1, 16),
            "layers": (1, 256),
            "rank": (1, 1 << 16),
            "regression": (0, 1e6),
            "classification": (0, 1e6),
            "noise": (0, 100),
            "decay": (0, 1),
            "intermediate": (1, 1 << 18),
        }
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ConfigError(f"{name} is {value}; give a number from {low} to {high}")
        if self.form not in FORMS:
            raise ConfigError(f"the heads' output layer is {self.form!r}; give {', '.join(FORMS)}")
