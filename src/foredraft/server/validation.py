"""What checking a body against protocol.py found, as one sentence: the field, what it was given, what to give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foredraft.server.api_errors import ApiError, bad_request, shown

__all__ = ["from_validation", "wrong_content_type"]

UNION_TAGS = {"dict", "list", "str"}
"""What pydantic adds to the place of a problem where a field may have several types; "list[int]" and the like, too."""
REMEDIES: Mapping[str, str] = {
    "bool_type": "give true or false",
    "dict_type": "give an object",
    "greater_than_equal": "give at least {ge}",
    "int_type": "give a whole number",
    "list_type": "give a list",
    "literal_error": "give {expected}",
    "model_attributes_type": "give an object",
    "model_type": "give an object",
    "string_type": "give a text",
    "string_unicode": "give text without half surrogate pairs",
}


def from_validation(problems: Sequence[Mapping[str, Any]]) -> ApiError:
    """The first problem, in pydantic's form, as an answer."""
    if not problems:
        return bad_request("The request body is not valid; send a JSON object.")
    first = problems[0]
    kind, context = str(first.get("type")), first.get("ctx") or {}
    if kind == "json_invalid":
        return bad_request(f"The request body is not valid JSON: {context.get('error', 'it is malformed')}.")
    param = _field(first.get("loc", ()))
    if not param:
        return bad_request("The request body is no JSON object; send one.")
    if kind == "missing":
        return bad_request(f"{param} is missing; add it.", param)
    remedy = REMEDIES[kind].format(**context) if kind in REMEDIES else str(first.get("msg", "not valid"))
    return bad_request(f"{param} is {shown(first.get('input'))}; {remedy}.", param)


def wrong_content_type(given: str | None) -> ApiError:
    """For a body that was not read, since it doesn't claim to be JSON."""
    what = f"The content type is {shown(given)}" if given else "The request has no content type"
    return ApiError(415, f"{what}; send JSON with content-type: application/json.")


def _field(place: Sequence[str | int]) -> str:
    """Names and indices with dots between them."""
    parts = [str(part) for part in place if part != "body"]
    return ".".join(part for part in parts if (part.isidentifier() or part.isdecimal()) and part not in UNION_TAGS)
