"""From the target's logits to its picks.

Each row of logits belongs to a node of a draft tree (or to its root), and every processor works on that node's own
path: the committed tokens followed by the draft tokens down to the node. Order, names and meaning of the processors are
vLLM's: structured output, min_tokens, logit bias, penalties, temperature, min-p, top-k, top-p.

`pick` adds the request's noise and takes the best token. Greedy decoding is the same code without noise. No pick
depends on which drafts are in the tree, only on the row's own path, which is what makes speculation exact.
"""

from __future__ import annotations

from collections.abc import Sequence as Collection
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from foredraft.filters import SMALL_VOCABULARY, floors
from foredraft.noise import gumbel, row_key
from foredraft.tree import TokenTree
from foredraft.types import Sequence

__all__ = [
    "Rows",
    "best_under_noise",
    "is_edited",
    "is_filtered",
    "keys_of",
    "pick",
    "process",
    "raw_logprobs",
    "rows_of",
]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The logit rows of one sequence: paths[i] are the draft tokens from below the root down to row i; the root's path
    is empty.
    """

    sequence: Sequence
    paths: Collection[tuple[int, ...]]
    stop_ids: tuple[int, ...] = ()


def rows_of(batch: Collection[Sequence], tree: TokenTree, eos_token_ids: tuple[int, ...] = ()) -> list[Rows]:
    """The rows of a verification pass: for each sequence its root, then the nodes of its tree in order."""
    result = []
    for sequence, tokens, parents in zip(batch, tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        paths: list[tuple[int, ...]] = [()]
        for token, parent in zip(tokens, parents, strict=True):
            if token >= 0:
                paths.append((*paths[parent + 1], token))
        result.append(Rows(sequence, paths, eos_token_ids))
    return result


def keys_of(parts: Collection[Rows], device: torch.device) -> Tensor:
    """[n, 1] noise keys, one for every row of all parts."""
    keys = [
        row_key(part.sequence.seed, part.sequence.choice, len(part.sequence.tokens) + len(path))
        for part in parts
        for path in part.paths
    ]
    return torch.tensor(keys, dtype=torch.int64, device=device).unsqueeze(1)


def pick(logits: Tensor, rows: Collection[Rows]) -> Tensor:
    """The target's own next token at every row.

    logits [R, V] of any float type, the rows of all sequences one after the other -> [R] int64
    """
    picks, first = [], 0
    for _, parts in groupby(rows, key=_treatment):
        group = list(parts)
        last = first + sum(len(part.paths) for part in group)
        picks.append(_picked(logits[first:last], group))
        first = last
    return torch.cat(picks) if picks else torch.empty(0, dtype=torch.int64, device=logits.device)


def _picked(logits: Tensor, group: Collection[Rows]) -> Tensor:
    """The picks [n] of the rows [n, V] of sequences that are treated alike."""
    scores, params = _unfiltered(logits, group[0]), group[0].sequence.params
    if params.greedy:
        return _likeliest(scores)
    return best_under_noise(scores, keys_of(group, logits.device), floors(scores, params))


def _likeliest(logits: Tensor) -> Tensor:
    """[n, V] -> [n], the first of equals. numpy compares whole vectors where torch goes from one number to the next."""
    if logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(logits.numpy().argmax(axis=-1))
    return logits.argmax(dim=-1)


def process(logits: Tensor, rows: Rows) -> Tensor:
    """Apply the request's processors: [n, V] -> [n, V] float32 (float64 stays), -inf for excluded tokens."""
    scores = _unfiltered(logits, rows)
    params = rows.sequence.params
    lowest = None if params.greedy else floors(scores, params)
    return scores if lowest is None else scores.masked_fill(scores < lowest, -torch.inf)


def _unfiltered(logits: Tensor, rows: Rows) -> Tensor:
    """All processors before the filters, which only exclude tokens."""
    params = rows.sequence.params
    scores = logits if logits.dtype == torch.float64 else logits.float()
    if is_edited(rows.sequence):
        scores = scores.clone()
        _constrain(scores, rows)
        _forbid_early_stop(scores, rows)
        if params.logit_bias:
            tokens = torch.tensor(list(params.logit_bias), device=scores.device)
            scores[:, tokens] += torch.tensor(
                list(params.logit_bias.values()), dtype=scores.dtype, device=scores.device
            )
        if params.penalised:
            _penalise(scores, rows)
    return scores if params.greedy or params.temperature == 1.0 else scores / params.temperature


def raw_logprobs(logits: Tensor) -> Tensor:
    """Log-probabilities before any processor, vLLM's default: [R, V] -> [R, V] float32 (float64 stays)."""
    return (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(dim=-1)


def _treatment(rows: Rows) -> tuple[float, ...]:
    """Neighbours of the same treatment are picked for together; edited logits are a sequence's own."""
    sequence, params = rows.sequence, rows.sequence.params
    if is_edited(sequence):
        return (id(sequence),)
    return () if params.greedy else (params.temperature, params.top_k, params.top_p, params.min_p)


def is_edited(sequence: Sequence) -> bool:
    """Whether single tokens' logits are changed, which even greedy decoding must do."""
    params = sequence.params
    return bool(
        params.logit_bias
        or params.penalised
        or sequence.constraint is not None
        or sequence.output_length < params.min_tokens
    )


def is_filtered(sequence: Sequence) -> bool:
    """Whether sampling excludes tokens by their probability."""
    params = sequence.params
    return not params.greedy and (params.top_k > 0 or params.top_p < 1 or params.min_p > 0)


def _constrain(scores: Tensor, rows: Rows) -> None:
    """Structured output: each row may pick only what the form allows after its path.

    Rows without a mask keep all scores: no pick of theirs is ever emitted, since their path is not allowed or the text
    ends with it (requests.py).
    """
    constraint = rows.sequence.constraint
    if constraint is None:
        return
    masks = constraint.masks(rows.sequence.tokens, rows.paths)
    masked = [(row, mask) for row, mask in enumerate(masks) if mask is not None]
    if masked:
        at, bits = zip(*masked, strict=True)
        packed = np.frombuffer(b"".join(bits), dtype=np.uint8).reshape(len(at), -1)
        allowed = np.unpackbits(packed, axis=1, count=scores.shape[1], bitorder="little").view(np.bool_)
        index = torch.tensor(at, device=scores.device)
        scores[index] = scores[index].masked_fill(~torch.from_numpy(allowed).to(scores.device), -torch.inf)


def _forbid_early_stop(scores: Tensor, rows: Rows) -> None:
    """min_tokens: no row that would end the text too early may pick an end token."""
    params = rows.sequence.params
    ends = [*params.stop_token_ids, *(() if params.ignore_eos else rows.stop_ids)]
    if ends:
        for row, path in enumerate(rows.paths):
            if rows.sequence.output_length + len(path) < params.min_tokens:
                scores[row, ends] = -torch.inf


def _penalise(scores: Tensor, rows: Rows) -> None:
    """Repetition penalty over prompt and output, presence and frequency penalties over the output, each row on its own
    path.

    Works on the [n, K] scores of the K tokens that occur anywhere: those committed, then those that only paths have.
    """
    params, counts = rows.sequence.params, rows.sequence.counts
    counts.catch_up(rows.sequence.tokens, rows.sequence.prompt_length)
    committed = len(counts.tokens)
    new: dict[int, int] = {}
    drafted = [
        (row, counts.column[token] if token in counts.column else new.setdefault(token, committed + len(new)))
        for row, path in enumerate(rows.paths)
        for token in path
    ]
    tokens = torch.from_numpy(np.concatenate([counts.tokens, np.fromiter(new, np.int64)])).to(scores.device)
    times = torch.zeros((len(rows.paths), len(tokens)), dtype=scores.dtype)
    times[:, :committed] = torch.from_numpy(np.array(counts.emitted))
    if drafted:
        at = torch.tensor(drafted).unbind(1)
        times.index_put_(at, torch.ones(len(drafted), dtype=scores.dtype), accumulate=True)
    times = times.to(scores.device)

    values = scores[:, tokens]
    if params.repetition_penalty != 1.0:
        seen = times > 0
        seen[:, :committed] = True
        penalised = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
        values = torch.where(seen, penalised, values)
    if params.presence_penalty or params.frequency_penalty:
        values = values - (params.frequency_penalty * times + params.presence_penalty * (times > 0))
    scores[:, tokens] = values


def best_under_noise(scores: Tensor, keys: Tensor, lowest: Tensor | None = None) -> Tensor:
    """[n, V], keys [n, 1] -> [n], the argmax of scores plus noise among tokens from the row's lowest score [n, 1] on.

    The one rule of sampling: the target picks by it, and drafters guess by it.
    """
    if scores.device.type == "cpu" and scores.shape[-1] > SMALL_VOCABULARY:  # skips the noise of tokens that can't win
        from foredraft.perturbed_argmax import perturbed_argmax

        bounds = None if lowest is None else lowest.squeeze(1).numpy()
        return torch.from_numpy(perturbed_argmax(scores.contiguous().numpy(), keys.squeeze(1).numpy(), bounds))
    kept = scores if lowest is None else scores.masked_fill(scores < lowest, -torch.inf)
    return (kept + gumbel(keys, torch.arange(scores.shape[-1], device=scores.device))).argmax(dim=-1)
