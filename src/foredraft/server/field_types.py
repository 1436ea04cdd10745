"""The types of requests' fields: as strict as JSON, where a text is no number and true is not 1.

A list is checked up to its first problem only, and what a field may be one of is told by its JSON type before anything
is checked. So refusing a body costs no more than accepting it, and says what is wrong rather than what else it isn't.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

__all__ = [
    "STOP_AT_FIRST",
    "Biases",
    "Number",
    "Object",
    "Objects",
    "Prompt",
    "TextOrObject",
    "TextOrTexts",
    "Texts",
    "Tokens",
    "Whole",
    "json_type",
    "too_deep",
]

MOST_LEVELS = 100
"""Of objects and lists in each other; recursive code on the way of a request can follow that many."""
NUMBER_LIMIT = 2**64


def too_deep(value: Any) -> bool:
    """Whether objects and lists are nested in more than MOST_LEVELS levels."""
    level = [value]
    for _ in range(MOST_LEVELS):
        level = [inner for outer in level for inner in _inside(outer) if isinstance(inner, (dict, list))]
        if not level:
            return False
    return True


def json_type(value: object) -> str | None:
    """How a union tells its members: by pydantic's names, which are no part of an error's place."""
    kinds: dict[type[object], str] = {str: "str", list: "list", dict: "dict"}
    return kinds.get(type(value))


def _inside(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _whole(value: object) -> int:
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    if not isinstance(number, int) or isinstance(number, bool):
        raise PydanticCustomError("whole_type", "give a whole number")
    return _bounded(number)


def _without_points(values: object) -> object:
    """7.0 is a whole number in JSON, though not to pydantic where it is strict."""
    if isinstance(values, list) and float in set(map(type, values)):
        return [int(value) if isinstance(value, float) and value.is_integer() else value for value in values]
    return values


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise PydanticCustomError("number_type", "give a number")
    return value if isinstance(value, float) else _bounded(value)


def _bounded(number: int) -> int:
    if abs(number) > NUMBER_LIMIT:
        raise PydanticCustomError("number_size", "give a number of at most 64 bits")
    return number


def _biases(value: object) -> object:
    """pydantic would list every wrong value of an object."""
    if isinstance(value, dict):
        for bias in value.values():
            _number(bias)
    return value


def _shallow(value: dict[str, Any]) -> dict[str, Any]:
    if too_deep(value):
        raise PydanticCustomError("too_deep", "nest it at most {most} levels deep", {"most": MOST_LEVELS})
    return value


def _prompt_type(value: object) -> str | None:
    """The first element tells what kind of list it is."""
    if not isinstance(value, list) or not value:
        return "list[int]" if value == [] else json_type(value)
    kinds: dict[type[object], str] = {str: "list[str]", list: "list[list]"}
    kinds |= dict.fromkeys((int, float, bool), "list[int]")
    return kinds.get(type(value[0]))


STOP_AT_FIRST = Field(fail_fast=True)
Whole = Annotated[int, BeforeValidator(_whole)]
Number = Annotated[float, BeforeValidator(_number)]
Token = Annotated[int, Field(strict=True, ge=0)]
Tokens = Annotated[list[Token], STOP_AT_FIRST, BeforeValidator(_without_points)]
Texts = Annotated[list[str], STOP_AT_FIRST]
Object = Annotated[dict[str, Any], AfterValidator(_shallow)]
Objects = Annotated[list[Object], STOP_AT_FIRST]
Biases = Annotated[dict[str, float], BeforeValidator(_biases)]
TextOrTexts = Annotated[
    Annotated[str, Tag("str")] | Annotated[Texts, Tag("list")],
    Discriminator(json_type, custom_error_type="kind", custom_error_message="give a text or a list of texts"),
]
TextOrObject = Annotated[
    Annotated[str, Tag("str")] | Annotated[Object, Tag("dict")],
    Discriminator(json_type, custom_error_type="kind", custom_error_message="give a text or an object"),
]
Prompt = Annotated[
    Annotated[str, Tag("str")]
    | Annotated[Texts, Tag("list[str]")]
    | Annotated[Tokens, Tag("list[int]")]
    | Annotated[list[Tokens], STOP_AT_FIRST, Tag("list[list]")],
    Discriminator(
        _prompt_type,
        custom_error_type="kind",
        custom_error_message="give a text, a list of token ids, or a list of either",
    ),
]
