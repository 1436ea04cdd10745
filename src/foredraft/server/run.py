"""A server process: uvicorn around the application, from the socket to the end of the last answer.

SIGTERM and Ctrl-C stop accepting, let running requests finish (up to `shutdown_timeout`), and end the process; a second
Ctrl-C ends it at once.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
from dataclasses import dataclass
from types import FrameType
from typing import Any

import uvicorn

from foredraft.errors import ConfigError, ForedraftError
from foredraft.server.app import create_app
from foredraft.server.service import Service

__all__ = ["DrainingServer", "Listening", "configure_logging", "serve"]

CLOSING_SECONDS = 5
"""For the last bytes of answers that are done; the answers themselves have `shutdown_timeout`."""

logger = logging.getLogger("foredraft.serve")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where to listen; port 0 is any free one. With TLS if both files are given."""

    host: str = "127.0.0.1"
    port: int = 8000
    ssl_keyfile: str | None = None
    ssl_certfile: str | None = None
    root_path: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port is {self.port}; give a number from 0 (any free one) to 65535.")
        if (self.ssl_keyfile is None) != (self.ssl_certfile is None):
            raise ConfigError("TLS needs both --ssl-keyfile and --ssl-certfile; give the other one, too.")


class DrainingServer(uvicorn.Server):
    """Goes on listening while running requests end, so that health checks hear 503 and take it out of rotation."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._ending = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._ending:  # asked again: whatever still runs is given up
            self.force_exit = sig == signal.SIGINT
            super().handle_exit(sig, frame)
            return
        self._ending = True
        self._service.worker.drain()
        threading.Thread(target=self._finish, args=(sig, frame), name="foredraft-shutdown", daemon=True).start()

    def _finish(self, sig: int, frame: FrameType | None) -> None:
        """Requests that take too long end with an error that says so, before their connections are cut."""
        worker = self._service.worker
        if not worker.wait_until_idle(self._service.settings.shutdown_timeout):
            worker.stop()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[Any] | None = None) -> None:
        await super().startup(sockets)
        for server in getattr(self, "servers", []):
            for listener in server.sockets:
                host, port = listener.getsockname()[:2]
                scheme = "https" if self.config.is_ssl else "http"
                shown = f"[{host}]" if ":" in host else host
                logger.info("Listening on %s://%s:%d; the model is being loaded", scheme, shown, port)


def serve(service: Service, listening: Listening, *, log_level: str = "warning") -> None:
    """Serve until a signal comes. Raises what loading the model failed with, and ConfigError for an address in use."""
    config = uvicorn.Config(
        create_app(service),
        host=listening.host,
        port=listening.port,
        ssl_keyfile=listening.ssl_keyfile,
        ssl_certfile=listening.ssl_certfile,
        root_path=listening.root_path.rstrip("/"),
        log_config=None,
        log_level=log_level,
        access_log=False,  # RequestLog writes a better one
        server_header=False,
        timeout_graceful_shutdown=CLOSING_SECONDS,
    )
    server = DrainingServer(config, service)
    watcher = threading.Thread(target=_watch_loading, args=(service, server), daemon=True)
    # uvicorn raises the signal again when it is done; with a handler of our own that is no reason to die of it.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: None)
    watcher.start()
    try:
        server.run()
    except SystemExit as error:  # uvicorn's answer to an address that can't be listened on
        if service.worker.failure is None:
            raise ConfigError(
                f"{listening.host}:{listening.port} can't be listened on; stop what uses it, or choose another --port."
            ) from error
    if service.worker.failure is not None:
        raise service.worker.failure


def configure_logging(level: str = "info", *, access: bool = True) -> None:
    """Everything to stderr, one line each; the access log is one JSON object per line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("foredraft").setLevel(level.upper())
    logging.getLogger("foredraft.access").setLevel(logging.INFO if access else logging.CRITICAL)


class _Lines(logging.Formatter):
    """JSON from the access log, text from everything else, each with its time."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S%z")

    def format(self, record: logging.LogRecord) -> str:
        if record.name == "foredraft.access":
            return json.dumps({"time": self.formatTime(record, self.datefmt), **json.loads(record.getMessage())})
        return super().format(record)


def _watch_loading(service: Service, server: uvicorn.Server) -> None:
    """Say that the model is ready, or end the process if it can't be loaded."""
    try:
        service.worker.wait_until_settled()
    except ForedraftError:
        server.should_exit = True
    except BaseException:
        logger.exception("Loading the model failed")
        server.should_exit = True
    else:
        logger.info("Ready: %s", ", ".join(service.settings.model_names))
