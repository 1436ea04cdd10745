"""Errors as OpenAI's clients expect them: an HTTP status and {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from foredraft.errors import ForedraftError

__all__ = ["CLIENT_LEFT", "ApiError", "as_api_error", "bad_request", "from_validation"]

CLIENT_LEFT = 499
"""nginx's code for it; nobody reads the answer, but logs and traces do."""

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
TYPE_NAMES = {"bool", "dict", "float", "int", "list", "str"}
"""What pydantic adds to the place of a problem where a field may have several types."""


class ApiError(Exception):
    """An answer that is an error. `retry_after`: seconds after which trying again may help."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry_after: int = 0
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
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
        return bad_request(str(error))
    return ApiError(500, "The server failed on this request; its log says why.", code="internal_error")


def from_validation(problems: Sequence[Mapping[str, Any]]) -> ApiError:
    """The first problem that checking a body found, as one sentence."""
    if not problems:
        return bad_request("The request body is not valid; send a JSON object.")
    first = problems[0]
    place = [str(part) for part in first.get("loc", ()) if part not in ("body",)]
    if first.get("type") == "json_invalid":
        reason = (first.get("ctx") or {}).get("error", "it is malformed")
        return bad_request(f"The request body is not valid JSON: {reason}.")
    if not place:
        return bad_request("The request body is no JSON object; send one, with content type application/json.")
    param = ".".join(part for part in place if (part.isidentifier() or part.isdecimal()) and part not in TYPE_NAMES)
    given = repr(first.get("input"))
    shown = "" if first.get("type") == "missing" else f" is {given[:80] + ' ...' if len(given) > 80 else given}"
    return bad_request(f"{param}{shown}: {str(first.get('msg', 'not valid')).lower()}.", param or None)
