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
    except json.JSONDecodeError as error:
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
        prediction = _text(row[shape.prediction]) if shape.prediction in row else None
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path}, {where}, looks like {shape.name}, but {' and '.join(shape.keys)} must hold the prompt's text."
        ) from error
    category = row.get("category")
    name = path.name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".json")
    return BenchPrompt(messages, str(category) if category else name, f"{path.name} {where}", prediction)


def _asked(text: object) -> Messages:
    return ({"role": "user", "content": _text(text)},)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise TypeError("not a text")
    return value


def _first_turn(row: Row) -> Messages:
    turns = row["turns"]
    if not isinstance(turns, list):
        raise TypeError("not a list of turns")
    return _asked(turns[0])


def _conversation(row: Row) -> Messages:
    """Everything up to the last question."""
    spoken = row["messages"]
    if not isinstance(spoken, list):
        raise TypeError("not a list of messages")
    messages = tuple({"role": _text(one["role"]), "content": _text(one["content"])} for one in spoken)
    last = max(index for index, message in enumerate(messages) if message["role"] == "user")
    return messages[: last + 1]


def _edit(row: Row) -> Messages:
    return _asked(f"{_text(row['instruction']).strip()}\n\n{_text(row['input'])}")


def _function(row: Row) -> Messages:
    return _asked(f"Complete the function.\n\n{_text(row['prompt'])}")


SHAPES = (  # the first whose keys are all there
    Shape("Spec-Bench", ("turns",), _first_turn),
    Shape("messages", ("messages",), _conversation),
    Shape("EditEval", ("instruction", "input"), _edit, "input"),
    Shape("HumanEval", ("prompt", "entry_point"), _function),
    Shape("GSM8K", ("question", "answer"), lambda row: _asked(row["question"])),
    Shape("plain", ("prompt",), lambda row: _asked(row["prompt"])),
)
