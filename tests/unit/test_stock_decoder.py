"""Stock transformers models: what works is exact under trees, and what can't work is refused at load."""

from __future__ import annotations

import pytest
import torch
from models import FAMILIES, FLOAT32_ONLY, VOCAB, tiny_decoder, tiny_model
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForSeq2SeqLM, LlamaConfig, PreTrainedModel

from foredraft.errors import LoadError
from foredraft.target.flat_pass import FlatPass, Segment
from foredraft.target.kv_cache import KVCache
from foredraft.target.stock_decoder import StockDecoder, exact_length

PROMPT = [11, 40, 7, 7, 93, 5, 61, 22, 8, 30]  # longer than the tiny sliding windows
# A tree of which no path is contiguous: parents of nodes 0..5 (-1: the root, the prompt's last token)
DRAFTS, PARENTS = [50, 51, 52, 53, 54, 55], [-1, -1, 0, 1, 2, 4]
PATHS = {0: [50], 1: [51], 2: [50, 52], 3: [51, 53], 4: [50, 52, 54], 5: [50, 52, 54, 55]}


def stock_model(family: str) -> PreTrainedModel:
    """The same weights in a model that no decoder has touched."""
    return tiny_model.__wrapped__(family)


def run(decoder: StockDecoder, taps: tuple[int, ...] = ()) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Prompt but for the root in one pass, then root and tree in another: last hidden states and taps of the second."""
    cache = KVCache(decoder.cache_shape, 1, decoder.cache_dtype)
    start = len(PROMPT) - 1
    chain = FlatPass(torch.tensor(PROMPT[:-1]), torch.arange(start), (Segment(0, 0, 0, start),))
    decoder.forward(chain, cache)
    segment = Segment(0, start, 0, 1, tuple(1 + parent for parent in PARENTS))
    positions = torch.tensor([start + depth for depth in segment.depths()])
    return decoder.forward(FlatPass(torch.tensor([PROMPT[-1], *DRAFTS]), positions, (segment,)), cache, taps)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_trees_logits_are_those_of_the_models_own_forward_on_each_path(family: str) -> None:
    decoder = tiny_decoder(family)
    logits = decoder.head(run(decoder)[0])
    model = stock_model(family)
    tolerance = 1e-3 if family in FLOAT32_ONLY else 1e-5
    for row, path in {0: [], **{node + 1: path for node, path in PATHS.items()}}.items():
        own = model(torch.tensor([PROMPT + path]), use_cache=False).logits[0, -1]
        assert torch.allclose(logits[row], own, atol=tolerance * float(own.abs().max())), path


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "gpt_neox"])
def test_taps_are_the_models_own_hidden_states(family: str) -> None:
    taps = run(tiny_decoder(family), (0, 2, -1))[1]
    assert taps is not None
    assert taps.shape == (1 + len(DRAFTS), 3, 32)
    own = stock_model(family)(torch.tensor([PROMPT + PATHS[5]]), use_cache=False, output_hidden_states=True)
    on_path = [0, 1, 3, 5, 6]
    for column, boundary in enumerate((0, 2, 3)):  # transformers' last state is after the final norm
        assert torch.allclose(taps[on_path, column], own.hidden_states[boundary][0, -5:], atol=1e-5), boundary


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3_text", "gpt2", "qwen3", "mistral"])
def test_the_first_layers_alone_are_a_model_of_their_own(family: str) -> None:
    decoder = tiny_decoder(family)
    whole = run(decoder)[0]
    small = decoder.truncated(2)
    assert small.cache_shape.layers == 2
    taps = run(decoder, (2,))[1]
    assert taps is not None
    assert torch.allclose(run(small, (1,))[1][:, 0], run(decoder, (1,))[1][:, 0])
    assert small.head(run(small)[0]).shape == (1 + len(DRAFTS), VOCAB)
    assert torch.allclose(run(decoder.truncated(3))[0], whole)
    assert torch.allclose(run(decoder)[0], whole), "cutting a copy changed the whole"
    with pytest.raises(LoadError, match="target:4 asks for 4 of the target's 3 layers; give 1 to 3"):
        decoder.truncated(4)


SMALL = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
REFUSED = {
    "bloom": ({"n_layer": 2, "n_head": 4}, "bloom"),  # positions by ALiBi
    "falcon": ({"alibi": True, "new_decoder_architecture": False}, "falcon"),
    "diffllama": ({"num_key_value_heads": 2}, "diffllama"),  # two attentions a layer, of which the cache holds one
    "mamba": ({"state_size": 4}, "mamba"),  # recurrent state
    "rwkv": ({"attention_hidden_size": 32}, "rwkv"),
    "gpt_oss": ({"intermediate_size": 32, "num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 4}, "sinks"),
    "t5": ({"d_model": 32, "num_layers": 2}, "encoder-decoder"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_would_be_silently_wrong_is_refused_by_name(name: str) -> None:
    extra, word = REFUSED[name]
    config = CONFIG_MAPPING[name](**{**SMALL, **extra})
    kind = AutoModelForSeq2SeqLM if name == "t5" else AutoModelForCausalLM
    with pytest.raises(LoadError, match=word):
        StockDecoder(kind.from_config(config).eval().requires_grad_(False))


def test_frequencies_that_depend_on_the_longest_sequence_bound_the_context() -> None:
    plain = LlamaConfig(max_position_embeddings=128)
    assert exact_length(plain) is None
    linear = LlamaConfig(max_position_embeddings=128, rope_parameters={"rope_type": "linear", "factor": 2.0})
    assert exact_length(linear) is None
    dynamic = LlamaConfig(max_position_embeddings=128, rope_parameters={"rope_type": "dynamic", "factor": 2.0})
    assert exact_length(dynamic) == 128
