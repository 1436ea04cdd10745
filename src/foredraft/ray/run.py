"""`foredraft serve --ray`: deploys the application, on the cluster that RAY_ADDRESS names or on one of its own on this
machine, and takes it down again on SIGTERM or Ctrl-C.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from foredraft.errors import LoadError
from foredraft.ray.application import build_application
from foredraft.ray.arguments import Described
from foredraft.ray.cluster import connected, first_line
from foredraft.server.run import Listening

__all__ = ["APPLICATION", "deployed", "serve_on_ray"]

APPLICATION = "foredraft"

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
    with connected("serve") as own:
        from ray import serve

        try:
            _listen(listening)
            try:
                yield _run(described)
            finally:
                serve.delete(APPLICATION)
        finally:
            if own:
                serve.shutdown()


def _listen(listening: Listening) -> None:
    from ray import serve
    from ray.serve.config import HTTPOptions

    try:
        serve.start(http_options=HTTPOptions(host=listening.host, port=listening.port, root_path=listening.root_path))
    except Exception as error:  # Ray's own kinds, and those of sockets
        raise LoadError(
            f"Ray Serve could not be started on {listening.host}:{listening.port} ({first_line(error)}); stop what "
            "uses the port, or choose another --port."
        ) from error


def _run(described: Described) -> Any:
    from ray import serve

    try:
        return serve.run(build_application(*described), name=APPLICATION, blocking=False)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise LoadError(f"The replicas could not be started ({reason}); Ray's log says more.") from error
