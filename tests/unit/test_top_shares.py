"""The best scores and their shares, against torch."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from foredraft.drafters.top_shares import top_shares


@given(rows=st.integers(1, 4), size=st.integers(1, 200), count=st.integers(1, 12), seed=st.integers(0, 99))
def test_what_torch_finds(rows: int, size: int, count: int, seed: int) -> None:
    count = min(count, size)
    scores = 5 * torch.randn((rows, size), generator=torch.Generator().manual_seed(seed))
    tokens, shares = top_shares(scores.numpy(), count)
    wanted, found = scores.softmax(dim=-1).topk(count, dim=-1)
    torch.testing.assert_close(torch.from_numpy(shares), wanted, rtol=1e-4, atol=1e-7)
    assert (torch.from_numpy(tokens) == found).all()


def test_equals_come_in_order_and_excluded_tokens_have_no_share() -> None:
    scores = np.array([[1, 2, 2, -np.inf], [-np.inf] * 4], np.float32)
    tokens, shares = top_shares(scores, 4)
    assert tokens[0].tolist() == [1, 2, 0, 3]
    assert shares[0, 3] == 0
    assert sorted(tokens[1].tolist()) == [0, 1, 2, 3]
    assert shares[1].tolist() == [0, 0, 0, 0]
