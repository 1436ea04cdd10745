"""A small Ray cluster on this machine, for tests."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray

__all__ = ["local_ray", "start_ray"]

TOKEN = secrets.token_hex(32)
"""The same for all clusters of this process: Ray reads it once."""


def start_ray() -> None:
    """Ray gives its processes half a minute to start, which a busy machine may need more than once."""
    for attempts_left in (2, 1, 0):
        try:
            ray.init(include_dashboard=False, num_cpus=2, object_store_memory=100 * 2**20, log_to_driver=False)
            return
        except Exception:
            ray.shutdown()
            if not attempts_left:
                raise


@contextmanager
def local_ray(cache: Path) -> Iterator[None]:
    """Two cores of it; its processes import what this one does and compile into `cache`."""
    variables = {
        "OMP_NUM_THREADS": "1",
        "FOREDRAFT_CACHE": str(cache),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "RAY_AUTH_TOKEN": TOKEN,
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        start_ray()
        try:
            yield
        finally:
            ray.shutdown()
