"""What is kept about a model holds for one device and one way of computing; free memory is what can be had."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from models import tiny_decoder

from foredraft.economics import PassPoint
from foredraft.engine import open_target
from foredraft.engine.profiler import load_profile, machine_name, profile_path, save_profile
from foredraft.target import machine
from foredraft.target.decoder import Decoder
from foredraft.target.machine import device_name, free_memory, hand_back
from foredraft.target.proof import Verdict, recall, remember
from foredraft.target.stock_decoder import StockDecoder

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
MEMINFO = "MemTotal:       8000000 kB\nMemFree:          100000 kB\nMemAvailable:    5000000 kB\n"


@pytest.fixture(autouse=True)
def own_cache_and_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA X")


class OnGpu(StockDecoder):
    device = GPU  # type: ignore[assignment]


@cache
def decoders() -> tuple[Decoder, Decoder, Decoder]:
    """Of the same model in the same format: on the processor, on a GPU, and on the processor another way."""
    here, there, otherwise = (tiny_decoder.__wrapped__() for _ in range(3))
    there.__class__ = OnGpu
    otherwise.way_name = "plain torch"
    return here, there, otherwise


def test_a_verdict_holds_for_the_device_it_was_found_on() -> None:
    verdict = Verdict(False, 1.0, 0.1, "no")
    remember("model", "float32", GPU, verdict)
    assert recall("model", "float32", GPU) == verdict
    assert recall("model", "float32", CPU) is None


def test_a_machine_is_named_after_what_computes() -> None:
    assert machine_name(GPU).startswith("NVIDIA X, ")
    assert device_name(CPU).startswith("cpu: ")
    assert "NVIDIA" not in machine_name(CPU)


def test_a_profile_holds_for_one_device_and_one_way() -> None:
    paths = [profile_path("model", decoder) for decoder in decoders()]
    assert len(set(paths)) == 3
    save_profile(paths[0], [PassPoint(1, 64, 1, 3.0), PassPoint(8, 64, 1, 4.0)], machine_name(CPU))
    assert load_profile(profile_path("model", decoders()[0])) is not None
    assert load_profile(paths[1]) is None
    assert load_profile(paths[2]) is None


def test_memory_that_caches_files_counts_as_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    monkeypatch.setattr(machine, "MEMORY", tmp_path / "meminfo")
    assert free_memory(CPU) == 5_000_000 * 1024
    monkeypatch.setattr(machine, "MEMORY", tmp_path / "none")
    fallback = free_memory(CPU)
    assert fallback is None or fallback > 0


def test_the_room_for_keys_and_values_comes_from_it(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_target, "free_memory", lambda device: 1_000_000)
    opened = open_target.open_target(open_target.EngineArgs(model=str(tiny_checkpoint), device="cpu"))
    cache = opened.target.cache
    assert opened.kv_room == 500_000 // cache.shape.bytes_per_token(cache.dtype.itemsize)


def test_only_whole_pages_are_handed_back() -> None:
    whole = torch.ones(1 << 20)
    part = whole[100:-100]
    hand_back(part)
    assert bool((whole[:100] == 1).all())
    assert bool((whole[-100:] == 1).all())
    hand_back(whole[:10])
    hand_back(whole[:0])
    part.fill_(2)
    assert bool((part == 2).all())
