"""Log-probabilities of emitted tokens: the target's raw ones, before temperature, penalties and filters, as vLLM's
default.
"""

from __future__ import annotations

from collections.abc import Sequence as Collection
from typing import TYPE_CHECKING

from torch import Tensor

from foredraft.engine.outputs import Logprob
from foredraft.sampling import Rows, raw_logprobs
from foredraft.verify import Verdict

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["emitted_logprobs", "token_logprobs"]


def emitted_logprobs(
    logits: Tensor, rows: list[Rows], verdict: Verdict, tokenizer: PreTrainedTokenizerBase | None = None
) -> list[list[dict[int, Logprob]] | None]:
    """For each sequence, for each token it emitted: the token and the most likely ones. None where not asked for.

    logits [R, V], the rows of all sequences one after the other
    """
    result: list[list[dict[int, Logprob]] | None] = []
    first = 0
    for part, path, emitted, length in zip(
        rows, verdict.path.tolist(), verdict.tokens.tolist(), verdict.lengths.tolist(), strict=True
    ):
        wanted = part.sequence.params.logprobs
        if wanted is None:
            result.append(None)
        else:
            at = [first, *(first + 1 + node for node in path if node >= 0)]
            values = raw_logprobs(logits[at])
            entries = [_entry(values[index], emitted[index], wanted) for index in range(length)]
            result.append([_with_text(entry, tokenizer) for entry in entries])
        first += len(part.paths)
    return result


def token_logprobs(
    logits: Tensor, tokens: Collection[int], count: int, tokenizer: PreTrainedTokenizerBase | None = None
) -> list[dict[int, Logprob]]:
    """The entry of tokens[i] in row i of logits [n, V], with the `count` most likely ones."""
    values = raw_logprobs(logits)
    return [_with_text(_entry(values[row], token, count), tokenizer) for row, token in enumerate(tokens)]


def _entry(values: Tensor, token: int, count: int) -> dict[int, Logprob]:
    entry = {token: Logprob(float(values[token]), int((values > values[token]).sum()) + 1)}
    if count:
        best = values.topk(min(count, len(values)))
        for rank, (value, other) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True), start=1):
            entry.setdefault(other, Logprob(value, rank))
    return entry


def _with_text(entry: dict[int, Logprob], tokenizer: PreTrainedTokenizerBase | None) -> dict[int, Logprob]:
    if tokenizer is None:
        return entry
    return {token: value._replace(decoded_token=str(tokenizer.decode([token]))) for token, value in entry.items()}
