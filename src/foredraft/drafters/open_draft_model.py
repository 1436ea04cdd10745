"""Finds and opens a draft model, and makes sure that it speaks the target's language.

Drafts are token ids, so both models must mean the same by them. Vocabularies are compared by content: two models may
differ in how far theirs is padded, but not in any id that both use. A draft model that borrows the target's embedding
table (heads/borrower.py) speaks its language by construction.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from foredraft.drafters.head_method import method_of
from foredraft.drafters.open_head import facts_of, shipped_for
from foredraft.errors import ConfigError, LoadError
from foredraft.heads.borrower import borrows, read_borrower
from foredraft.heads.files import HeadFiles, find_head_files
from foredraft.target.decoder import Decoder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from foredraft.target.target import Target

__all__ = ["DraftModel", "check_vocabularies", "open_draft_model"]

OWN_LAYERS = "target:"


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A decoder, the longest text it can read, and how many token ids.

    draft_ids [Vd] are the target's ids of its output rows, None if they are in order.
    """

    decoder: Decoder
    max_model_len: int
    vocab_size: int
    draft_ids: Tensor | None = None


def open_draft_model(model: str, target: Target, *, revision: str | None, trust_remote_code: bool) -> DraftModel:
    """Load `model` onto the target's device; "" is the one that comes with foredraft. Raises ConfigError for a bad
    name, LoadError if it can't draft for the target.
    """
    model = model or shipped_for("draft_model", target)
    if model.startswith(OWN_LAYERS):
        layers = model.removeprefix(OWN_LAYERS)
        if not layers.isdecimal():
            raise ConfigError(f"The draft model is {model!r}; give a number of layers, as in {OWN_LAYERS}4.")
        return DraftModel(target.decoder.truncated(int(layers)), target.max_model_len, target.decoder.vocab_size)
    if (Path(model) / "config.json").is_file() and borrows((files := find_head_files(model)).config):
        return _open_borrower(files, target)
    if Path(model).exists() and (method := method_of(model)) is not None:
        raise LoadError(f"{model} is a drafting head, not a draft model; run it with method {method!r}.")

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
    decoder = open_decoder(prepared, device=str(target.decoder.device))
    return DraftModel(decoder, longest, decoder.vocab_size)


def _open_borrower(files: HeadFiles, target: Target) -> DraftModel:
    from foredraft.target.stock_decoder import exact_length

    config, tensors, draft_ids = read_borrower(files, facts_of(target))
    decoder = target.decoder.companion(config, tensors)
    longest = min(int(config.max_position_embeddings), exact_length(config) or target.max_model_len)
    return DraftModel(decoder, longest, target.decoder.vocab_size, draft_ids.to(decoder.device))


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
