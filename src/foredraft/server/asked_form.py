"""The form that a request asks of its answer: OpenAI's response_format, vLLM's structured_outputs and its older names.

A key that nobody knows would leave the answer without the form that was meant, so it is refused here, unlike in the
request itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from foredraft.server.api_errors import bad_request, shown
from foredraft.server.protocol import GenerationRequest, ResponseFormat, StructuredOutputs
from foredraft.types import StructuredOutput

__all__ = ["AskedForm", "asked_form"]

BESIDE = {"text": set[str](), "json_object": {"schema"}, "json_schema": {"json_schema"}}
"""What a response_format may have, by its type."""
SCHEMA_KEYS = {"name", "description", "schema", "strict"}
VLLM_KEYS = "json, regex, choice, grammar or json_object"


@dataclass(frozen=True, slots=True)
class AskedForm(StructuredOutput):
    """A form that knows the field which asks for it, for what is found to be wrong with it later."""

    param: str | None = field(default=None, compare=False)


def asked_form(request: GenerationRequest) -> AskedForm | None:
    """None if the answer is free. Raises ApiError (400)."""
    older = StructuredOutputs(
        json=request.guided_json,
        regex=request.guided_regex,
        choice=request.guided_choice,
        grammar=request.guided_grammar,
    )
    found = [
        *_from_format(request.response_format),
        *_from_structured(request.structured_outputs),
        *_forms(older, {kind: f"guided_{kind}" for kind in ("json", "regex", "choice", "grammar")}),
    ]
    if len(found) > 1:
        kinds = " and ".join(one.kind for one in found)
        raise bad_request(f"The request asks for {kinds} at once; ask for one of them.", found[1].param)
    return found[0] if found else None


def _from_format(wanted: ResponseFormat | None) -> list[AskedForm]:
    name = "response_format"
    if wanted is None:
        return []
    given = {"json_schema": wanted.json_schema, "schema": wanted.schema_, **wanted.unknown_fields()}
    _refuse_others(name, given, BESIDE[wanted.type], f"leave it out of type {wanted.type}")
    if wanted.type == "text":
        return []
    schema = wanted.schema_
    if wanted.type == "json_schema":
        inner = wanted.json_schema or {}
        _refuse_others(f"{name}.json_schema", inner, SCHEMA_KEYS, "the schema itself belongs into schema")
        schema = inner.get("schema")
        if not isinstance(schema, dict):
            raise bad_request(
                f'{name} of type json_schema needs {{"json_schema": {{"name": ..., "schema": {{...}}}}}}.', name
            )
    if schema is None:
        return [AskedForm("json_object", param=name)]
    return [AskedForm("json_schema", json.dumps(schema), name)]


def _from_structured(wanted: StructuredOutputs | None) -> list[AskedForm]:
    name = "structured_outputs"
    if wanted is None:
        return []
    _refuse_others(name, wanted.unknown_fields(), set(), f"give {VLLM_KEYS}")
    if all(getattr(wanted, key) is None for key in StructuredOutputs.model_fields):
        raise bad_request(f"{name} asks for nothing; give {VLLM_KEYS}, or leave it out.", name)
    return _forms(wanted, {})


def _forms(wanted: StructuredOutputs, params: Mapping[str, str]) -> list[AskedForm]:
    """The forms that are asked for, each with its name among `params`."""

    def form(kind: str, text: str, key: str) -> AskedForm:
        return AskedForm(kind, text, params.get(key, "structured_outputs"))

    found = []
    if wanted.json_ is not None:
        schema = wanted.json_ if isinstance(wanted.json_, str) else json.dumps(wanted.json_)
        found.append(form("json_schema", schema, "json"))
    if wanted.regex is not None:
        found.append(form("regex", wanted.regex, "regex"))
    if wanted.choice is not None:
        found.append(form("choice", json.dumps(wanted.choice), "choice"))
    if wanted.grammar is not None:
        found.append(form("grammar", wanted.grammar, "grammar"))
    if wanted.json_object:
        found.append(form("json_object", "", "json_object"))
    return found


def _refuse_others(name: str, given: Mapping[str, Any], known: set[str], remedy: str) -> None:
    """Raises ApiError (400) for a key that isn't `known`, unless its value says nothing."""
    other = next((key for key, value in given.items() if key not in known and value not in (None, False)), None)
    if other is not None:
        raise bad_request(f"{name} has the key {shown(other)}, which has no meaning here; {remedy}.", name)
