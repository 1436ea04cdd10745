"""Processors and picks: against a plain reference on one prefix at a time, and against the softmax they must sample."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Nodes, nodes, path_to

from foredraft.noise import gumbel
from foredraft.sampling import Rows, keys_of, pick, process, raw_logprobs, rows_of
from foredraft.token_counts import TokenCounts
from foredraft.tree import TokenTree
from foredraft.types import SamplingParams, Sequence

VOCAB = 12
EOS = (2,)


def sequence_of(
    prompt: list[int], output: list[int], params: SamplingParams, *, seed: int = 5, choice: int = 0
) -> Sequence:
    return Sequence(0, params, prompt + output, len(prompt), seed, choice)


def random_logits(rows: int, vocab_size: int = VOCAB, seed: int = 0, scale: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((rows, vocab_size), generator=generator, dtype=torch.float64) * scale


def reference_scores(logits: list[float], prompt: list[int], output: list[int], params: SamplingParams) -> list[float]:
    """vLLM's processors in their order, one token at a time, for one prefix."""
    scores = list(logits)
    if len(output) < params.min_tokens:
        for token in (*params.stop_token_ids, *(() if params.ignore_eos else EOS)):
            scores[token] = -math.inf
    for token, bias in (params.logit_bias or {}).items():
        scores[token] += bias
    for token in set(prompt + output):
        scores[token] *= 1 / params.repetition_penalty if scores[token] > 0 else params.repetition_penalty
    for token in set(output):
        scores[token] -= params.presence_penalty + params.frequency_penalty * output.count(token)
    if params.temperature == 0:
        return scores
    scores = [score / params.temperature for score in scores]
    if params.min_p > 0:
        floor = max(scores) + math.log(params.min_p)
        scores = [score if score >= floor else -math.inf for score in scores]
    if 0 < params.top_k < len(scores):
        floor = sorted(scores, reverse=True)[params.top_k - 1]
        scores = [score if score >= floor else -math.inf for score in scores]
    if params.top_p < 1:
        total = sum(math.exp(score) for score in scores)
        mass = 0.0
        for token in sorted(range(len(scores)), key=lambda token: -scores[token]):
            if mass >= params.top_p:
                scores[token] = -math.inf
            mass += math.exp(scores[token]) / total
    return scores


tokens_lists = st.lists(st.integers(0, VOCAB - 1), max_size=8)
params_of_any_kind = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.05]),
    top_k=st.sampled_from([-1, 0, 1, 4, 100]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
    presence_penalty=st.sampled_from([0.0, 0.7, -0.3]),
    frequency_penalty=st.sampled_from([0.0, 0.4, -1.1]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    logit_bias=st.sampled_from([None, {3: 2.5, 7: -100.0}]),
    min_tokens=st.integers(0, 9),
    stop_token_ids=st.sampled_from([(), (4, 9)]),
    ignore_eos=st.booleans(),
)


@given(nodes(VOCAB), tokens_lists.filter(bool), tokens_lists, params_of_any_kind, st.integers(0, 1000))
def test_every_node_is_processed_on_its_own_path(
    row: Nodes, prompt: list[int], output: list[int], params: SamplingParams, seed: int
) -> None:
    logits = random_logits(len(row[0]) + 1, seed=seed)
    [rows] = rows_of([sequence_of(prompt, output, params)], TokenTree.from_nodes([row]), EOS)
    scores = process(logits, rows)
    for index in range(len(row[0]) + 1):
        path = [row[0][step] for step in path_to(row, index - 1)]
        wanted = reference_scores(logits[index].tolist(), prompt, output + path, params)
        assert scores[index].tolist() == pytest.approx(wanted, abs=1e-6)


@given(nodes(VOCAB), tokens_lists.filter(bool), tokens_lists, params_of_any_kind, st.integers(0, 1000))
def test_a_node_picks_what_its_prefix_picks_without_drafts(
    row: Nodes, prompt: list[int], output: list[int], params: SamplingParams, seed: int
) -> None:
    logits = random_logits(len(row[0]) + 1, seed=seed)
    picks = pick(logits, rows_of([sequence_of(prompt, output, params)], TokenTree.from_nodes([row]), EOS))
    for index in range(len(row[0]) + 1):
        path = [row[0][step] for step in path_to(row, index - 1)]
        committed = sequence_of(prompt, output + path, params)
        [alone] = pick(logits[index : index + 1], rows_of([committed], TokenTree.empty(1), EOS)).tolist()
        assert picks[index] == alone


@given(st.lists(st.tuples(nodes(VOCAB, 4), params_of_any_kind), min_size=1, max_size=5), st.integers(0, 1000))
def test_batch_mates_do_not_change_a_pick(batch: list[tuple[Nodes, SamplingParams]], seed: int) -> None:
    sequences = [sequence_of([1, 5, 5], [index], params, seed=index) for index, (_, params) in enumerate(batch)]
    trees = [row for row, _ in batch]
    logits = random_logits(sum(len(tokens) + 1 for tokens, _ in trees), seed=seed)
    together = pick(logits, rows_of(sequences, TokenTree.from_nodes(trees), EOS)).tolist()
    apart: list[int] = []
    for sequence, row in zip(sequences, trees, strict=True):
        part = logits[len(apart) : len(apart) + len(row[0]) + 1]
        apart += pick(part, rows_of([sequence], TokenTree.from_nodes([row]), EOS)).tolist()
    assert together == apart


def test_processing_leaves_the_logits_alone() -> None:
    logits = random_logits(1)
    before = logits.clone()
    params = SamplingParams(min_tokens=4, repetition_penalty=2.0, logit_bias={1: 3.0}, top_k=2, top_p=0.5, min_p=0.1)
    process(logits, Rows(sequence_of([1, 2], [3], params), [()], EOS))
    assert torch.equal(logits, before)


def test_equal_scores_at_the_edge_of_top_k_all_stay() -> None:
    logits = torch.tensor([[1.0, 3.0, 1.0, 0.0, 1.0]])
    scores = process(logits, Rows(sequence_of([1], [], SamplingParams(top_k=2)), [()]))
    assert torch.isfinite(scores[0]).tolist() == [True, True, True, False, True]


def test_low_precision_logits_are_processed_in_float32() -> None:
    logits = random_logits(2).to(torch.bfloat16)
    rows = Rows(sequence_of([1], [], SamplingParams(temperature=0.7)), [(), (3,)])
    assert process(logits, rows).dtype == torch.float32
    assert torch.equal(process(logits, rows), process(logits.float(), rows))
    assert raw_logprobs(logits).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("kind", "scale"), [("flat", 0.0), ("nearly flat", 0.01), ("usual", 3.0), ("peaky", 30.0), ("one way", 1000.0)]
)
@pytest.mark.parametrize("vocab_size", [4097, 9000])
def test_a_large_vocabulary_picks_by_the_definition(
    vocab_size: int, kind: str, scale: float, dtype: torch.dtype
) -> None:
    rows = Rows(sequence_of([1], [], SamplingParams(), seed=vocab_size), [(7,) * depth for depth in range(24)])
    logits = random_logits(24, vocab_size, scale=scale).to(dtype)
    logits[5:] = logits[5:].masked_fill(random_logits(19, vocab_size, seed=1) < 2.0, -torch.inf)  # most are excluded
    logits[10:15, 3:] = -torch.inf
    logits[15:20, :-1] = -torch.inf
    definition = logits + gumbel(keys_of([rows], logits.device), torch.arange(vocab_size))
    assert pick(logits, [rows]).tolist() == definition.argmax(dim=-1).tolist(), kind


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.5, 2.0, 8.0, 20.0]), st.sampled_from([4100, 9000]))
def test_a_large_vocabulary_picks_by_the_definition_for_any_seed(seed: int, scale: float, vocab_size: int) -> None:
    rows = Rows(sequence_of([1], [], SamplingParams(), seed=seed), [(), (1,), (1, 1), (1, 1, 1)])
    logits = random_logits(4, vocab_size, seed, scale)
    definition = logits + gumbel(keys_of([rows], logits.device), torch.arange(vocab_size))
    assert pick(logits, [rows]).tolist() == definition.argmax(dim=-1).tolist()


@pytest.mark.parametrize("temperature", [1e-4, 1e-30, 1e-40, 5e-324])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = random_logits(3, 5000).float()
    rows = Rows(sequence_of([1], [], SamplingParams(temperature=temperature)), [(), (1,), (1, 2)])
    assert pick(logits, [rows]).tolist() == logits.argmax(dim=-1).tolist()


def chi_square(picks: torch.Tensor, probabilities: torch.Tensor) -> float:
    expected = probabilities * len(picks)
    counts = torch.bincount(picks, minlength=len(probabilities)).double()
    return float(((counts - expected) ** 2 / expected).sum())


DRAWS = 4000


def rows_along(what: str, params: SamplingParams) -> list[Rows]:
    """4000 draws that differ in one thing only."""
    if what == "seeds":
        return [Rows(sequence_of([1], [], params, seed=at), [()]) for at in range(DRAWS)]
    if what == "choices":
        return [Rows(sequence_of([1], [], params, choice=at), [()]) for at in range(DRAWS)]
    paths = [(0,) * depth for depth in range(DRAWS // 20)]
    return [Rows(sequence_of([1], [], params, seed=at), paths) for at in range(20)]


@pytest.mark.parametrize(("along", "temperature"), [("positions", 1.0), ("seeds", 0.7), ("choices", 1.6)])
def test_picks_sample_the_softmax(along: str, temperature: float) -> None:
    """Pearson's statistic with 11 degrees of freedom stays below its 99.9 % quantile."""
    logits = random_logits(1, scale=1.0)
    picks = pick(logits.expand(DRAWS, -1), rows_along(along, SamplingParams(temperature=temperature)))
    assert chi_square(picks, (logits[0] / temperature).softmax(dim=0)) < 31.26


def test_filtered_picks_sample_what_is_left() -> None:
    logits = random_logits(1, scale=1.0)
    rows = [Rows(sequence_of([1], [], SamplingParams(top_k=4), seed=at), [()]) for at in range(DRAWS)]
    best = logits[0].topk(4).indices.sort().values
    picks = pick(logits.expand(DRAWS, -1), rows)
    assert set(picks.tolist()) == set(best.tolist())
    assert chi_square(torch.searchsorted(best, picks), logits[0, best].softmax(dim=0)) < 16.27  # 3 degrees of freedom


def test_picks_of_a_large_vocabulary_sample_the_softmax() -> None:
    """The twenty likeliest tokens and all others together: 20 degrees of freedom."""
    logits = random_logits(1, 6000, scale=3.0)
    paths = [(0,) * depth for depth in range(200)]
    rows = [Rows(sequence_of([1], [], SamplingParams(), seed=at), paths) for at in range(20)]
    picks = pick(logits.expand(4000, -1), rows)
    best = logits[0].topk(20).indices
    bins = torch.full((6000,), 20)
    bins[best] = torch.arange(20)
    probabilities = logits[0].softmax(dim=0)
    expected = torch.cat([probabilities[best], 1 - probabilities[best].sum(dim=0, keepdim=True)])
    assert chi_square(bins[picks], expected) < 45.31


def test_picks_at_neighbouring_positions_are_independent() -> None:
    """Pairs of picks against the product of their distributions: 16 cells, 15 degrees of freedom."""
    logits = random_logits(1, 4, scale=0.5)
    pairs = []
    for seed in range(3000):
        rows = Rows(sequence_of([1], [], SamplingParams(), seed=seed), [(), (0,)])
        first, second = pick(logits.expand(2, -1), [rows]).tolist()
        pairs.append(4 * first + second)
    one = logits[0].softmax(dim=0)
    assert chi_square(torch.tensor(pairs), torch.outer(one, one).flatten()) < 37.70


def test_choices_of_one_seed_are_independent_draws() -> None:
    logits = random_logits(1, 4, scale=0.5)
    pairs = []
    for seed in range(3000):
        rows = [Rows(sequence_of([1], [], SamplingParams(), seed=seed, choice=choice), [()]) for choice in (0, 1)]
        first, second = pick(logits.expand(2, -1), rows).tolist()
        pairs.append(4 * first + second)
    one = logits[0].softmax(dim=0)
    assert chi_square(torch.tensor(pairs), torch.outer(one, one).flatten()) < 37.70


def test_raw_logprobs_ignore_every_processor() -> None:
    logits = random_logits(2)
    assert torch.allclose(raw_logprobs(logits).exp().sum(dim=-1), torch.ones(2, dtype=torch.float64))
    assert torch.allclose(raw_logprobs(logits), logits - logits.exp().sum(dim=-1, keepdim=True).log())


@given(tokens=st.lists(st.integers(0, 9), min_size=1, max_size=40), data=st.data())
def test_counts_of_tokens_are_the_same_however_they_are_caught_up_with(tokens: list[int], data: st.DataObject) -> None:
    prompt_length = data.draw(st.integers(0, len(tokens)))
    counts = TokenCounts()
    for length in [*sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=4))), len(tokens)]:
        counts.catch_up(tokens[:length], prompt_length)
    assert list(counts.tokens) == list(dict.fromkeys(tokens))
    assert list(counts.emitted) == [tokens[prompt_length:].count(token) for token in counts.tokens]
    assert counts.column == {token: place for place, token in enumerate(counts.tokens)}
