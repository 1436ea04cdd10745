"""Reads numbers and flags out of a head's config.json, with a sentence for a value of the wrong kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foredraft.errors import LoadError

__all__ = ["Config"]


class Config:
    """`found` by key, `path` for messages. A key that is null counts as missing."""

    def __init__(self, path: str, found: Mapping[str, Any]) -> None:
        self.path = path
        self.found = found

    def has(self, key: str) -> bool:
        return self.found.get(key) is not None

    def whole(self, key: str, default: int | None = None) -> int | None:
        value = self.found.get(key)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.wrong(key, "a whole number")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.found.get(key)
        if value is None:
            return default
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
            raise self.wrong(key, "a number above 0")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.found.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: str) -> str:
        value = self.found.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def part(self, key: str) -> Config:
        """A nested object; an empty one if it is missing."""
        value = self.found.get(key)
        if value is None:
            return Config(self.path, {})
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return Config(self.path, value)

    def whole_list(self, key: str) -> tuple[int, ...] | None:
        value = self.found.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
            raise self.wrong(key, "a list of whole numbers")
        return tuple(value)

    def wrong(self, key: str, kind: str) -> LoadError:
        return LoadError(f"{self.path} has {key} {self.found[key]!r} in its config.json; it should be {kind}")
