"""An HTTP request as the gateway sends it to a replica, and back into the ASGI call it came from."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from foredraft.ray.prefixes import prefix_names

__all__ = ["ForwardedRequest", "forwarded"]


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
    """A request whose body has been read. `prefix` names the beginning of its prompt, for routing."""

    method: str
    path: str
    root_path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    client: tuple[str, int] | None
    body: bytes
    prefix: tuple[bytes, ...]

    def scope(self) -> dict[str, Any]:
        """The ASGI scope for the replica's application."""
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": self.query,
            "root_path": self.root_path,
            "headers": list(self.headers),
            "client": self.client,
            "server": None,
        }


def forwarded(scope: MutableMapping[str, Any], body: bytes) -> ForwardedRequest:
    """From the gateway's own ASGI scope."""
    client = scope.get("client")
    return ForwardedRequest(
        scope["method"],
        scope["path"],
        scope.get("root_path", ""),
        scope.get("query_string", b""),
        tuple((bytes(name), bytes(value)) for name, value in scope["headers"]),
        (client[0], client[1]) if client else None,
        body,
        prefix_names(body) if scope["method"] == "POST" else (),
    )
