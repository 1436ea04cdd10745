"""Finds and opens a draft model, and makes sure that it speaks the target's language.

Drafts are token ids, so both models must mean the same by them. Vocabularies are compared by content: two models may
differ in how far theirs is padded, but not in any id that both use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from foredraft.errors import ConfigError, LoadError
from foredraft.target.decoder import Decoder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from foredraft.target.target import Target

__all__ = ["DraftModel", "check_vocabularies", "open_draft_model"]

OWN_LAYERS = "target:"


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A decoder, and the longest text it can read."""

    decoder: Decoder
    max_model_len: int


def open_draft_model(model: str, target: Target, *, revision: str | None, trust_remote_code: bool) -> DraftModel:
    """Load `model` onto the target's device. Raises ConfigError for a bad name, LoadError if it can't draft for the
    target.
    """
    if model.startswith(OWN_LAYERS):
        layers = model.removeprefix(OWN_LAYERS)
        if not layers.isdecimal():
            raise ConfigError(f"The draft model is {model!r}; give a number of layers, as in {OWN_LAYERS}4.")
        return DraftModel(target.decoder.truncated(int(layers)), target.max_model_len)

    from foredraft.target.loading import prepare_target
    from foredraft.target.open_decoder import open_decoder
    from foredraft.target.stock_decoder import exact_length

    prepared = prepare_target(model, revision=revision, trust_remote_code=trust_remote_code)
    if target.tokenizer is None:
        raise LoadError(f"{target.name} has no tokenizer, so {model} can't be compared with it; use {OWN_LAYERS}K.")
    check_vocabularies(target.name, target.tokenizer, model, prepared.tokenizer)
    longest = prepared.max_model_len
    if (exact := exact_length(prepared.config.get_text_config())) is not None:
        longest = min(longest, exact)
    return DraftModel(open_decoder(prepared, device=str(target.decoder.device)), longest)


def check_vocabularies(
    target: str, target_tokenizer: PreTrainedTokenizerBase, draft: str, draft_tokenizer: PreTrainedTokenizerBase
) -> None:
    """Raise LoadError, with an example, if an id means different things to the two models."""
    own = {index: token for token, index in target_tokenizer.get_vocab().items()}
    other = {index: token for token, index in draft_tokenizer.get_vocab().items()}
    shared = own.keys() & other.keys()
    different = sorted(index for index in shared if own[index] != other[index])
    if different or not shared:
        first = different[0] if different else None
        example = "none" if first is None else f"{first} is {own[first]!r} here and {other[first]!r} there"
        raise LoadError(
            f"{draft} can't draft for {target}: of {len(shared)} shared token ids, {len(different)} mean something "
            f"else ({example}); use a draft model of the same family."
        )
