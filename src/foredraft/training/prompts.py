"""Prompts from a file: one a line, as JSON or as plain text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from foredraft.errors import ConfigError

__all__ = ["Prompts", "read_prompts"]

ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}


class Prompts:
    """Conversations that end with a user's message, and a digest of the file they come from."""

    def __init__(self, conversations: list[list[dict[str, str]]], digest: str) -> None:
        self._conversations = conversations
        self.digest = digest

    def __len__(self) -> int:
        return len(self._conversations)

    def __getitem__(self, index: int) -> list[dict[str, str]]:
        return self._conversations[index]

    def __iter__(self) -> Iterator[list[dict[str, str]]]:
        return iter(self._conversations)


def read_prompts(path: Path) -> Prompts:
    """Read a .txt file (a prompt a line) or a .jsonl file.

    A JSON line is a string, or an object with `prompt`, `text` or `question`, or a conversation in `messages`,
    `conversations` or `turns` (only the part before its last answer is used). Raises ConfigError with the line's
    number.
    """
    try:
        content = path.read_bytes()
        lines = content.decode("utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"{path} can't be read ({error.strerror}); pass an existing file of prompts") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} isn't UTF-8 text (byte {error.start}); convert it, or pass another file") from error
    plain = path.suffix not in (".jsonl", ".json", ".ndjson")
    found = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"line {number} of {path}"
            found.append([{"role": "user", "content": line.strip()}] if plain else _conversation(line, where))
    if not found:
        raise ConfigError(f"{path} has no prompts; put one on each line")
    return Prompts(found, hashlib.sha256(content).hexdigest())


def _conversation(line: str, where: str) -> list[dict[str, str]]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where} is no JSON ({error}); fix the line, or name the file .txt") from error
    if isinstance(value, str) and value:
        return [{"role": "user", "content": value}]
    if isinstance(value, dict):
        for key in ("prompt", "text", "question", "instruction"):
            if isinstance(value.get(key), str) and value[key]:
                return [{"role": "user", "content": value[key]}]
        for key in ("messages", "conversations", "turns"):
            if isinstance(value.get(key), list) and (messages := _messages(value[key])):
                return messages
    raise ConfigError(f'{where} has no prompt; write a JSON string, or an object such as {{"prompt": "..."}}')


def _messages(turns: list[object]) -> list[dict[str, str]]:
    """The turns up to the last one of the user."""
    messages = []
    for turn in turns:
        if isinstance(turn, str):
            messages.append({"role": "user", "content": turn})
            return messages  # a list of strings is what a user says; the answers in between aren't known
        if isinstance(turn, dict):
            role = ROLES.get(str(turn.get("role", turn.get("from"))))
            content = turn.get("content", turn.get("value"))
            if role and isinstance(content, str):
                messages.append({"role": role, "content": content})
    while messages and messages[-1]["role"] != "user":
        messages.pop()
    return messages
