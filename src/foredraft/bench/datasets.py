"""Reads benchmark prompts from JSON Lines in the shapes that public sets use.

The shape is recognised by the keys of each line; of several turns the first is asked. Whatever doesn't fit is one error
that names the file, the line and the keys it has. Nothing is downloaded: you pass a file that you have.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from foredraft.errors import ConfigError

__all__ = ["BenchPrompt", "read_dataset"]

Row: TypeAlias = Mapping[str, object]
Messages: TypeAlias = tuple[dict[str, str], ...]
ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """messages are {"role": ..., "content": ...}, the last one asks; prediction is a text the answer may resemble."""

    messages: Messages
    category: str
    source: str
    prediction: str | None = None


class Shape(NamedTuple):
    """How a public set writes its lines: the keys that give it away, what is asked, and the key of a prediction."""

    name: str
    keys: tuple[str, ...]
    messages: Callable[[Row], Messages]
    prediction: str = "prediction"


def read_dataset(path: Path) -> list[BenchPrompt]:
    """All prompts of a .jsonl (or .jsonl.gz) file. Raises ConfigError for a missing, empty or malformed one.

    A line's "category" is kept; without one, the category is the file's name.
    """
    try:
        prompts = [_prompt(line, f"line {number}", path) for number, line in _lines(path) if line.strip()]
    except (OSError, UnicodeDecodeError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"The dataset {path} can't be read ({reason}); pass a JSON Lines file in UTF-8.") from error
    if not prompts:
        raise ConfigError(f"The dataset {path} has no prompts; pass a JSON Lines file with one prompt a line.")
    return prompts


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8") as file:
            yield from enumerate(file, start=1)
    else:
        with path.open(encoding="utf-8") as file:
            yield from enumerate(file, start=1)


def _prompt(line: str, where: str, path: Path) -> BenchPrompt:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}, {where}, is not JSON ({error}); each line must be one object.") from error
    if not isinstance(row, dict):
        raise ConfigError(f"{path}, {where}, is {line.strip()[:40]!r}; each line must be one object.")
    shape = next((shape for shape in SHAPES if all(key in row for key in shape.keys)), None)
    if shape is None:
        known = "; ".join(f"{', '.join(shape.keys)} ({shape.name})" for shape in SHAPES)
        keys = ", ".join(row) or "none"
        raise ConfigError(f"{path}, {where}, has the keys {keys}, which is no known shape; known are {known}.")
    try:
        messages = shape.messages(row)
        prediction = _text(row[shape.prediction], shape.prediction) if shape.prediction in row else None
        category = _text(str(row["category"]), "category") if row.get("category") else None
    except _UnfitError as unfit:
        raise ConfigError(f"{path}, {where}, looks like {shape.name}, but {unfit}.") from unfit
    name = path.name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".json")
    return BenchPrompt(messages, category or name, f"{path.name} {where}", prediction)


class _UnfitError(Exception):
    """What a line must hold, and what it holds."""

    def __init__(self, name: str, wanted: str, value: object) -> None:
        shown = repr(value)
        super().__init__(f"{name} must hold {wanted}, and is {shown if len(shown) <= 60 else f'{shown[:60]}…'}")


def _asked(text: str) -> Messages:
    return ({"role": "user", "content": text},)


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _UnfitError(name, "a text", value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _UnfitError(name, "whole characters, not half a surrogate pair", value[error.start]) from error
    return value


def _first_turn(row: Row) -> Messages:
    turns = row["turns"]
    if not isinstance(turns, list) or not turns:
        raise _UnfitError("turns", "a list of texts", turns)
    return _asked(_text(turns[0], "turns"))


def _conversation(row: Row) -> Messages:
    """Everything up to the last question."""
    spoken = row["messages"]
    if not isinstance(spoken, list):
        raise _UnfitError("messages", "a list of messages", spoken)
    messages = tuple(_message(one, f"messages[{index}]") for index, one in enumerate(spoken))
    roles = [message["role"] for message in messages]
    if "user" not in roles:
        raise _UnfitError("messages", "a question, which has the role user", roles)
    return messages[: len(roles) - roles[::-1].index("user")]


def _message(one: object, name: str) -> dict[str, str]:
    if not isinstance(one, dict):
        raise _UnfitError(name, "an object with role and content", one)
    if (role := one.get("role")) not in ROLES:
        raise _UnfitError(f"{name}.role", f"one of {', '.join(ROLES)}", role)
    return {"role": role, "content": _text(one.get("content"), f"{name}.content")}


def _edit(row: Row) -> Messages:
    return _asked(f"{_text(row['instruction'], 'instruction').strip()}\n\n{_text(row['input'], 'input')}")


def _function(row: Row) -> Messages:
    return _asked(f"Complete the function.\n\n{_text(row['prompt'], 'prompt')}")


SHAPES = (  # the first whose keys are all there
    Shape("Spec-Bench", ("turns",), _first_turn),
    Shape("messages", ("messages",), _conversation),
    Shape("EditEval", ("instruction", "input"), _edit, "input"),
    Shape("HumanEval", ("prompt", "entry_point"), _function),
    Shape("GSM8K", ("question", "answer"), lambda row: _asked(_text(row["question"], "question"))),
    Shape("plain", ("prompt",), lambda row: _asked(_text(row["prompt"], "prompt"))),
)
