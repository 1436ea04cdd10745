"""The compiled floors of min-p, top-k and top-p keep what sorting the whole row keeps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from foredraft.filters import floors
from foredraft.perturbed_argmax import perturbed_argmax
from foredraft.types import SamplingParams

VOCABULARY = 5000


def logits_of(rows: int, seed: int, spread: float) -> Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * spread


def expected_floor(row: Tensor, params: SamplingParams) -> tuple[float, float]:
    """Lowest and highest floor that rounding may give, by sorting."""
    falling = row.double().sort(descending=True).values
    kept = len(falling)
    if params.min_p > 0:
        kept = int((falling >= falling[0] + np.log(params.min_p)).sum())
    if params.top_k > 0:
        kept = min(kept, params.top_k)
    shares = falling[:kept].softmax(0)
    before = shares.cumsum(0) - shares
    few, many = (max(1, int((before < params.top_p + error).sum())) for error in (-1e-5, 1e-5))
    return float(falling[many - 1]), float(falling[few - 1])


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 5),
    seed=st.integers(0, 2**31),
    spread=st.sampled_from([0.01, 1.0, 4.0, 30.0]),
    min_p=st.sampled_from([0.0, 0.0, 1e-6, 0.1, 1.0]),
    top_k=st.sampled_from([0, 0, 1, 40, 4000, 9999]),
    top_p=st.sampled_from([1e-9, 0.3, 0.95, 0.9999, 1.0]),
)
def test_floors_are_those_of_the_sorted_row(
    rows: int, seed: int, spread: float, min_p: float, top_k: int, top_p: float
) -> None:
    params = SamplingParams(temperature=1, min_p=min_p, top_k=top_k, top_p=top_p)
    scores = logits_of(rows, seed, spread)
    found = floors(scores, params)
    if found is None:
        assert min_p == 0
        assert top_p == 1
        assert not 0 < top_k < VOCABULARY
        return
    for row, floor in zip(scores, found[:, 0].tolist(), strict=True):
        lowest, highest = expected_floor(row, params)
        assert lowest - 1e-4 <= float(row[row >= floor].min()) <= highest + 1e-4


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), excluded=st.integers(1, VOCABULARY - 1), top_k=st.sampled_from([0, 50]))
def test_excluded_tokens_stay_excluded(seed: int, excluded: int, top_k: int) -> None:
    """A grammar may leave fewer tokens than top-k asks for."""
    scores = logits_of(1, seed, 2.0)
    scores[0, torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(seed))[:excluded]] = -torch.inf
    found = floors(scores, SamplingParams(temperature=1, top_k=top_k, top_p=0.9))
    assert found is not None
    kept = scores[0] >= found[0, 0]
    allowed = scores[0] > -torch.inf
    left = allowed & (scores[0] >= scores[0].topk(top_k or VOCABULARY).values[-1])
    share = scores[0][kept & allowed].double().exp().sum() / scores[0][left].double().exp().sum()
    assert share >= 0.9 - 1e-5
    assert int((kept & allowed).sum()) <= int(left.sum())


@pytest.mark.parametrize("top_p", [0.2, 0.9, 0.999])
def test_a_row_has_the_same_floor_alone_and_among_others(top_p: float) -> None:
    scores, params = logits_of(7, 3, 3.0), SamplingParams(temperature=1, top_p=top_p, top_k=900, min_p=1e-5)
    together, alone = floors(scores, params), [floors(scores[row : row + 1], params) for row in range(7)]
    assert together is not None
    assert torch.equal(together, torch.cat([one for one in alone if one is not None]))


def test_equal_scores_at_the_edge_stay_or_go_together() -> None:
    scores = torch.full((1, VOCABULARY), -20.0)
    scores[0, :4] = torch.tensor([2.0, 1.0, 1.0, 0.0])
    found = floors(scores, SamplingParams(temperature=1, top_k=2))
    assert found is not None
    assert found.item() == 1.0
    found = floors(scores, SamplingParams(temperature=1, top_p=0.7))
    assert found is not None
    assert found.item() == 1.0


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), key=st.integers(-(2**63), 2**63 - 1), top_k=st.integers(1, 300))
def test_the_noisy_best_above_a_floor_is_that_of_masked_scores(seed: int, key: int, top_k: int) -> None:
    scores, keys = logits_of(1, seed, 1.0), np.array([key])
    floor = scores.topk(top_k).values[:, -1:]
    masked = scores.masked_fill(scores < floor, -torch.inf)
    assert (perturbed_argmax(scores.numpy(), keys, floor[:, 0].numpy()) == perturbed_argmax(masked.numpy(), keys)).all()
