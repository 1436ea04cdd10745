"""Tiny random models: real architectures, seeded weights, peaky logits so that sampling has something to choose."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import nn

from foredraft.target.decoder import Hidden
from foredraft.target.flat_pass import FlatPass
from foredraft.target.kv_cache import CacheShape, KVCache
from foredraft.target.pair_layer import PairLayer, PairWay
from foredraft.target.stock_decoder import StockDecoder
from foredraft.target.target import Target

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

VOCAB = 96
EOS = 2
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": EOS,
}
FAMILIES: dict[str, dict[str, object]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 6},
    "gemma2": {"sliding_window": 6, "query_pre_attn_scalar": 8},
    "gemma3_text": {"sliding_window": 6, "query_pre_attn_scalar": 8},
    "phi3": {},
    "gpt_neox": {},
    "gpt2": {"n_embd": 32, "n_head": 4, "n_layer": 3, "n_positions": 256},
    "olmo2": {},
    "cohere": {},
    "granite": {},
    "smollm3": {},
    "mixtral": {"num_local_experts": 4},
}
MORE_FAMILIES = [
    "phi",
    "opt",
    "stablelm",
    "starcoder2",
    "nemotron",
    "exaone4",
    "qwen2_moe",
    "qwen3_moe",
    "glm",
    "glm4",
    "cohere2",
    "helium",
    "persimmon",
    "biogpt",
    "gpt_bigcode",
    "olmo",
    "arcee",
    "ernie4_5",
    "seed_oss",
    "gemma",
]
"""Further architectures, for thorough runs."""
FLOAT32_ONLY = {"mixtral", "qwen2_moe", "qwen3_moe"}  # transformers' grouped expert product has no float64 kernel


@cache
def tiny_model(family: str = "llama", seed: int = 0, layers: int = 3) -> PreTrainedModel:
    """A seeded random model in float64 (float32 where the family needs it), in evaluation mode."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    extra = dict(FAMILIES.get(family, {}))
    if family == "gpt2":
        extra["n_layer"] = layers
    config = CONFIG_MAPPING[family](**{**SHAPE, "num_hidden_layers": layers, **extra})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:  # default initialisation is so small that every context looks the same
                parameter.data.normal_(0, 0.35 if "embed" in name else 0.25)
    dtype = torch.float32 if family in FLOAT32_ONLY else torch.float64
    return model.to(dtype).eval().requires_grad_(False)


@cache
def tiny_decoder(family: str = "llama", seed: int = 0) -> StockDecoder:
    return StockDecoder(tiny_model(family, seed))


def tiny_target(family: str = "llama", *, seed: int = 0, slots: int = 4, max_model_len: int = 256) -> Target:
    """A target with a fresh cache and without a tokenizer."""
    decoder = tiny_decoder(family, seed)
    cache = KVCache(decoder.cache_shape, slots, decoder.cache_dtype)
    return Target(decoder, cache, f"tiny-{family}", max_model_len, eos_token_ids=(EOS,))


class ScriptedDecoder:
    """A model that recites: whatever came before, the most likely token at position p is `script[p]`.

    The runner-up is the next token id, then the one after it, and so on, each by 1 less.
    """

    cache_shape = CacheShape((1,), (1,), (1,))
    cache_dtype = torch.float64
    hidden_size = 1
    weight_format = "float64"
    way_name = "a script"
    own_threads = False
    device = torch.device("cpu")

    def __init__(self, script: Sequence[int], vocab_size: int) -> None:
        self.script = list(script)
        self.vocab_size = vocab_size

    def forward(self, flat: FlatPass, cache: KVCache, taps: tuple[int, ...] = ()) -> Hidden:
        entries = flat.positions.double().view(-1, 1, 1)
        for segment in flat.segments:
            rows = slice(segment.first, segment.first + segment.rows)
            cache.append(0, segment.slot, segment.start, entries[rows], entries[rows])
        return Hidden(flat.positions.double().unsqueeze(1), None)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        following = torch.tensor([self.script[position + 1] for position in hidden[:, 0].long().tolist()])
        return -((torch.arange(self.vocab_size) - following.unsqueeze(1)) % self.vocab_size).double()

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens.double().unsqueeze(1)

    def adopt(self, linear: nn.Linear) -> nn.Module:
        return linear

    def adopt_layer(self, layer: PairLayer) -> PairWay | None:
        return None

    def truncated(self, layers: int) -> ScriptedDecoder:
        return self


def scripted_target(
    prompt: Sequence[int],
    answer: Sequence[int],
    *,
    vocab_size: int = VOCAB,
    tokenizer: PreTrainedTokenizerBase | None = None,
    slots: int = 4,
    max_model_len: int = 256,
) -> Target:
    """A target whose greedy answer to `prompt` is `answer`, and then token 3 for ever."""
    script = [*prompt, *answer, *([3] * (max_model_len - len(prompt) - len(answer) + 64))]
    decoder = ScriptedDecoder(script, vocab_size)
    cache = KVCache(decoder.cache_shape, slots, decoder.cache_dtype)
    return Target(decoder, cache, "a script", max_model_len, eos_token_ids=(EOS,), tokenizer=tokenizer)
