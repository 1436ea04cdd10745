"""The same promise on the lean decoder, in every weight format: there it holds to the bit, log-probabilities too."""

from __future__ import annotations

from functools import cache
from typing import get_args

import pytest
from drafters import CASES
from lean_targets import lean_decoder, lean_target
from models import VOCAB

from foredraft.engine.engine import Engine
from foredraft.target.quantization import WeightFormat
from foredraft.testing import Answer, Ask, decode, decode_plainly, mixed_asks, with_predictions


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
