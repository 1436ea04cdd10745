"""Puts the prompt together from stdin, a file and the argument, in this order, with blank lines between them."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from foredraft.cli.parse import text_file
from foredraft.errors import ConfigError

__all__ = ["read_prompt"]


def read_prompt(argument: str | None, file: Path | None) -> str:
    """The text to answer. Raises ConfigError when there is none.

    Stdin is read when the argument is "-", when nothing else was given, and when something is piped in.
    """
    dash = argument == "-"
    alone = argument is None and file is None
    parts = []
    if dash or (alone and not sys.stdin.isatty()) or _piped():
        parts.append(_stdin())
    if file is not None:
        parts.append(text_file(file))
    if argument is not None and not dash:
        parts.append(argument)
    prompt = "\n\n".join(part for part in parts if part)
    if not prompt:
        raise ConfigError("There is no prompt; give one as an argument, with -f FILE, or on stdin")
    return prompt


def _piped() -> bool:
    """Whether stdin is a pipe or a file: something a user put there, unlike the terminal or a service's socket."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"stdin isn't UTF-8 text (byte {error.start}); convert it first") from error
