"""The target as training needs it: its decoder, its sizes, and what identifies it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foredraft.errors import ConfigError
from foredraft.heads.info import TargetFacts, vocabulary_hash
from foredraft.target.decoder import Decoder
from foredraft.training.records import read_manifest
from foredraft.training.target_sizes import TargetSizes, read_sizes

if TYPE_CHECKING:
    from foredraft.target.loading import PreparedModel

__all__ = ["TrainingTarget", "check_data", "open_training_target"]


@dataclass(frozen=True, slots=True, eq=False)
class TrainingTarget:
    """A loaded target; `longest` is its context in tokens."""

    prepared: PreparedModel
    decoder: Decoder
    sizes: TargetSizes
    facts: TargetFacts
    longest: int


def open_training_target(
    model: str,
    *,
    dtype: str = "auto",
    quantization: str | None = None,
    device: str = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
    offline: bool = False,
) -> TrainingTarget:
    """Load the decoder that would serve. Raises LoadError or ConfigError."""
    from foredraft.target.loading import prepare_target
    from foredraft.target.open_decoder import open_decoder

    prepared = prepare_target(
        model, dtype=dtype, revision=revision, trust_remote_code=trust_remote_code, offline=offline
    )
    decoder = open_decoder(prepared, quantization=quantization, device=device)
    facts = TargetFacts(
        prepared.name,
        decoder.cache_shape.layers,
        decoder.hidden_size,
        decoder.vocab_size,
        vocabulary_hash(prepared.tokenizer.get_vocab()),
    )
    sizes = read_sizes(prepared.config, decoder.vocab_size)
    return TrainingTarget(prepared, decoder, sizes, facts, prepared.max_model_len)


def check_data(folder: Path, target: TrainingTarget) -> None:
    """Raise ConfigError if the data was made with another model."""
    made = read_manifest(folder) or {}
    name, vocabulary = made.get("model"), made.get("vocab_size")
    other = made.get("fingerprint") != target.prepared.fingerprint and name != target.prepared.name
    if made and (other or vocabulary != target.decoder.vocab_size):
        raise ConfigError(
            f"{folder} holds answers of {name} (vocabulary of {vocabulary}), not of {target.prepared.name} "
            f"({target.decoder.vocab_size}); a drafter learns from its own target's answers, so make new data"
        )
