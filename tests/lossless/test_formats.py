"""The same promise on the lean decoder, in every weight format: there it holds to the bit, log-probabilities too."""

from __future__ import annotations

from functools import cache
from typing import get_args

import pytest
import torch
from drafters import CASES
from models import VOCAB

from foredraft.engine.engine import Engine
from foredraft.target.fast_decoder import FastDecoder, build_fast_decoder
from foredraft.target.kv_cache import KVCache
from foredraft.target.quantization import WeightFormat
from foredraft.target.target import Target
from foredraft.testing import Answer, Ask, decode, decode_plainly, mixed_asks, with_predictions

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


@cache
def reference(weight_format: WeightFormat, temperature: float) -> tuple[list[Ask], list[Answer]]:
    asks = mixed_asks(VOCAB, temperature, max_tokens=24)
    plain = decode_plainly(lambda: lean_target(weight_format, slots=1), asks)
    return with_predictions(asks, plain), plain


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("weight_format", get_args(WeightFormat))
@pytest.mark.parametrize("name", CASES)
def test_tokens_and_logprobs_are_those_of_plain_decoding(
    name: str, weight_format: WeightFormat, temperature: float
) -> None:
    if not lean_decoder(weight_format).own_threads:
        pytest.skip("the kernels don't serve this processor; the plain torch way promises no bits")
    asks, plain = reference(weight_format, temperature)
    answers = {
        (ask.name, index): choice.token_ids
        for ask, answer in zip(asks, plain, strict=True)
        for index, choice in enumerate(answer)
    }
    engine = Engine(
        lean_target(weight_format), CASES[name](answers), num_speculative_tokens=6, max_batched_tokens=24, method=name
    )
    found = decode(engine, asks, after_step=engine.check_integrity)
    for ask, answer, wanted in zip(asks, found, plain, strict=True):
        for choice, other in zip(answer, wanted, strict=True):
            assert choice.token_ids == other.token_ids, ask.name
            assert choice.finish_reason == other.finish_reason, ask.name
            assert choice.logprobs == other.logprobs, ask.name
