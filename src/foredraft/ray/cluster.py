"""The Ray cluster to work on: the one that RAY_ADDRESS names, or one of our own on this machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from foredraft.errors import ConfigError, LoadError

__all__ = ["connected", "first_line", "load_ray"]

ADDRESS = "RAY_ADDRESS"
OWN = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # Ray's 5 s are too few while models are loaded on the same cores
}
"""Environment of a cluster of our own, unless the user's says otherwise."""


def load_ray(library: str) -> Any:
    """The module `ray`, with its library "serve" or "data". Raises ConfigError if it isn't installed."""
    try:
        import_module(f"ray.{library}")
    except ImportError as error:
        raise ConfigError(
            f"--ray needs ray[{library}], which is not installed; run pip install 'foredraft[ray]'"
        ) from error
    return import_module("ray")


@contextmanager
def connected(library: str) -> Iterator[bool]:
    """Around work with a library of Ray's on a cluster; gets whether it is our own, which ends with the block. Raises
    LoadError if there is none.
    """
    ray = load_ray(library)
    if ray.is_initialized():
        yield False
        return
    own = not os.environ.get(ADDRESS)
    _start(ray, own)
    try:
        yield own
    finally:
        if own:
            ray.shutdown()


def _start(ray: Any, own: bool) -> None:
    for name, value in OWN.items() if own else ():
        os.environ.setdefault(name, value)
    options = {"include_dashboard": False} if own else {}
    try:
        ray.init(logging_level=logging.WARNING, **options)
    except Exception as error:  # Ray's own kinds, and those of sockets, files and versions
        ray.shutdown()
        reason = first_line(error)
        if own:
            raise LoadError(
                f"Ray could not be started on this machine ({reason}); see whether memory, disk and ports suffice, or "
                f"name a running cluster in {ADDRESS}."
            ) from error
        raise LoadError(
            f"The Ray cluster at {os.environ[ADDRESS]!r} can't be reached ({reason}); correct {ADDRESS}, or unset it "
            "to start one on this machine."
        ) from error


def first_line(error: BaseException) -> str:
    """What an error says first, as a part of a sentence."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
