"""Greedy decoding of every architecture, plain and speculative, is transformers' own `generate(do_sample=False)`."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from drafters import CASES
from models import EOS, FAMILIES, MORE_FAMILIES, VOCAB, tiny_model, tiny_target

from foredraft.engine.engine import Engine
from foredraft.testing import Ask, decode
from foredraft.types import SamplingParams

NEW_TOKENS = 24
PROMPTS = [[7], [11, 40, 7, 7, 93, 5], [(13 * at) % (VOCAB - 3) + 3 for at in range(21)]]


@cache
def generated(family: str) -> list[list[int]]:
    """By a model with the same weights that runs its own eager attention."""
    model = tiny_model.__wrapped__(family)
    answers = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=EOS
        )
        answers.append(output[0, len(prompt) :].tolist())
    return answers


@pytest.mark.parametrize("name", ["plain", "Oracle", "Flaky", "Thicket"])
@pytest.mark.parametrize(
    "family", [*FAMILIES, *(pytest.param(family, marks=pytest.mark.slow) for family in MORE_FAMILIES)]
)
def test_greedy_is_generate(family: str, name: str) -> None:
    asks = [
        Ask(f"{len(prompt)} tokens", tuple(prompt), SamplingParams(temperature=0, max_tokens=NEW_TOKENS))
        for prompt in PROMPTS
    ]
    answers = {(ask.name, 0): tokens for ask, tokens in zip(asks, generated(family), strict=True)}
    drafter = None if name == "plain" else CASES[name](answers)
    engine = Engine(tiny_target(family), drafter, num_speculative_tokens=7, max_batched_tokens=12)
    assert [answer[0].token_ids for answer in decode(engine, asks)] == generated(family)
