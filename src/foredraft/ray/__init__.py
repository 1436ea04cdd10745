"""Replicas of the server on a Ray cluster; `foredraft.ray:build` is what Ray Serve's YAML files name.

A gateway takes HTTP requests and hands them to engine replicas, each of which runs the whole application of
foredraft.server in its own process. Nothing here is imported unless Ray is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve import Application

__all__ = ["build"]


def build(args: dict[str, Any]) -> Application:
    """The Ray Serve application that these arguments describe; see `foredraft.ray.arguments`. Raises ConfigError."""
    from foredraft.ray.application import build_application
    from foredraft.ray.arguments import read_arguments

    return build_application(*read_arguments(args))
