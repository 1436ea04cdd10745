"""The draft vocabulary: the tokens that the target really writes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from foredraft.training.records import Record

__all__ = ["count_vocabulary"]


def count_vocabulary(records: Iterable[Record], size: int, vocab_size: int, always: Iterable[int] = ()) -> Tensor:
    """The `size` most frequent tokens of the answers, ascending, `always` among them: [Vd] int64.

    Ties, and what never occurs, go by token id: in a byte-pair vocabulary lower ids are more frequent.
    """
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for record in records:
        counts += torch.bincount(torch.tensor(record.answer), minlength=vocab_size)
    for token in always:
        counts[token] = torch.iinfo(torch.int64).max
    order = torch.sort(counts, descending=True, stable=True).indices
    return order[: min(size, vocab_size)].sort().values
