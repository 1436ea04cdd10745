"""The three ways in which files say which target tokens a head can draft, read into one.

EAGLE-3 files hold `d2t`, an offset for each draft id (target id = draft id + offset), and `t2d`, a mask over the
target's vocabulary. vLLM's truncated heads hold `token_map`, the target ids themselves.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foredraft.errors import LoadError

__all__ = ["draft_offsets", "read_draft_ids", "vocabulary_mask"]


def read_draft_ids(path: str, tensors: dict[str, Tensor], draft_vocab_size: int, vocab_size: int) -> Tensor | None:
    """Target ids of the draft ids, int64 [Vd]; None if the whole vocabulary is drafted from. Raises LoadError."""
    mask = tensors.get("t2d")
    if mask is not None and mask.shape != (vocab_size,):
        raise LoadError(
            f"{path} has a t2d of {mask.numel()} entries for a vocabulary of {vocab_size}; download it again"
        )
    kept = None if mask is None else mask.bool().nonzero().flatten()
    if (offsets := tensors.get("d2t")) is not None:
        ids = offsets.long() + torch.arange(len(offsets))
        if kept is not None and not bool(offsets.any()) and len(kept) == draft_vocab_size:
            ids = kept  # some writers leave d2t at zero; the mask says it all
    elif (listed := tensors.get("token_map")) is not None:
        ids = listed.long().flatten()
    elif kept is not None:
        ids = kept
    elif draft_vocab_size == vocab_size:
        return None
    else:
        raise LoadError(
            f"{path} drafts from {draft_vocab_size} of {vocab_size} tokens and lacks the tensor that says which "
            "(d2t or token_map); download it again"
        )
    if len(ids) != draft_vocab_size:
        raise LoadError(f"{path} maps {len(ids)} draft tokens and has logits for {draft_vocab_size}; download it again")
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise LoadError(
            f"{path} maps draft tokens to ids from {int(ids.min())} to {int(ids.max())}, outside the vocabulary of "
            f"{vocab_size}; download it again"
        )
    if len(set(ids.tolist())) != len(ids):
        raise LoadError(f"{path} maps several draft tokens to the same target token; download it again")
    return None if draft_vocab_size == vocab_size and torch.equal(ids, torch.arange(vocab_size)) else ids


def draft_offsets(draft_ids: Tensor) -> Tensor:
    """`d2t` of draft ids [Vd]."""
    return draft_ids.long() - torch.arange(len(draft_ids))


def vocabulary_mask(draft_ids: Tensor, vocab_size: int) -> Tensor:
    """`t2d` [V] of draft ids."""
    mask = torch.zeros(vocab_size, dtype=torch.bool)
    mask[draft_ids.long()] = True
    return mask
