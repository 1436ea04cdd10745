"""`foredraft serve --ray`: deploys the application, on the cluster that RAY_ADDRESS names or on one of its own on this
machine, and takes it down again on SIGTERM or Ctrl-C.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from foredraft.errors import LoadError
from foredraft.ray.application import build_application, load_ray
from foredraft.ray.arguments import Described

__all__ = ["APPLICATION", "deployed", "serve_on_ray"]

APPLICATION = "foredraft"
LOCAL = "127.0.0.1"

logger = logging.getLogger("foredraft.serve")


def serve_on_ray(described: Described, *, host: str, port: int, root_path: str = "") -> None:
    """Serve until a signal comes. Raises LoadError if the replicas can't be started."""
    over = threading.Event()
    with deployed(described, host=host, port=port, root_path=root_path):
        previous = {number: signal.signal(number, lambda *_: over.set()) for number in (signal.SIGTERM, signal.SIGINT)}
        logger.info("Ready on http://%s:%d: %s", host, port, ", ".join(described.settings.model_names))
        try:
            while not over.wait(1):  # in short waits, which signals get through
                pass
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        logger.info("Shutting down")


@contextmanager
def deployed(described: Described, *, host: str, port: int, root_path: str = "") -> Iterator[Any]:
    """The application, deployed and ready, around the block; gets the handle of its gateway."""
    ray = load_ray()
    from ray import serve
    from ray.serve.config import HTTPOptions

    own = not os.environ.get("RAY_ADDRESS") and not ray.is_initialized()
    if own:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(include_dashboard=False, _node_ip_address=LOCAL, log_to_driver=True, logging_level=logging.WARNING)
    elif not ray.is_initialized():
        ray.init(logging_level=logging.WARNING)
    try:
        serve.start(http_options=HTTPOptions(host=host, port=port, root_path=root_path))
        try:
            yield serve.run(build_application(*described), name=APPLICATION, blocking=False)
        except RuntimeError as error:
            if "deploy" not in str(error).lower():
                raise
            raise LoadError(f"The replicas could not be started: {str(error).splitlines()[-1]}") from error
        finally:
            serve.delete(APPLICATION)
    finally:
        if own:
            serve.shutdown()  # type: ignore[no-untyped-call]
            ray.shutdown()
