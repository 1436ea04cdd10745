"""The lean decoder: the stock model's numbers, and rows that don't depend on their pass, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from typing import TYPE_CHECKING, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import tiny_model
from strategies import Nodes, nodes, path_to

from foredraft.errors import CapacityError, LoadError
from foredraft.target.decoder import Decoder
from foredraft.target.fast_decoder import FastDecoder, Unsupported, build_fast_decoder, load_fast_decoder
from foredraft.target.flat_pass import FlatPass, Segment
from foredraft.target.kernels.compiled import CompiledWay, refusal
from foredraft.target.kv_cache import KVCache
from foredraft.target.quantization import WeightFormat
from foredraft.target.stock_decoder import StockDecoder
from foredraft.target.torch_way import TorchWay

if TYPE_CHECKING:
    from transformers import PreTrainedModel

VOCAB = 100  # not a whole number of panels
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
MULTIPLIERS = {
    "attention_multiplier": 0.3,
    "embedding_multiplier": 2.0,
    "residual_multiplier": 0.4,
    "logits_scaling": 3.0,
}
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama", {"head_dim": 16, "tie_word_embeddings": True}),
    "llama biased": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama 3": ("llama", {"rope_parameters": LLAMA3_ROPE, "head_dim": 80}),
    "yarn": ("llama", {"rope_parameters": YARN}),
    "wide heads": ("llama", {"head_dim": 64}),  # whole blocks for the matrix unit
    "wide heads, windowed": ("mistral", {"head_dim": 128, "sliding_window": 70}),
    "mistral": ("mistral", {"sliding_window": 6}),
    "qwen2": ("qwen2", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "qwen2 windowed": ("qwen2", {"use_sliding_window": True, "sliding_window": 70, "max_window_layers": 1}),
    "qwen3": ("qwen3", {}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0, 1]}),
    "granite": ("granite", MULTIPLIERS),
}
FORMATS: tuple[WeightFormat, ...] = get_args(WeightFormat)
TOLERANCE = {"float32": 1e-5, "bfloat16": 0.03, "int8": 0.1}
"""Root mean square of the logits' error, by their standard deviation."""


@cache
def network(variant: str) -> PreTrainedModel:
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    family, changes = VARIANTS[variant]
    config = CONFIG_MAPPING[family](**{**SHAPE, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(0, 0.15)
            elif name.endswith("bias"):
                parameter.data.normal_(0, 0.1)
            else:
                parameter.data.uniform_(0.5, 1.5)
    return model.float().eval().requires_grad_(False)


@cache
def lean(variant: str, weight_format: WeightFormat, compiled: bool = True) -> FastDecoder:
    model = network(variant)
    weights = dict(model.named_parameters())
    decoder = load_fast_decoder(
        model.config,
        weights,
        weights.__getitem__,
        weight_format=weight_format,
        threads=2,
        compiled=compiled,
    )
    assert type(decoder.way) is (CompiledWay if compiled else TorchWay)
    return decoder


def some_tokens(count: int, seed: int = 0) -> list[int]:
    return torch.randint(0, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def flat_pass(parts: Sequence[tuple[Segment, Sequence[int]]]) -> FlatPass:
    tokens = [token for _, part in parts for token in part]
    positions = [segment.start + depth for segment, _ in parts for depth in segment.depths()]
    return FlatPass(torch.tensor(tokens), torch.tensor(positions), tuple(segment for segment, _ in parts))


def feed(decoder: Decoder, kv: KVCache, slot: int, start: int, tokens: Sequence[int]) -> torch.Tensor:
    """Logits after each token of a chain, in one pass."""
    kv.reserve(start + len(tokens))
    return decoder.head(decoder.forward(flat_pass([(Segment(slot, start, 0, len(tokens)), tokens)]), kv).last)


def new_cache(decoder: Decoder, slots: int = 4) -> KVCache:
    return KVCache(decoder.cache_shape, slots, decoder.cache_dtype)


def one_by_one(decoder: Decoder, tokens: Sequence[int]) -> torch.Tensor:
    """Logits after each token, one row a pass."""
    kv = new_cache(decoder, 1)
    return torch.cat([feed(decoder, kv, 0, position, [token]) for position, token in enumerate(tokens)])


def error(logits: torch.Tensor, reference: torch.Tensor) -> float:
    difference = logits.double() - reference.double()
    return float(difference.square().mean().sqrt() / reference.double().std())


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("weight_format", FORMATS)
def test_agrees_with_the_stock_model(variant: str, weight_format: WeightFormat) -> None:
    tokens = some_tokens(90)
    reference = network(variant)(torch.tensor([tokens])).logits[0]
    decoder = lean(variant, weight_format)
    assert error(feed(decoder, new_cache(decoder), 2, 0, tokens), reference) < TOLERANCE[weight_format]


@pytest.mark.parametrize("variant", VARIANTS)
def test_plain_torch_agrees_with_the_stock_model(variant: str) -> None:
    tokens = some_tokens(90)
    reference = network(variant)(torch.tensor([tokens])).logits[0]
    for weight_format in FORMATS:
        decoder = lean(variant, weight_format, compiled=False)
        assert error(feed(decoder, new_cache(decoder), 2, 0, tokens), reference) < TOLERANCE[weight_format]


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "smollm3", "granite"])
def test_float64_is_the_stock_model(family: str) -> None:
    model = tiny_model(family)
    weights = dict(model.named_parameters())
    decoder = load_fast_decoder(model.config, weights, weights.__getitem__, weight_format="float32")
    assert decoder.cache_dtype == torch.float64
    tokens = [token % model.config.vocab_size for token in some_tokens(40)]
    reference = model(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(feed(decoder, new_cache(decoder), 1, 0, tokens), reference, rtol=0, atol=2e-5)


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("variant", ["llama", "mistral", "qwen2 windowed", "qwen3"])
def test_a_row_is_the_same_alone_and_among_others(variant: str, weight_format: WeightFormat) -> None:
    decoder = lean(variant, weight_format)
    tokens = some_tokens(150)
    alone = one_by_one(decoder, tokens)
    kv = new_cache(decoder)
    for width in (1, 2, 3, 7, 8, 9, 17, 33, 64):
        start = 140 - width
        together = torch.cat([feed(decoder, kv, 3, 0, tokens[:start]), feed(decoder, kv, 3, start, tokens[start:])])
        assert torch.equal(together, alone), width


@settings(max_examples=40, deadline=None)
@given(
    variant=st.sampled_from(["llama", "wide heads"]),
    weight_format=st.sampled_from(FORMATS),
    prefix=st.integers(1, 140),
    chain=st.integers(1, 70),
    tree=nodes(VOCAB, 40),
    mate=nodes(VOCAB, 20),
)
def test_any_tree_gives_the_bits_of_plain_decoding(
    variant: str, weight_format: WeightFormat, prefix: int, chain: int, tree: Nodes, mate: Nodes
) -> None:
    decoder = lean(variant, weight_format)
    tokens = some_tokens(prefix + chain, seed=prefix)
    kv = new_cache(decoder)
    kv.reserve(prefix + chain + 64)
    feed(decoder, kv, 2, 0, tokens[:prefix])
    feed(decoder, kv, 0, 0, tokens[:1])
    first = Segment(0, 1, 0, 1, tuple(1 + parent for parent in mate[1]))
    second = Segment(2, prefix, first.rows, chain, tuple(chain + parent for parent in tree[1]))
    flat = flat_pass([(first, [5, *mate[0]]), (second, [*tokens[prefix:], *tree[0]])])
    logits = decoder.head(decoder.forward(flat, kv).last)[second.first :]
    for node in [-1, *range(len(tree[0]))][-12:]:
        path = [tree[0][step] for step in path_to(tree, node)]
        alone = new_cache(decoder, 1)
        feed(decoder, alone, 0, 0, [*tokens, *path][:-1] or tokens[:1])
        last = feed(decoder, alone, 0, len(tokens) + len(path) - 1, [[*tokens, *path][-1]])
        assert torch.equal(last[0], logits[chain + node])


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("variant", ["llama", "wide heads"])
def test_after_a_commit_the_cache_is_as_if_never_drafted(variant: str, weight_format: WeightFormat) -> None:
    decoder = lean(variant, weight_format)
    prompt, path, after = some_tokens(61), [7, 8, 9, 10], some_tokens(9, seed=3)
    kv = new_cache(decoder)
    assert kv.claim([*prompt, 0]) is not None
    feed(decoder, kv, 0, 0, prompt)
    kv.keep(0, 0, range(len(prompt)), prompt)
    # root 7; its children 1, 8; below 8: 2, 9; below 9: 3, 10
    tree = Segment(0, len(prompt), 0, 1, (0, 0, 2, 2, 4, 4))
    decoder.forward(flat_pass([(tree, [7, 1, 8, 2, 9, 3, 10])]), kv)
    kv.keep(0, len(prompt), [0, 2, 4, 6], path)
    logits = feed(decoder, kv, 0, len(prompt) + len(path), after)
    assert torch.equal(logits, one_by_one(decoder, [*prompt, *path, *after])[-len(after) :])


def test_one_thread_and_three_compute_the_same() -> None:
    model = network("llama")
    weights = dict(model.named_parameters())
    tokens = some_tokens(70)
    results = []
    for threads in (1, 3):
        decoder = load_fast_decoder(model.config, weights, weights.__getitem__, weight_format="int8", threads=threads)
        results.append(feed(decoder, new_cache(decoder), 0, 0, tokens))
    assert torch.equal(*results)


@pytest.mark.parametrize("compiled", [True, False])
def test_taps_are_the_stock_decoders(compiled: bool) -> None:
    tokens = some_tokens(20)
    flat = flat_pass([(Segment(0, 0, 0, 20), tokens)])
    decoder = lean("llama biased", "float32", compiled)
    stock = StockDecoder(deepcopy(network("llama biased")))
    taps = (2, -1, 0, 2)
    ours = decoder.forward(flat, new_cache(decoder), taps)
    theirs = stock.forward(flat, new_cache(stock), taps)
    assert ours.taps is not None
    assert theirs.taps is not None
    torch.testing.assert_close(ours.taps, theirs.taps, rtol=0, atol=1e-4)
    assert torch.equal(ours.taps[:, 1], ours.last)
    assert decoder.forward(flat, new_cache(decoder)).taps is None


@pytest.mark.parametrize("compiled", [True, False])
def test_first_layers_alone(compiled: bool) -> None:
    tokens = some_tokens(20)
    whole = lean("llama", "float32", compiled)
    short = whole.truncated(2)
    stock = StockDecoder(deepcopy(network("llama"))).truncated(2)
    torch.testing.assert_close(
        feed(short, new_cache(short), 0, 0, tokens), feed(stock, new_cache(stock), 0, 0, tokens), rtol=0, atol=1e-4
    )
    expected = feed(whole, new_cache(whole), 0, 0, tokens)
    feed(short, new_cache(short), 1, 0, tokens)
    assert torch.equal(feed(whole, new_cache(whole), 2, 0, tokens), expected)
    with pytest.raises(LoadError, match="target:4"):
        whole.truncated(4)


def test_takes_the_weights_away_from_the_model() -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(network("qwen2").config).requires_grad_(False)
    tokens = some_tokens(9)
    reference = model(torch.tensor([tokens])).logits[0]
    decoder = build_fast_decoder(model, weight_format="float32")
    assert sum(parameter.numel() for parameter in model.parameters()) == 0
    assert error(feed(decoder, new_cache(decoder), 0, 0, tokens), reference) < TOLERANCE["float32"]


@pytest.mark.parametrize("family", ["gemma2", "gpt2", "cohere", "olmo2", "phi3"])
def test_refuses_other_shapes_and_leaves_them_whole(family: str) -> None:
    model = tiny_model(family)
    before = sum(parameter.numel() for parameter in model.parameters())
    with pytest.raises(Unsupported, match=model.config.model_type):
        build_fast_decoder(model, weight_format="float32")
    assert sum(parameter.numel() for parameter in model.parameters()) == before


def test_refuses_tensors_and_rotations_it_does_not_know() -> None:
    config = network("llama").config
    names = set(dict(network("llama").named_parameters()))
    with pytest.raises(Unsupported, match=r"sinks has no place"):
        load_fast_decoder(
            config, names | {"model.layers.0.self_attn.sinks"}, lambda _: torch.empty(0), weight_format="int8"
        )
    with pytest.raises(Unsupported, match="is missing"):
        load_fast_decoder(config, names - {"model.norm.weight"}, lambda _: torch.empty(0), weight_format="int8")
    changed = type(config)(**{**SHAPE, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}})
    with pytest.raises(Unsupported, match="dynamic"):
        load_fast_decoder(changed, names, lambda _: torch.empty(0), weight_format="int8")


def test_refuses_to_write_outside_the_cache() -> None:
    decoder = lean("llama", "int8")
    kv = new_cache(decoder)
    for segment in (Segment(0, kv.capacity, 0, 1), Segment(4, 0, 0, 1)):
        with pytest.raises(CapacityError, match="outside a cache"):
            decoder.forward(flat_pass([(segment, [1])]), kv)


def test_small_heads_run_in_plain_torch() -> None:
    assert "head size 32" not in (refusal(lean("qwen3", "int8").way.shape) or "")
    model = tiny_model("llama")
    weights = {name: parameter.float() for name, parameter in model.named_parameters()}
    decoder = load_fast_decoder(model.config, weights, weights.__getitem__, weight_format="int8")
    assert type(decoder.way) is TorchWay


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("weight_format", FORMATS)
def test_products_alone_leave_passes_as_they_were(weight_format: WeightFormat, compiled: bool) -> None:
    decoder = lean("llama", weight_format, compiled)
    kv = new_cache(decoder)
    before = feed(decoder, kv, 0, 0, [3, 1, 2])
    decoder.run_products(5)
    assert torch.equal(feed(decoder, kv, 1, 0, [3, 1, 2]), before)
