"""What a result was measured on: machine, versions, revision, command line. Without it a number means nothing."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from foredraft.target.machine import processor_name

__all__ = ["describe_run", "load_average"]

PACKAGES = ("foredraft", "torch", "transformers", "numba", "numpy")


def describe_run() -> dict[str, object]:
    """The part of a report's "meta" that doesn't depend on the model."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": sys.argv,
        "git_sha": _git_sha(),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "machine": {
            "system": platform.platform(),
            "processor": processor_name(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "threads": torch.get_num_threads(),
            "memory_mb": _memory_mb(),
            "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "load_average": load_average(),
        },
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_sha() -> str | None:
    """The revision of a source checkout, with a plus if files of the package differ from it."""
    folder = Path(__file__).parent.parent
    with suppress(OSError, subprocess.SubprocessError):
        where = ["git", "-C", str(folder)]
        sha = subprocess.run([*where, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True)
        dirty = subprocess.run([*where, "status", "--porcelain", "."], capture_output=True, text=True, timeout=10)
        return sha.stdout.strip() + ("+" if dirty.stdout.strip() else "")
    return None


def _memory_mb() -> int | None:
    with suppress(ValueError, OSError, AttributeError):
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e6)
    return None


def load_average() -> float | None:
    """Processes that wanted a core during the last minute: above 1 before a run, something else was running."""
    with suppress(OSError, AttributeError):
        return round(os.getloadavg()[0], 2)
    return None
