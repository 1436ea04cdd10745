"""Tiny targets on the lean decoder, in every weight format."""

from __future__ import annotations

from functools import cache

import torch
from models import VOCAB

from foredraft.target.fast_decoder import FastDecoder, build_fast_decoder
from foredraft.target.kv_cache import KVCache
from foredraft.target.quantization import WeightFormat
from foredraft.target.target import Target

SHAPE = {  # the size that the tiny heads are for
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@cache
def lean_decoder(weight_format: WeightFormat) -> FastDecoder:
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**SHAPE))
        for parameter in model.parameters():
            if parameter.dim() > 1:  # default initialisation is so small that every context looks the same
                parameter.data.normal_(0, 0.2)
    return build_fast_decoder(model.eval().requires_grad_(False), weight_format=weight_format, threads=2)


def lean_target(weight_format: WeightFormat, slots: int = 3) -> Target:
    decoder = lean_decoder(weight_format)
    cache_of_keys = KVCache(decoder.cache_shape, slots, decoder.cache_dtype)
    return Target(decoder, cache_of_keys, f"lean-{weight_format}", 256, eos_token_ids=(2,))
