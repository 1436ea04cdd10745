"""The machine underneath: what computes, how much memory is free, and how memory goes back to the system."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["device_name", "free_memory", "hand_back", "processor_name"]

MEMORY = Path("/proc/meminfo")
PROCESSOR = Path("/proc/cpuinfo")


def device_name(device: torch.device) -> str:
    """Which GPU, or which processor with its kind of device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}: {processor_name()}"


def processor_name() -> str:
    return _field(PROCESSOR, "model name") or platform.processor() or platform.machine()


def free_memory(device: torch.device) -> int | None:
    """Bytes that can be had without swapping, None where the system doesn't tell."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    # Not the free pages alone: most of a busy machine's memory caches files, and goes to whoever asks.
    if (available := _field(MEMORY, "MemAvailable")) is not None:
        return int(available.split()[0]) * 1024
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def hand_back(tensor: Tensor) -> None:
    """Give the whole pages of a contiguous tensor back to the system, where it can take them: host memory on Linux.

    What they held is lost. The tensor stays valid, and takes memory again where it is written.
    """
    if tensor.device.type != "cpu" or sys.platform != "linux":
        return
    first = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    length = tensor.data_ptr() + tensor.nbytes - first
    if length >= mmap.PAGESIZE:
        whole = length // mmap.PAGESIZE * mmap.PAGESIZE
        _advise()(ctypes.c_void_p(first), ctypes.c_size_t(whole), mmap.MADV_DONTNEED)  # a refusal only costs memory


@cache
def _advise() -> Callable[..., int]:
    """Looked up once: a slot hands back every head of every layer by itself."""
    advise: Callable[..., int] = ctypes.CDLL(None).madvise
    return advise


def _field(file: Path, name: str) -> str | None:
    """The value of the first line `name: value`."""
    with suppress(OSError):
        for line in file.read_text("utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return None
