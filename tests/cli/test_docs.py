"""The command line's reference names exactly the options that the commands have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli

from foredraft.cli.main import build_group, load

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()
OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")


def commands(name: str, command: Any) -> Iterator[str]:
    yield name
    for child in getattr(command, "commands", {}):
        yield from commands(f"{name} {child}", command.commands[child])


NAMES = [name for top in build_group().commands for name in commands(top, load(top))]


def options(help_text: str) -> set[str]:
    """The options listed in a help text: at the beginning of a line, or after another one."""
    listed = re.findall(r"^  (-\S+(?:, -\S+)*)", help_text, re.MULTILINE)
    return {option for entry in listed for option in OPTION.findall(entry)}


@pytest.mark.parametrize("name", ["", *NAMES])
def test_reference_lists_the_options(name: str, cli: Cli) -> None:
    path = f"{name} --help".strip()
    blocks = re.findall(rf"^```console\n\$ foredraft {path}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 1, f"docs/reference/cli.md has {len(blocks)} blocks for {path!r}; run docs/refresh_help.py"
    shown = options(cli(*path.split()).out)
    assert "--help" in shown
    assert options(blocks[0]) == shown, "run docs/refresh_help.py"


def test_no_command_is_documented_that_does_not_exist() -> None:
    documented = re.findall(r"^\$ foredraft ([a-z0-9 ]*)--help$", PAGE, re.MULTILINE)
    assert sorted(name.strip() for name in documented) == sorted(["", *NAMES])
