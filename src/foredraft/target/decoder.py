"""What a way through the target must offer: the stock transformers model and the lean decoder both do.

A decoder runs a flat pass against the KV cache. It appends the keys and values of every row before attending, so that
rows of the same pass see each other along their paths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from foredraft.target.flat_pass import FlatPass
from foredraft.target.kv_cache import CacheShape, KVCache
from foredraft.target.pair_layer import PairLayer, PairWay

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

__all__ = ["Decoder", "Hidden"]


class Hidden(NamedTuple):
    """last [T, H] after the final norm; taps [T, L, H], the residual stream at the tapped boundaries (None: no taps).

    Boundary k is the input of layer k (0: the embeddings), -1 the state after the final norm.
    """

    last: Tensor
    taps: Tensor | None


class Decoder(Protocol):
    """One implementation of the target's forward pass.

    way_name     what computes its passes; others take another time
    own_threads  whether passes run on threads of its own, so that torch's had better keep still
    """

    cache_shape: CacheShape
    cache_dtype: torch.dtype
    vocab_size: int
    hidden_size: int
    way_name: str
    own_threads: bool

    @property
    def weight_format(self) -> str: ...

    @property
    def device(self) -> torch.device: ...

    def forward(self, flat: FlatPass, cache: KVCache, taps: tuple[int, ...] = ()) -> Hidden:
        """Run the layers over all rows, writing keys and values to `cache`."""
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """[R, H] after the final norm -> logits [R, V]."""
        ...

    def embed(self, tokens: Tensor) -> Tensor:
        """Ids [T] -> rows [T, E] of the embedding table, as the checkpoint has them; drafting heads read them."""
        ...

    def adopt(self, linear: nn.Linear) -> nn.Module:
        """An equivalent of a drafting head's linear layer in this decoder's weight format and on its threads, or the
        layer itself.
        """
        ...

    def adopt_layer(self, layer: PairLayer) -> PairWay | None:
        """A drafting head's layer on this decoder's kernels, or None if it has none that fit."""
        ...

    def truncated(self, layers: int) -> Decoder:
        """The same model with its first `layers` layers, then its own final norm and head; weights are shared."""
        ...

    def companion(self, config: PreTrainedConfig, tensors: Mapping[str, Tensor]) -> Decoder:
        """A Llama-shaped model that has no embedding table and looks tokens up in this one's. It has an output layer of
        its own and shares this one's threads. Raises LoadError if there is no way to run it.
        """
        ...
