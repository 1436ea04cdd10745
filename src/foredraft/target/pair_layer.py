"""The layer of a drafting head, as a decoder can take it over: a Llama layer that reads pairs.

A pair is the embedding of the next token and a feature of the current position (EAGLE, Li et al. 2024, arXiv
2401.15077). EAGLE-3's goes into queries, keys and values as it is; EAGLE-1 has a product that joins it first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy
import torch
from torch import Tensor

from foredraft.target.kv_cache import KVCache

__all__ = ["Growing", "Grown", "PairLayer", "PairWay", "Places"]


@dataclass(frozen=True, slots=True, eq=False)
class PairLayer:
    """Weights are [out, in]; N is 2 H, or H behind `join`.

    qkv            [(heads + 2 kv_heads) D, N], and its bias
    gate, up, down of the feed-forward part, whose activation is SiLU
    paired_norm    [H] of the embedding; None: as it comes
    feature_norm   [H] of the feature
    keeps_normed   whether the normed feature is what the layer adds to
    join           [H, 2 H], and its bias; None: the pair itself is read
    input_norm     [H] behind `join`
    embedding      [V, H] of the head's own; None: the target's
    output_norm    [H] before the output layer
    output         [Vd, H], and its bias; None: it has no output layer of its own
    rope           positions -> float32 [positions, 2, D / 2], cosines and sines
    """

    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float
    qkv: Tensor
    qkv_bias: Tensor | None
    out: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    mlp_norm: Tensor
    query_norm: Tensor | None
    key_norm: Tensor | None
    paired_norm: Tensor | None
    feature_norm: Tensor | None
    keeps_normed: bool
    join: Tensor | None
    join_bias: Tensor | None
    input_norm: Tensor | None
    embedding: Tensor | None
    output_norm: Tensor | None
    output: Tensor | None
    rope: Callable[[int], Tensor]


class Places(NamedTuple):
    """Where the rows of a pass write and read: int64 arrays.

    slots, entries  [T] the cache entry that a row writes
    straight        [T] leading entries that it sees, one after the other
    lengths         [T] entries that it sees in all
    tail            [T, W] those behind the straight ones
    """

    slots: numpy.ndarray
    entries: numpy.ndarray
    straight: numpy.ndarray
    lengths: numpy.ndarray
    tail: numpy.ndarray


class Growing(NamedTuple):
    """Drafts that grow at once, by the rules of EAGLE-2, from a state each.

    depth, top_k                levels; guesses kept of a row, and rows read of a draft and level
    least                       lowest score of a node
    ends                        int64 [E], tokens after which nothing is drafted
    draft_ids                   int64 [Vd], the target's ids of the head's; None: the same
    edges, centres, rates       float64: between kinds of guesses by their share, where their rates hold, and how often
                                guesses of a kind come true, without noise and then with
    heats, keys                 float64 [B] temperatures, 0 for a request without noise; int64 [B, depth], the keys of
                                its noise by level
    slots, stable, positions    int64 [B]: of the cache, entries that all nodes see, and where the state was computed
    budgets, heeds              int64 [B]: nodes that will be chosen, and whether `ends` count
    """

    depth: int
    top_k: int
    least: float
    ends: numpy.ndarray
    draft_ids: numpy.ndarray | None
    edges: numpy.ndarray
    centres: numpy.ndarray
    rates: numpy.ndarray
    heats: numpy.ndarray
    keys: numpy.ndarray
    slots: numpy.ndarray
    stable: numpy.ndarray
    positions: numpy.ndarray
    budgets: numpy.ndarray
    heeds: numpy.ndarray


class Grown(NamedTuple):
    """Nodes of a draft: tokens, parents (-1: the root), scores, and the kinds of their guesses."""

    tokens: list[int]
    parents: list[int]
    scores: list[float]
    kinds: list[int]


class PairWay(Protocol):
    """A layer that a decoder has taken over. `cache_dtype` is what its cache must be made of."""

    cache_dtype: torch.dtype

    def run(self, tokens: Tensor, features: Tensor, positions: Tensor, places: Places, cache: KVCache) -> Tensor:
        """tokens [T], features [T, H], positions [T] -> states [T, H] float32. Keys and values go to the first layer
        of `cache`."""
        ...

    def logits(self, states: Tensor) -> Tensor | None:
        """[T, H] -> [T, Vd], if the layer has an output layer of its own."""
        ...

    def grow(self, states: Tensor, growing: Growing, cache: KVCache) -> list[Grown] | None:
        """Whole drafts from states [B, H], whose features are the layer's own states as they are; `cache` has room
        behind the stable entries for the rows of all levels. None if the layer has no output layer of its own."""
        ...
