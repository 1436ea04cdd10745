"""`foredraft serve --ray`: deploys the application, on the cluster that RAY_ADDRESS names or on one of its own on this
machine, and takes it down again on SIGTERM or Ctrl-C.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from foredraft.errors import LoadError
from foredraft.ray.application import build_application, load_ray
from foredraft.ray.arguments import Described
from foredraft.server.run import Listening

__all__ = ["APPLICATION", "deployed", "serve_on_ray"]

APPLICATION = "foredraft"
PATIENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # Ray's 5 s are too few while models are loaded on the same cores
}
"""Environment of a cluster of our own, unless the user's says otherwise."""

logger = logging.getLogger("foredraft.serve")


def serve_on_ray(described: Described, listening: Listening) -> None:
    """Serve until a signal comes. Raises LoadError if the replicas can't be started, KeyboardInterrupt at Ctrl-C."""
    with deployed(described, listening):
        previous = signal.signal(signal.SIGTERM, _end)  # Ray sets its own when it starts, so only now
        names = ", ".join(described.settings.model_names)
        logger.info("Ready: %s; listening on http://%s:%d", names, listening.host, listening.port)
        try:
            while True:
                time.sleep(1)
        except _Ended:
            logger.info("Shutting down")
        finally:
            signal.signal(signal.SIGTERM, previous)


class _Ended(BaseException):
    """SIGTERM came."""


def _end(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not cut the end short
    raise _Ended


@contextmanager
def deployed(described: Described, listening: Listening) -> Iterator[Any]:
    """The application, deployed and ready, around the block; gets the handle of its gateway."""
    ray = load_ray()
    from ray import serve
    from ray.serve.config import HTTPOptions

    own = not os.environ.get("RAY_ADDRESS") and not ray.is_initialized()
    if own:
        for name, value in PATIENT.items():
            os.environ.setdefault(name, value)
        ray.init(include_dashboard=False, logging_level=logging.WARNING)
    elif not ray.is_initialized():
        ray.init(logging_level=logging.WARNING)
    try:
        serve.start(http_options=HTTPOptions(host=listening.host, port=listening.port, root_path=listening.root_path))
        try:
            yield _run(described)
        finally:
            serve.delete(APPLICATION)
    finally:
        if own:
            serve.shutdown()
            ray.shutdown()


def _run(described: Described) -> Any:
    from ray import serve

    try:
        return serve.run(build_application(*described), name=APPLICATION, blocking=False)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise LoadError(f"The replicas could not be started ({reason}); Ray's log says more.") from error
