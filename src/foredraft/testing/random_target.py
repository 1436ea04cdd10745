"""A real model small enough for tests: two Llama layers with seeded random weights in float64.

Its logits are peaky, so that greedy decoding isn't a single loop and sampling has something to choose; its vocabulary
of 96 has an end token that is hit now and then. float64 keeps rounding far below any gap between two logits: equal
means equal.
"""

from __future__ import annotations

from functools import cache

import torch

from foredraft.target.kv_cache import KVCache
from foredraft.target.stock_decoder import StockDecoder
from foredraft.target.target import Target

__all__ = ["END_TOKEN", "random_target"]

END_TOKEN = 2


def random_target(*, slots: int = 3, max_model_len: int = 256, seed: int = 0) -> Target:
    """A target without a tokenizer and with an empty cache of `slots` slots; the same weights for the same seed."""
    decoder = _decoder(seed)
    cache = KVCache(decoder.cache_shape, slots, decoder.cache_dtype)
    return Target(decoder, cache, "a random Llama", max_model_len, eos_token_ids=(END_TOKEN,))


@cache
def _decoder(seed: int) -> StockDecoder:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        eos_token_id=END_TOKEN,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        for parameter in model.parameters():
            if parameter.dim() > 1:  # the default initialisation is so small that every context looks the same
                parameter.data.normal_(0, 0.3)
    return StockDecoder(model.double().train(False).requires_grad_(False))
