"""Linear layers of drafting heads on the compiled kernels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from foredraft.target.kernels.crew import Crew
from foredraft.target.kernels.linear import PackedLinear, packs
from foredraft.target.quantization import WeightFormat


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", [80, 128, 192])  # the matrix unit takes multiples of 64 int8, 32 bfloat16 inputs
@pytest.mark.parametrize(("weight_format", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.02), ("int8", 0.02)])
def test_it_is_the_layer(weight_format: WeightFormat, tolerance: float, size: int, bias: bool) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(size, 100, bias=bias)
    packed = PackedLinear(linear, weight_format, Crew(2))
    x = torch.randn(3, 20, size)
    with torch.inference_mode():
        wanted, found = linear(x), packed(x)
    assert found.shape == (3, 20, 100)
    assert (found - wanted).abs().max() < tolerance * wanted.abs().max()


@pytest.mark.parametrize("size", [80, 128])
@pytest.mark.parametrize("weight_format", ["float32", "bfloat16", "int8"])
def test_rows_do_not_depend_on_one_another(weight_format: WeightFormat, size: int) -> None:
    torch.manual_seed(0)
    packed = PackedLinear(nn.Linear(size, 70), weight_format, Crew(3))
    x = torch.randn(50, size)
    with torch.inference_mode():
        together = packed(x)
        for rows in (1, 2, 8, 9, 16, 17, 33):
            assert torch.equal(torch.cat([packed(part) for part in x.split(rows)]), together)


def test_what_does_not_fill_vectors_stays_as_it_is() -> None:
    assert packs(nn.Linear(32, 5))
    assert not packs(nn.Linear(40, 5))
    assert not packs(nn.Linear(32, 5).double())
