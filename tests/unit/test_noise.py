"""Noise: fixed bits for ever, the right distribution, and no dependence between neighbours."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foredraft.noise import GUMBEL_MAX, bits, gumbel, gumbel_of, row_key

MASK32 = 0xFFFFFFFF
GOLDEN_KEYS = {
    (0, 0, 0): -6411193824288604561,
    (0, 0, 1): 7141179953334974231,
    (42, 0, 17): -3726697472781361433,
    (42, 1, 17): 1524773585725035409,
    (-1, 3, 100000): 2562442614931816338,
    (2**63, 0, 5): -3229032048280718654,
    (2**64 - 1, 127, 2**20): -3111341111082638334,
}
GOLDEN_TOKENS = (0, 1, 2, 1000, 49151, 151935)
GOLDEN_BITS = {
    (0, 0, 0): [1875473037, 1404857411, 2404636329, 1214594754, 476513582, 1267840896],
    (42, 0, 17): [1050624267, 4136197363, 1769562072, 1155741913, 340883508, 1251476129],
    (2**64 - 1, 127, 2**20): [2336272305, 1028297185, 2227274979, 899167947, 3453840075, 3169972158],
}
GOLDEN_GUMBEL = [0.18803823385744298, -0.11110132247966006, 0.5446491384982364, -0.23351633169969924]  # draw (0, 0, 0)


def keys_of(*draws: tuple[int, int, int]) -> torch.Tensor:
    return torch.tensor([row_key(*draw) for draw in draws], dtype=torch.int64).unsqueeze(1)


def test_keys_are_the_same_in_every_version() -> None:
    assert {draw: row_key(*draw) for draw in GOLDEN_KEYS} == GOLDEN_KEYS


def test_bits_are_the_same_in_every_version() -> None:
    tokens = torch.tensor(GOLDEN_TOKENS)
    assert {draw: bits(keys_of(draw), tokens)[0].tolist() for draw in GOLDEN_BITS} == GOLDEN_BITS


def test_gumbel_values_are_the_same_in_every_version() -> None:
    values = gumbel(keys_of((0, 0, 0)), torch.tensor(GOLDEN_TOKENS[:4]))[0]
    assert values.tolist() == pytest.approx(GOLDEN_GUMBEL, rel=1e-12)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**31 - 1))
def test_bits_are_the_hash_in_plain_integers(key: int, token: int) -> None:
    low, high = key & MASK32, (key >> 32) & MASK32
    x = token ^ low
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & MASK32
    x = ((x ^ (x >> 15)) + high) & MASK32
    x = ((x ^ (x >> 16)) * 0x846CA68B) & MASK32
    x = ((x ^ (x >> 15)) * 0x7FEB352D) & MASK32
    x ^= x >> 16
    assert bits(torch.tensor([[key]]), torch.tensor([token])).item() == x


def test_a_negative_seed_is_the_same_as_its_unsigned_twin() -> None:
    assert row_key(-1, 0, 9) == row_key(2**64 - 1, 0, 9)


def test_noise_of_some_tokens_is_that_of_all_tokens_at_their_ids() -> None:
    keys = keys_of((3, 0, 7), (3, 0, 8))
    some = torch.tensor([5, 4000, 77])
    assert torch.equal(gumbel(keys, some), gumbel(keys, torch.arange(5000))[:, some])
    per_row = torch.tensor([[5, 4000, 77], [1, 2, 3]])
    assert torch.equal(gumbel(keys, per_row)[1], gumbel(keys[1:], per_row[1])[0])


def test_gumbel_is_finite_and_monotonic_over_all_bits() -> None:
    edge = torch.tensor([0, 1, 2, 2**31, 2**32 - 3, 2**32 - 2, 2**32 - 1])
    values = gumbel_of(edge)
    assert torch.isfinite(values).all()
    assert (values[1:] > values[:-1]).all()
    assert values[-1].item() == pytest.approx(GUMBEL_MAX)


def test_bits_are_uniform_in_every_bit_and_every_byte() -> None:
    values = bits(keys_of(*((seed, 0, 5) for seed in range(64))), torch.arange(1024)).flatten()
    ones = torch.stack([(values >> bit) & 1 for bit in range(32)]).double().mean(dim=1)
    assert (ones - 0.5).abs().max() < 5 * 0.5 / math.sqrt(len(values))
    for byte in range(4):
        counts = torch.bincount((values >> (8 * byte)) & 255, minlength=256).double()
        expected = len(values) / 256
        assert ((counts - expected) ** 2 / expected).sum() < 255 + 5 * math.sqrt(2 * 255)


@pytest.mark.parametrize(
    ("what", "one", "other"),
    [
        ("positions", (7, 0, 100), (7, 0, 101)),
        ("distant positions", (7, 0, 100), (7, 0, 100 + 4096)),
        ("choices", (7, 0, 100), (7, 1, 100)),
        ("seeds", (7, 0, 100), (8, 0, 100)),
        ("distant seeds", (7, 0, 100), (7 + 2**40, 0, 100)),
        ("choice and position swapped", (7, 3, 4), (7, 4, 3)),
    ],
)
def test_noise_of_neighbours_is_uncorrelated(what: str, one: tuple[int, int, int], other: tuple[int, int, int]) -> None:
    tokens = torch.arange(60_000)
    first, second = (gumbel(keys_of(draw), tokens)[0] for draw in (one, other))
    correlation = torch.corrcoef(torch.stack([first, second]))[0, 1]
    assert abs(correlation) < 5 / math.sqrt(len(tokens)), what
    shifted = torch.corrcoef(torch.stack([first[1:], second[:-1]]))[0, 1]
    assert abs(shifted) < 5 / math.sqrt(len(tokens)), what


def test_noise_has_the_mean_and_variance_of_a_gumbel_distribution() -> None:
    values = gumbel(keys_of(*((1, 0, position) for position in range(50))), torch.arange(2000)).flatten()
    count = len(values)
    assert abs(values.mean() - 0.5772156649) < 5 * math.sqrt(math.pi**2 / 6 / count)
    assert abs(values.var() - math.pi**2 / 6) < 0.05
