"""Conversations as a trainer sees them, and the order in which they come: a function of the seed alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from torch import Tensor

from foredraft.errors import ConfigError
from foredraft.training.records import Record, read_records

__all__ = ["Example", "Split", "batches", "in_order", "load_split", "to_example"]

HELD_OUT = 0.03
SHORTEST = 4
"""Answer tokens that an example needs: fewer leave no room for a second draft step."""


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """A text of n tokens with what the target computed for the first n - 1 of them.

    tokens    [n] int64
    answer    index of the answer's first token
    states    [n - 1, taps, H] float32
    """

    tokens: Tensor
    answer: int
    states: Tensor

    @property
    def rows(self) -> int:
        """Positions whose distribution and next token's distribution are both known: n - 2."""
        return len(self.tokens) - 2

    @property
    def first(self) -> int:
        """The first row that drafts: its next token is the answer's first, which the target itself gives."""
        return max(0, self.answer - 1)


@dataclass(frozen=True, slots=True)
class Split:
    """Records to learn from, and records that are only measured on."""

    train: tuple[Record, ...]
    held_out: tuple[Record, ...]


def load_split(folder: Path, vocab_size: int, *, max_length: int, held_out_tokens: int = 8000) -> Split:
    """Read the data. Conversations, not answers, are held out, chosen by their numbers; only greedy answers are
    measured on if there are enough of them, since then teacher forcing is what drafting does.

    Texts are cut after `max_length` tokens. Raises ConfigError when there is too little.
    """
    train: list[Record] = []
    held: list[Record] = []
    for record in read_records(folder):
        if len(record.prompt) + SHORTEST > max_length or len(record.answer) < SHORTEST:
            continue
        wrong = next((token for token in record.tokens if not 0 <= token < vocab_size), None)
        if wrong is not None:
            raise ConfigError(
                f"{folder} has token {wrong} in an answer, and the model's vocabulary ends at {vocab_size - 1}; take "
                "data that was made with this model"
            )
        (held if _is_held_out(record.item) else train).append(record)
    if not train:
        raise ConfigError(f"{folder} has no answer of {SHORTEST} tokens or more within {max_length}; make more data")
    if not held:
        held = train[-1:]
        train = train[:-1] or train
    greedy = [record for record in held if record.temperature == 0]
    chosen = greedy if len(greedy) >= min(5, len(held)) else held
    return Split(tuple(train), tuple(_up_to(chosen, held_out_tokens)))


def batches(lengths: Sequence[int], most: int, seed: int, epoch: int) -> Iterator[list[int]]:
    """Indices of texts of these lengths in a random order, grouped so that a group has at most `most` tokens (or one
    text)."""
    order = list(range(len(lengths)))
    Random(f"{seed}/{epoch}").shuffle(order)
    group: list[int] = []
    size = 0
    for index in order:
        if group and size + lengths[index] > most:
            yield group
            group, size = [], 0
        group.append(index)
        size += lengths[index]
    if group:
        yield group


def in_order(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Indices of texts of these lengths as they come, in groups of at most `most` tokens (or one text)."""
    groups: list[list[int]] = [[]]
    size = 0
    for index, length in enumerate(lengths):
        if groups[-1] and size + length > most:
            groups.append([])
            size = 0
        groups[-1].append(index)
        size += length
    return [group for group in groups if group]


def to_example(record: Record, states: Tensor, max_length: int) -> Example:
    """`states` [m, taps, H] are of the record's tokens, from the first one on."""
    tokens = record.tokens[:max_length]
    count = min(len(states), len(tokens) - 1)
    return Example(torch.tensor(tokens[: count + 1]), len(record.prompt), states[:count].float())


def _is_held_out(item: int) -> bool:
    return hashlib.blake2b(str(item).encode(), digest_size=1).digest()[0] < HELD_OUT * 256


def _up_to(records: list[Record], tokens: int) -> Iterator[Record]:
    for record in records:
        if tokens <= 0:
            return
        tokens -= len(record.answer)
        yield record
