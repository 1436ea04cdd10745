"""Errors as OpenAI's clients expect them: an HTTP status and {"error": {"message", "type", "param", "code"}}.

What a client sent is quoted in part only, however long it is.
"""

from __future__ import annotations

import json
import reprlib
from typing import Any

from foredraft.errors import ForedraftError

__all__ = ["CLIENT_LEFT", "ApiError", "as_api_error", "bad_request", "shown"]

CLIENT_LEFT = 499
"""nginx's code for it; nobody reads the answer, but logs and traces do."""

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
ENGINE_FIELDS = {"logit_bias", "prompt", "stop", "stop_token_ids"}
"""What the engine's refusals may begin with."""
MOST_QUOTED = 100
MOST_SAID = 400


class ApiError(Exception):
    """An answer that is an error. `retry_after`: seconds after which trying again may help."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry_after: int = 0
    ) -> None:
        self.message = _shortened(message)
        super().__init__(self.message)
        self.status = status
        self.param = param
        self.code = code
        self.retry_after = retry_after

    @property
    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def content(self) -> bytes:
        return json.dumps(self.body).encode()

    @property
    def headers(self) -> dict[str, str]:
        headers = {"content-type": "application/json"}
        if self.retry_after:
            headers["retry-after"] = str(self.retry_after)
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return headers


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def as_api_error(error: BaseException) -> ApiError:
    """Errors raised on purpose are the request's fault; any other is ours, and its details stay in the log."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ForedraftError):
        message = str(error)
        name = message.split(maxsplit=1)[0] if message else ""
        return bad_request(message, name if name in ENGINE_FIELDS else None)
    return ApiError(500, "The server failed on this request; its log says why.", code="internal_error")


def shown(value: object) -> str:
    """A value that a client sent, for a message: at most MOST_QUOTED characters or so, in a bounded time."""
    text = _QUOTING.repr(value)
    return text if len(text) <= MOST_QUOTED else f"{text[:MOST_QUOTED]} ..."


def _shortened(message: str) -> str:
    """Without the middle if it is long, where what it quotes tends to be; the remedy stands at the end."""
    if len(message) <= MOST_SAID:
        return message
    return f"{message[: MOST_SAID // 2]} ... {message[-MOST_SAID // 2 :]}"


_QUOTING = reprlib.Repr()
_QUOTING.maxstring = _QUOTING.maxother = _QUOTING.maxlong = MOST_QUOTED
